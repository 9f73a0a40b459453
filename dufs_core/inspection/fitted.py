"""What kind of selector was fitted, and which of its columns took no part."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from dufs_core.backend import Array
from dufs_core.data.accept import host_array
from dufs_core.selection.presets import order_of

Kind = Literal["decoys", "gates", "path", "scores"]


def selector_kind(selector: Any) -> Kind:
    """DUFS with decoys or without (fdr=None), LambdaPath, or a selector with scores alone."""
    if hasattr(selector, "lams_"):
        return "path"
    if hasattr(selector, "decoy_evidence_"):
        return "decoys"
    return "gates" if hasattr(selector, "mu_") else "scores"


def column_mask(selector: Any, attribute: str) -> Array:
    """The columns (d,) bool whose indices a fitted attribute holds; none where the selector has no such attribute."""
    mask = np.zeros(len(selector.support_), dtype=bool)
    mask[getattr(selector, attribute, np.zeros(0, dtype=int))] = True
    return mask


def is_judged(selector: Any) -> Array:
    """The columns (d,) bool that competed with decoys."""
    return ~np.isnan(np.asarray(selector.decoy_evidence_)).any(axis=0)


def order_rule(selector: Any) -> str:
    """What the selected columns are ordered by: "evidence", "gates" (their scores) or "diverse"."""
    return order_of(selector) if selector_kind(selector) in ("decoys", "gates") else "gates"


def host_data(selector: Any, X: Any) -> Any:
    """X (n, d) in the memory of the host; ValueError unless it has the features that the selector was fitted on."""
    X, d = host_array(X), len(selector.support_)
    if len(X.shape) != 2 or X.shape[1] != d:
        raise ValueError(f"X must have the {d} features that the selector was fitted on; its shape is {X.shape}")
    return X
