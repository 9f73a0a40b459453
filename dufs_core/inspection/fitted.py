"""Facts about fitted selectors that reports and pictures share."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from dufs_core.backend import Array
from dufs_core.data.accept import host_array
from dufs_core.selection.presets import order_of

Kind = Literal["decoys", "gates", "path", "scores"]


def selector_kind(selector: Any) -> Kind:
    """ "decoys": DUFS; "gates": DUFS(fdr=None); "path": LambdaPath; "scores": another selector."""
    if hasattr(selector, "lams_"):
        return "path"
    if hasattr(selector, "decoy_evidence_"):
        return "decoys"
    return "gates" if hasattr(selector, "mu_") else "scores"


def column_mask(selector: Any, attribute: str) -> Array:
    """A fitted attribute with indices of columns, as a mask (d,); all False without the attribute."""
    mask = np.zeros(len(selector.support_), dtype=bool)
    mask[getattr(selector, attribute, np.zeros(0, dtype=int))] = True
    return mask


def is_judged(selector: Any) -> Array:
    """Mask (d,) of the columns that competed with decoys."""
    return ~np.isnan(np.asarray(selector.decoy_evidence_)).any(axis=0)


def shuffled_copies(count: int) -> str:
    """The number of decoys of each feature in words."""
    return "a shuffled copy" if count == 1 else f"{count} shuffled copies"


def order_rule(selector: Any) -> str:
    """Name the order of the selected columns: "evidence", "gates" (by score) or "diverse"."""
    return order_of(selector) if selector_kind(selector) in ("decoys", "gates") else "gates"


def host_data(selector: Any, X: Any) -> Any:
    """X (n, d) in host memory; ValueError unless it has the number of features of the fit."""
    X, d = host_array(X), len(selector.support_)
    if len(X.shape) != 2 or X.shape[1] != d:
        raise ValueError(f"X must have the {d} features that the selector was fitted on; its shape is {X.shape}")
    return X
