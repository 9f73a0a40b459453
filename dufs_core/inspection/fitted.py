"""Data beside a fitted selector."""

from __future__ import annotations

from typing import Any

from dufs_core.data.accept import host_array


def host_data(selector: Any, X: Any) -> Any:
    """X (n, d) in host memory; ValueError unless it has the number of features of the fit."""
    X, d = host_array(X), len(selector.support_)
    if len(X.shape) != 2 or X.shape[1] != d:
        raise ValueError(f"X must have the {d} features that the selector was fitted on; its shape is {X.shape}")
    return X
