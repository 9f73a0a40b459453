"""Facts about fitted selectors that reports and pictures share."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from dufs_core.backend import Array
from dufs_core.data.accept import host_array
from dufs_core.selection.decoys.explanation import is_judged as is_judged
from dufs_core.selection.decoys.explanation import shuffled_copies as shuffled_copies

Kind = Literal["decoys", "gates", "path", "scores"]


def selector_kind(selector: Any) -> Kind:
    """What a fitted selector has to show: "decoys" (DUFS), "gates" (GatedLaplacian), "path" (LambdaPath), "scores"."""
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


def host_data(selector: Any, X: Any) -> Any:
    """X (n, d) in host memory; ValueError unless it has the number of features of the fit."""
    X, d = host_array(X), len(selector.support_)
    if len(X.shape) != 2 or X.shape[1] != d:
        raise ValueError(f"X must have the {d} features that the selector was fitted on; its shape is {X.shape}")
    return X
