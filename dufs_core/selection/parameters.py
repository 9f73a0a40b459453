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
from dufs_core.objective.optimizers import get_optimizer
from dufs_core.selection.presets import graph_rules

_MOST = 2**63 - 1  # of what kernels count
RANKINGS = ("diverse", "evidence", "gates")


def check_parameters(selector: Any, n: int, d: int) -> None:
    """Raise ValueError for any parameter of a DUFS selector that cannot be used with n rows and d columns."""
    p = {**selector.get_params(deep=False), **graph_rules(selector, n)._asdict()}
    if p["fdr"] is not None and not (is_real(p["fdr"]) and 0 < p["fdr"] < 1):
        raise ValueError(
            "fdr is a false discovery rate, above 0 and below 1, or None (the columns with open gates); "
            f"got {p['fdr']!r}"
        )
    for name in ("power", "n_neighbors", "max_iter", "max_runs"):
        check_whole(name, p[name])
    check_choice("dtype", p["dtype"], ("float32", "float64"))
    for name in ("bandwidth_factor", "gate_sigma", "learning_rate"):
        check_positive(name, p[name], p["dtype"])
    if not (p["lam"] is None or (is_real(p["lam"]) and p["lam"] == 0) or is_positive(p["lam"], p["dtype"])):
        allowed = f"a number of at least 0{_range(p['lam'], p['dtype'])}"
        raise ValueError(f"lam must be None (parameter-free loss) or {allowed}; got {p['lam']!r}")
    if not is_real(p["tol"]) or not 0 <= p["tol"] < 1:
        raise ValueError(f"tol is a share of the gates and must be at least 0 and below 1; got {p['tol']!r}")
    check_choice("gate_noise", p["gate_noise"], ("batch", "sample"))
    check_choice("scaling", p["scaling"], SCALINGS)
    check_choice("convention", p["convention"], ("standard", "authors_code"))
    if p["ranking"] is not None:
        check_choice("ranking", p["ranking"], RANKINGS)
    if p["ranking"] == "evidence" and p["fdr"] is None:
        raise ValueError('ranking="evidence" needs decoys, which fdr=None leaves out: set fdr, or ranking="gates"')
    for name in ("self_loops",):
        if not isinstance(p[name], (bool, np.bool_)):
            raise ValueError(f"{name} must be True or False; got {p[name]!r}")
    check_bandwidth(p["bandwidth"])
    if not isinstance(p["bandwidth"], str):
        check_positive("bandwidth", p["bandwidth"], p["dtype"])
    get_optimizer(p["optimizer"], p["learning_rate"])
    if p["max_memory"] is not None and not (is_whole(p["max_memory"]) and p["max_memory"] >= 1):
        raise ValueError(f"max_memory must be None or a positive number of bytes; got {p['max_memory']!r}")
    if not isinstance(p["callbacks"], (list, tuple)):
        raise ValueError(
            f"callbacks must be a list or tuple of functions, as in callbacks=[print]; got {p['callbacks']!r}"
        )
    draws = p["n_draws"]
    if draws is not None and not (is_whole(draws) and (draws == 1 or (1 < draws <= _MOST and draws % 2 == 0))):
        raise ValueError(f"n_draws must be None, 1 or an even number (pairs eps, -eps); got {draws!r}")
    check_n_neighbors(p["n_neighbors"], n)
    if p["batch_size"] is not None:
        _check_batch_size(p["batch_size"], p["n_neighbors"], n)
    if p["n_features_to_select"] is not None:
        n_wanted(p["n_features_to_select"], d)


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
