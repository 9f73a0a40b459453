"""Parameters, checked before anything is computed; each sentence says what is allowed and what was given."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from dufs_core.data.scaling import SCALINGS
from dufs_core.errors import DufsWarning, invalid_choice, user_stacklevel
from dufs_core.objective.ops.bandwidth import check_bandwidth, check_n_neighbors
from dufs_core.selection.settings import Graph, check_group

_MOST = 2**63 - 1  # of what kernels count
SMALL_ROWS = 256  # steps on more rows average over more of the data, and cost more per draw
_MANY_DRAWS, _FEW_DRAWS = 16, 4


def graph_for(settings: Any, n: int) -> Graph:
    """The graph of a selector on n rows; the number of neighbours of its class is lowered to that of other rows."""
    graph: Graph = settings.graph
    if graph.n_neighbors == type(settings).graph.n_neighbors:
        return graph.with_parts({"n_neighbors": max(1, min(graph.n_neighbors, n - 1))})
    return graph


def step_draws(n_draws: int | str, step_rows: int) -> int:
    """Noise draws of a step on so many rows."""
    if n_draws == "auto":
        return _MANY_DRAWS if step_rows <= SMALL_ROWS else _FEW_DRAWS
    return int(n_draws)


def check_shared(selector: Any, n: int, d: int) -> None:
    """Raise ValueError for a parameter of both selectors that cannot be used with n rows and d columns."""
    check_group("graph", selector.graph, Graph)
    graph = graph_for(selector, n)
    check_choice("dtype", selector.dtype, ("float32", "float64"))
    for name, value in (("power", graph.power), ("n_neighbors", graph.n_neighbors)):
        check_whole(name, value)
    check_positive("bandwidth_factor", graph.bandwidth_factor, selector.dtype)
    check_truth("self_loops", graph.self_loops)
    check_bandwidth(graph.bandwidth)
    if not isinstance(graph.bandwidth, str):
        check_positive("bandwidth", graph.bandwidth, selector.dtype)
    check_choice("scaling", selector.scaling, SCALINGS)
    most = selector.max_memory
    if most is not None and not (is_whole(most) and most >= 1):
        raise ValueError(f"max_memory must be None or a positive number of bytes; got {most!r}")
    check_n_neighbors(graph.n_neighbors, n)
    if selector.n_features_to_select is not None:
        n_wanted(selector.n_features_to_select, d)


def check_training(selector: Any, n: int) -> None:
    """Raise ValueError for a parameter of the training of gates that cannot be used with n rows."""
    check_whole("max_iter", selector.max_iter)
    for name in ("gate_sigma", "learning_rate"):
        check_positive(name, getattr(selector, name), selector.dtype)
    if not is_real(selector.tol) or not 0 <= selector.tol < 1:
        raise ValueError(f"tol is a share of the gates and must be at least 0 and below 1; got {selector.tol!r}")
    if not isinstance(selector.callbacks, (list, tuple)) or not all(
        callable(callback) or hasattr(callback, "every_seconds") for callback in selector.callbacks
    ):
        raise ValueError(
            f"callbacks must be a list or tuple of functions, as in callbacks=[print]; got {selector.callbacks!r}"
        )
    if selector.batch_size is not None:
        _check_batch_size(selector.batch_size, graph_for(selector, n).n_neighbors, n)


def check_rate(fdr: Any) -> None:
    """Raise ValueError unless fdr is a rate that a selection can have."""
    if not (is_real(fdr) and 0 < fdr < 1):
        other = "; the gates without decoys are GatedLaplacian()" if fdr is None else ""
        raise ValueError(f"fdr is a false discovery rate, above 0 and below 1; got {fdr!r}{other}")


def check_regularisation(lam: Any, dtype: str) -> None:
    """Raise ValueError unless lam is a cost of open gates, or None."""
    if lam is None or (is_real(lam) and lam == 0) or is_positive(lam, dtype):
        return
    raise ValueError(
        f"lam must be None (parameter-free loss) or a number of at least 0{_range(lam, dtype)}; got {lam!r}"
    )


def check_saturation(saturation: Any, dtype: str) -> None:
    """Raise ValueError unless saturation is None or a number that can be a limit."""
    if saturation is not None and not is_positive(saturation, dtype):
        raise ValueError(
            f"saturation is the most that a direction adds to the score, in column variances, and must be None (no "
            f"limit) or a positive number{_range(saturation, dtype)}, such as 0.3; got {saturation!r}"
        )


def check_draws(draws: Any) -> None:
    """Raise ValueError unless draws can come in antithetic pairs."""
    if draws == "auto" or (is_whole(draws) and (draws == 1 or (1 < draws <= _MOST and draws % 2 == 0))):
        return
    raise ValueError(f'n_draws must be "auto", 1 or an even number (pairs eps, -eps); got {draws!r}')


def _check_batch_size(size: Any, neighbors: int, n: int) -> None:
    """Raise ValueError unless every batch has more rows than neighbours are asked of one."""
    if not is_whole(size) or size < neighbors + 2:
        raise ValueError(
            f"batch_size must be a whole number of at least n_neighbors + 2 = {neighbors + 2}; got {size!r}"
        )
    smallest = n // -(-n // size)
    if smallest <= neighbors:
        raise ValueError(
            f"batch_size={size} splits the {n} rows into batches of as few as {smallest}, too few for "
            f"n_neighbors={neighbors}: use batch_size=None or a size that leaves more in each"
        )
    if size > n:
        said = f"batch_size={size} exceeds the {n} rows: every step uses all rows."
        warnings.warn(said, DufsWarning, stacklevel=user_stacklevel())


def is_whole(value: Any) -> bool:
    """Whether value is a whole number and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    """Whether value is a number and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Raise ValueError unless value is a whole number of at least `least` that 64 bits hold."""
    if not is_whole(value) or not least <= value <= _MOST:
        most = f" and at most {_MOST}" * (is_whole(value) and value > _MOST)
        raise ValueError(f"{name} must be a whole number of at least {least}{most}; got {value!r}")


def is_positive(value: Any, dtype: str = "float64") -> bool:
    """Whether value is a positive number that arrays of this dtype can hold with all digits."""
    limits = np.finfo(dtype)
    return is_real(value) and float(limits.tiny) <= value <= float(limits.max)


def check_positive(name: str, value: Any, dtype: str = "float64") -> None:
    """Raise ValueError unless `is_positive`."""
    if not is_positive(value, dtype):
        raise ValueError(f"{name} must be a positive number{_range(value, dtype)}; got {value!r}")


def _range(value: Any, dtype: str) -> str:
    """In a sentence that refuses `value`: the numbers of this dtype, where it is beyond them."""
    limits = np.finfo(dtype)
    beyond = is_real(value) and 0 < value < float("inf")
    return f", in {dtype} from {limits.tiny:.1e} to {limits.max:.1e}" * beyond


def check_truth(name: str, value: Any) -> None:
    """Raise ValueError unless value is a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False; got {value!r}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise ValueError unless value is one of the choices."""
    if value not in choices:
        raise invalid_choice(name, value, choices)


def seed_of(random_state: Any) -> int:
    """The 64 bits that draws are functions of. Raises ValueError for what is no seed and no RandomState."""
    if is_whole(random_state):
        return int(random_state) & 0xFFFFFFFFFFFFFFFF
    try:
        return int(check_random_state(random_state).randint(2**31))
    except ValueError:
        raise ValueError(
            f"random_state must be None, a whole number, or a numpy.random.RandomState; got {random_state!r}. A "
            f"numpy.random.Generator gives a whole number by rng.integers(2**31)"
        ) from None


def n_wanted(requested: Any, d: int) -> int:
    """The number of columns that n_features_to_select asks for. Raises ValueError with both numbers."""
    if is_whole(requested) and 1 <= requested <= d:
        return int(requested)
    if is_real(requested) and 0 < requested < 1:
        return max(1, int(float(requested) * d))
    raise ValueError(
        f"n_features_to_select must be None, a whole number from 1 to the {d} features of X, or a share between 0 "
        f"and 1; got {requested!r}"
    )


def n_threads(n_jobs: int | None) -> int:
    """The number of threads that n_jobs asks for. Raises ValueError."""
    if n_jobs is None or n_jobs == -1:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not is_whole(n_jobs) or not 1 <= n_jobs <= _MOST:
        raise ValueError(f"n_jobs must be None, -1 or a whole number of at least 1; got {n_jobs!r}")
    return n_jobs
