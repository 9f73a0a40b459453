"""Other unsupervised selectors, for comparison, by the equations of their papers.

All share DUFS's interface: `n_features_to_select`, `scaling`, and the fitted `scores_` (larger is better, every
column), `order_`, `support_` and `constant_features_`. They compute in float64 and load at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dufs_core.baselines.concrete_autoencoder import ConcreteAutoencoder as ConcreteAutoencoder
    from dufs_core.baselines.laplacian_score import LaplacianScore as LaplacianScore
    from dufs_core.baselines.llcfs import LLCFS as LLCFS
    from dufs_core.baselines.mcfs import MCFS as MCFS
    from dufs_core.baselines.ndfs import NDFS as NDFS
    from dufs_core.baselines.srcfs import SRCFS as SRCFS

_MODULES = {
    "ConcreteAutoencoder": "concrete_autoencoder",
    "LLCFS": "llcfs",
    "LaplacianScore": "laplacian_score",
    "MCFS": "mcfs",
    "NDFS": "ndfs",
    "SRCFS": "srcfs",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"dufs_core.baselines.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'dufs_core.baselines' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
