"""Select genes of AnnData objects in scanpy's manner, results in .var and .uns; the package anndata is not imported."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from dufs_core.data.accept import dense_part, unwrap
from dufs_core.errors import DufsWarning, user_stacklevel
from dufs_core.selection.decoys.dufs import DUFS
from dufs_core.selection.settings import flat_settings

_COUNTED_CELLS = 100  # that are looked at for raw counts
_COUNT = 10  # whole numbers up to here may be classes or grades


def select_features(
    adata: Any,
    *,
    layer: str | None = None,
    batch_key: str | None = None,
    covariate_keys: str | Sequence[str] | None = None,
    subset: bool = False,
    key_added: str = "dufs",
    scaling: Literal["columns", "global", "none"] = "global",
    **parameters: Any,
) -> DUFS:
    """Select variables (genes) of an AnnData object with `DUFS`, and write the result into it.

    Parameters
    ----------
    adata : AnnData
        In memory or backed. Its values should be normalised as for a neighbourhood graph: counts scaled to the same
        total in each cell, and logarithms taken (scanpy's normalize_total and log1p; not scale). A first cut to a few
        thousand genes (highly_variable_genes) saves time.
    layer : str, optional
        Use ``adata.layers[layer]`` instead of ``adata.X``.
    batch_key : str, optional
        Column of ``adata.obs`` with the batch, donor or plate of each cell: the groups of `DUFS.fit`. Cells of several
        donors are not exchangeable, and without it genes that differ between donors are selected.
    covariate_keys : str or sequence of str, optional
        Columns of ``adata.obs`` with numbers by which cells are known to differ (age, total counts): the covariates of
        `DUFS.fit`, whose part is taken out of the genes.
    subset : bool, default False
        Keep only the selected variables in adata, which must be in memory.
    key_added : str, default "dufs"
        Begins the names of what is written.
    scaling : "columns", "global" or "none", default "global"
        Of `DUFS`, where it is "columns". Logarithms of normalised counts are on one scale, and variance tells genes
        that differ between cells from the others; at variance 1 each, one that three cells express weighs as much.
    **parameters
        Of `DUFS`.

    Returns
    -------
    DUFS
        The fitted selector, for `dufs_core.report` and `dufs_core.inspection.plotting`; adata.var_names are its
        `var_names_`, by which these and get_feature_names_out call the columns.

        Written into adata: ``.var["dufs_score"]`` (`DUFS.scores_`), ``.var["dufs_rank"]`` (1 is best),
        ``.var["dufs_q_value"]``, ``.var["dufs_evidence"]`` and ``.var["dufs_selected"]`` (bool); ``.uns["dufs"]`` with
        the parameters ("none" for None), layer, batch_key, covariate_keys (as one text), and n_selected. What an
        earlier call with the same `key_added` wrote is replaced. A backed file changes only when it is written
        (``adata.write()``).

    Raises
    ------
    TypeError
        If adata is no AnnData object, or a parameter is unknown.
    ValueError
        If the layer or a column of batches or covariates does not exist, a covariate is no number, a backed object
        would be cut, and as `DUFS.fit`. Nothing is written then.

    Warns
    -----
    DufsWarning
        If the values of the first 100 cells are whole numbers of at least 0, and one is above 10: raw counts, most
        likely. And as `DUFS.fit`.
    """
    if not all(hasattr(adata, name) for name in ("var", "uns", "layers", "n_vars")):
        raise TypeError(
            f"adata must be an AnnData object; got {type(adata).__name__}. Other data go to DUFS().fit(X) directly"
        )
    layers = ", ".join(map(repr, adata.layers)) or "none"
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"adata has no layer {layer!r}; its layers are {layers}")
    if layer is None and adata.X is None:
        raise ValueError(f"adata has no .X: name one of its layers, {layers}")
    if subset and adata.isbacked:
        raise ValueError(
            "subset=True changes an object in memory, and this one is backed by a file: use adata.to_memory() first, "
            f'or subset=False and then adata[:, adata.var["{key_added}_selected"]].copy(filename="selected.h5ad")'
        )
    covariates = [covariate_keys] if isinstance(covariate_keys, str) else list(covariate_keys or ())
    batches = [] if batch_key is None else [batch_key]
    for key in [*batches, *covariates]:
        if not isinstance(key, str) or key not in adata.obs:
            known = ", ".join(map(repr, adata.obs)) or "none"
            raise ValueError(f"adata.obs has no column {key!r}; its columns are {known}")
    for key in covariates:
        if adata.obs[key].dtype.kind not in "biuf":
            raise ValueError(
                f"adata.obs[{key!r}] holds {adata.obs[key].dtype}, and covariates are numbers: a class (batch, donor) "
                f"belongs into batch_key"
            )
    if "n_top_genes" in parameters:
        raise TypeError("select_features has no parameter 'n_top_genes'; it is n_features_to_select here")
    X = unwrap(adata.X if layer is None else adata.layers[layer])
    selector = DUFS(scaling=scaling, **parameters)
    selector.var_names_ = np.array(adata.var_names, dtype=object)  # for the sentences of the fit
    selector.fit(
        X,
        groups=None if batch_key is None else adata.obs[batch_key],
        covariates=adata.obs[covariates].to_numpy(np.float64, na_value=np.nan) if covariates else None,
    )
    if (largest := _largest_count(X)) > _COUNT:
        warnings.warn(
            f"{'adata.X' if layer is None else f'Layer {layer!r}'} seems to hold raw counts: whole numbers up to "
            f"{largest:.0f} in the first cells. The depth of a cell and a few highly expressed genes would be the "
            f"structure: use scanpy.pp.normalize_total and scanpy.pp.log1p first.",
            DufsWarning, stacklevel=user_stacklevel(),
        )  # fmt: skip
    selector.var_names_ = np.array(adata.var_names, dtype=object)  # adata.X, for transform, is an array without names
    columns = {
        "score": "scores_", "rank": "ranking_", "q_value": "q_values_", "evidence": "evidence_",
        "selected": "support_",
    }  # fmt: skip
    for name, attribute in columns.items():
        adata.var[f"{key_added}_{name}"] = getattr(selector, attribute)
    params = {k: v for k, v in flat_settings(selector).items() if k != "verbose"}
    params |= {"layer": layer, "batch_key": batch_key, "covariate_keys": ", ".join(covariates) or None}
    adata.uns[key_added] = {
        "params": {k: _storable(v) for k, v in params.items()},
        "n_selected": int(selector.support_.sum()),
    }
    if subset:
        adata._inplace_subset_var(selector.support_)  # as scanpy does: AnnData has no public name for it
    return selector


def _largest_count(X: Any) -> float:
    """The largest value in the first rows of X if all are whole numbers of at least 0, else 0."""
    first = X[:_COUNTED_CELLS]
    values = dense_part(first, np.arange(first.shape[0]), np.arange(first.shape[1]))
    is_count = values.size and values.min() >= 0 and np.array_equal(values, np.rint(values))
    return float(values.max()) if is_count else 0.0


def _storable(value: Any) -> Any:
    """The value as .h5ad files can hold it."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, (bool, int, float, str)) else "none" if value is None else str(value)
