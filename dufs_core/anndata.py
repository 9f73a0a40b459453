"""Selection of genes in AnnData objects, in scanpy's manner: results go into .var and .uns.

Only the object's attributes are used; the package anndata is not imported here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.estimator import DUFS


def select_features(
    adata: Any, *, layer: str | None = None, subset: bool = False, key_added: str = "dufs", **parameters: Any
) -> DUFS:
    """Select variables (genes) of an AnnData object with `DUFS`, and write the result into it.

    Parameters
    ----------
    adata : AnnData
        In memory or backed. Its values should be normalised as for a neighbourhood graph: counts scaled to the same
        total in each cell, and logarithms taken (scanpy's normalize_total and log1p).
    layer : str, optional
        Use ``adata.layers[layer]`` instead of ``adata.X``.
    subset : bool, default False
        Keep only the selected variables in adata, which must be in memory.
    key_added : str, default "dufs"
        Begins the names of what is written.
    **parameters
        Of `DUFS`. ``batch_size`` reads a backed object a batch at a time.

    Returns
    -------
    DUFS
        The fitted selector, for `dufs_core.report` and `dufs_core.plotting`. Written into adata:

        ``.var["dufs_score"]`` (mu), ``.var["dufs_rank"]`` (1 is best), ``.var["dufs_probability"]`` (of an open gate),
        ``.var["dufs_selected"]`` (bool), and ``.uns["dufs"]`` with the parameters ("none" for None), layer,
        permutation gap, p-value, number of steps and whether it converged. A backed file changes only when it is
        written (``adata.write()``).

    Raises
    ------
    TypeError
        If adata is no AnnData object.
    ValueError
        If the layer does not exist, a backed object would be cut, and as `DUFS.fit`. Nothing is written then.
    """
    if not all(hasattr(adata, name) for name in ("var", "uns", "layers", "n_vars")):
        raise TypeError(
            f"adata must be an AnnData object; got {type(adata).__name__}. Other data go to DUFS().fit(X) directly"
        )
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"adata has no layer {layer!r}; its layers are {', '.join(map(repr, adata.layers)) or 'none'}")
    if layer is None and adata.X is None:
        raise ValueError(f"adata has no .X: name one of its layers, {', '.join(map(repr, adata.layers)) or 'none'}")
    if subset and adata.isbacked:
        raise ValueError(
            "subset=True changes an object in memory, and this one is backed by a file: use adata.to_memory() first, "
            f'or subset=False and then adata[:, adata.var["{key_added}_selected"]].copy(filename="selected.h5ad")'
        )
    selector = DUFS(**parameters)
    selector.fit(adata.X if layer is None else adata.layers[layer])
    rank = np.empty(adata.n_vars, dtype=np.int64)
    rank[selector.ranking_] = np.arange(1, adata.n_vars + 1)
    columns: dict[str, Array] = {
        "score": selector.scores_,
        "rank": rank,
        "probability": selector.gate_probabilities_,
        "selected": selector.support_,
    }
    for name, values in columns.items():
        adata.var[f"{key_added}_{name}"] = values
    settings = {k: v for k, v in selector.get_params(deep=False).items() if k not in ("callbacks", "verbose")}
    adata.uns[key_added] = {
        "params": {k: _storable(v) for k, v in settings.items()} | {"layer": _storable(layer)},
        "permutation_gap": selector.permutation_gap_,
        "p_value": selector.p_value_,
        "n_iter": selector.n_iter_,
        "converged": selector.converged_,
        "n_selected": int(selector.support_.sum()),
    }
    if subset:
        adata._inplace_subset_var(selector.support_)  # as scanpy does: AnnData has no public name for it
    return selector


def _storable(value: Any) -> Any:
    """The value as .h5ad files can hold it."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, (bool, int, float, str)) else "none" if value is None else str(value)
