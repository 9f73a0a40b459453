"""Differentiable unsupervised feature selection with hand-written gradients.

`DUFS` and everything it needs load at first use: importing this package costs little more than NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dufs_core._version import __version__

if TYPE_CHECKING:
    from dufs_core.estimator import DUFS as DUFS
    from dufs_core.population import fit_population as fit_population

__all__ = ["DUFS", "__version__", "fit_population"]


def __getattr__(name: str) -> Any:
    if name == "DUFS":
        from dufs_core.estimator import DUFS

        return DUFS
    if name == "fit_population":
        from dufs_core.population import fit_population

        return fit_population
    raise AttributeError(f"module 'dufs_core' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
