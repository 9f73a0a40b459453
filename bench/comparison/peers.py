"""The packages, and how each is called.

`SELECTORS[name]()` gives the functions `select(X, k, seed) -> Selection` of one package, under the names of its
methods; it imports the package, so it runs in that package's environment. Nothing else here imports one.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import distribution
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, NamedTuple

import numpy as np


class Selection(NamedTuple):
    """What one call gave."""

    selected: list[int]  # indices; best first where the method ranks
    scores: Any  # one for each column, or None


Select = Callable[[Any, int, int], Selection]


def best(scores: Any, k: int) -> list[int]:
    """Indices of the k largest, best first, ties by index; NaN last."""
    filled = np.where(np.isnan(scores), -np.inf, scores)
    return [int(i) for i in np.argsort(-filled, kind="stable")[:k]]


@contextlib.contextmanager
def quiet():
    """Packages that print progress print it to nowhere."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _dufs() -> dict[str, Select]:
    from dufs_core import DUFS

    def select(X: Any, k: int, seed: int) -> Selection:
        fitted = DUFS(n_features_to_select=k, random_state=seed).fit(X)
        return Selection(fitted.order_[:k].tolist(), fitted.scores_)

    return {"DUFS": select}


def gated_laplacian() -> Any:
    """featselectlib's module of that name, loaded by path, for the package does not import as installed."""
    files = distribution("featselectlib").files or []
    path = next(f for f in files if f.name == "gated_laplacian.py").locate()
    spec = spec_from_file_location("gated_laplacian", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loader(X: Any, batch_size: int) -> Any:
    """A DataLoader of float32 rows, shuffled, incomplete batches left out, as in the packages' own experiments."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    rows = TensorDataset(torch.as_tensor(np.asarray(X), dtype=torch.float32))
    return DataLoader(rows, batch_size=batch_size, shuffle=True, drop_last=True)


def gated_model(X: Any, seed: int, epochs: int) -> Any:
    """GatedLaplacianModel with the settings of featselectlib's own two-moons experiment, after `epochs` epochs."""
    import torch

    torch.set_num_threads(1)
    model = gated_laplacian().GatedLaplacianModel(
        input_dim=X.shape[1], seed=seed, fac=2, knn=5, num_epochs=epochs, learning_rate=0.01, verbose=False
    )
    with quiet():
        model.select_features(loader(X, min(64, len(X))))
    return model


def _featselectlib() -> dict[str, Select]:
    def trained(epochs: int) -> Select:
        def select(X: Any, k: int, seed: int) -> Selection:
            scores = gated_model(X, seed, epochs).get_gates("raw")
            return Selection(best(scores, k), scores)

        return select

    return {"GatedLaplacianModel": trained(300), "as in its experiments": trained(12000)}


def _lscae() -> dict[str, Select]:
    import torch
    from lscae import Lscae

    torch.set_num_threads(1)

    def select(X: Any, k: int, seed: int) -> Selection:
        torch.manual_seed(seed)
        changes = {"k_selected": k, "verbose": False, "num_epochs": 300}
        with quiet():
            model = Lscae(input_dim=X.shape[1], kwargs=changes)
            selected = model.select_features(loader(X, min(64, len(X))))
        return Selection([int(i) for i in selected], None)

    return {"Lscae": select}


def _skfeature() -> dict[str, Select]:
    def method(module: str, name: str, **settings: Any) -> Select:
        function = getattr(import_module(f"skfeature.function.{module}.{name}"), settings.pop("function", name))

        def select(X: Any, k: int, seed: int) -> Selection:
            np.random.seed(seed)  # noqa: NPY002  (its k-means draws from the global state)
            return Selection([int(i) for i in function(X, mode="index", **settings)[:k]], None)

        return select

    two = {"n_clusters": 2}
    return {
        "lap_score": method("similarity_based", "lap_score"),
        "SPEC": method("similarity_based", "SPEC", function="spec"),
        "MCFS": method("sparse_learning_based", "MCFS", function="mcfs", **two),
        "NDFS": method("sparse_learning_based", "NDFS", function="ndfs", **two),
        "UDFS": method("sparse_learning_based", "UDFS", function="udfs", **two),
    }


def _cae() -> dict[str, Select]:
    import keras
    from concrete_autoencoder import ConcreteAutoencoderFeatureSelector

    def select(X: Any, k: int, seed: int) -> Selection:
        keras.utils.set_random_seed(seed)
        d = X.shape[1]
        model = ConcreteAutoencoderFeatureSelector(
            K=k, output_function=lambda u: keras.layers.Dense(d)(u), num_epochs=200, tryout_limit=1
        )
        with quiet():
            model.fit(X, X)
        return Selection([int(i) for i in model.get_indices()], model.probabilities.max(axis=0))

    return {"ConcreteAutoencoderFeatureSelector": select}


def _itmo() -> dict[str, Select]:
    from ITMO_FS.filters.sparse import MCFS, NDFS, SPEC, UDFS

    def method(make: Callable[[int], Any]) -> Select:
        def select(X: Any, k: int, seed: int) -> Selection:
            np.random.seed(seed)  # noqa: NPY002
            model = make(k)
            return Selection([int(i) for i in model.feature_ranking(model.run(X))], None)

        return select

    return {
        "MCFS": method(lambda k: MCFS(d=k, k=2)),
        "MCFS(scheme='0-1')": method(lambda k: MCFS(d=k, k=2, scheme="0-1")),
        "NDFS": method(lambda k: NDFS(p=k, c=2)),
        "UDFS": method(lambda k: UDFS(p=k, c=2)),
        "SPEC": method(lambda k: SPEC(p=k)),
    }


def _frufs() -> dict[str, Select]:
    from FRUFS import FRUFS

    def select(X: Any, k: int, seed: int) -> Selection:
        model = FRUFS(k=k, verbose=1, random_state=seed)
        with quiet():
            model.fit(X)
        columns = [int(list(X.columns).index(c)) if hasattr(X, "columns") else int(c) for c in model.columns_]
        scores = np.empty(len(columns))
        scores[columns] = np.abs(model.feat_imps_)
        return Selection(columns[:k], scores)

    return {"FRUFS": select}


def _gsrfs() -> dict[str, Select]:
    from gsrfs import GSRSelector

    def select(X: Any, k: int, seed: int) -> Selection:
        model = GSRSelector(n_features=k, random_state=seed).fit(X)
        return Selection([int(i) for i in model.selected_indices_], None)

    return {"GSRSelector": select}


def _vt() -> dict[str, Select]:
    from sklearn.feature_selection import VarianceThreshold

    def select(X: Any, k: int, seed: int) -> Selection:
        fitted = VarianceThreshold().fit(X)
        return Selection(best(fitted.variances_, k), fitted.variances_)

    return {"VarianceThreshold, by variances_": select}


def _hvg() -> dict[str, Select]:
    import scanpy
    from anndata import AnnData

    def select(X: Any, k: int, seed: int) -> Selection:
        found = scanpy.pp.highly_variable_genes(AnnData(X), n_top_genes=k, inplace=False)
        scores = found["dispersions_norm"].to_numpy()
        return Selection(np.flatnonzero(found["highly_variable"].to_numpy()).tolist(), scores)

    return {"highly_variable_genes": select}


SELECTORS: dict[str, Callable[[], dict[str, Select]]] = {
    "dufs-core": _dufs,
    "featselectlib": _featselectlib,
    "lscae": _lscae,
    "skfeature": _skfeature,
    "CAE": _cae,
    "ITMO_FS": _itmo,
    "FRUFS": _frufs,
    "gsrfs": _gsrfs,
    "VT": _vt,
    "HVG": _hvg,
}
