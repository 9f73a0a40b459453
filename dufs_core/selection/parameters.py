"""Parameters of the selector, checked before anything is computed."""

from __future__ import annotations

import os
import warnings
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from dufs_core.data.scaling import SCALINGS
from dufs_core.errors import DufsWarning, invalid_choice, user_stacklevel
from dufs_core.objective.ops.bandwidth import check_n_neighbors, quantile_of
from dufs_core.objective.optimizers import get_optimizer
from dufs_core.selection.graph_rules import graph_rules

RANKINGS = ("diverse", "evidence", "gates")


def check_parameters(selector: Any, n: int, d: int) -> None:
    """Raise ValueError for any parameter of a DUFS selector that cannot be used with n rows and d columns."""
    fdr = selector.fdr
    if fdr is not None and (not isinstance(fdr, Real) or isinstance(fdr, bool) or not 0 < float(fdr) < 1):
        raise ValueError(
            f"fdr is a false discovery rate, above 0 and below 1, or None (the columns with open gates); got {fdr!r}"
        )
    rules = graph_rules(selector, n)
    for name, lowest in (("power", 1), ("n_neighbors", 1), ("max_iter", 1), ("max_runs", 1)):
        value = getattr(rules, name, getattr(selector, name))
        if not is_int(value) or value < lowest:
            raise ValueError(f"{name} must be a whole number of at least {lowest}; got {value!r}")
    for name in ("bandwidth_factor", "gate_sigma", "learning_rate"):
        value = getattr(rules, name, getattr(selector, name))
        if not isinstance(value, Real) or not 0 < float(value) < float("inf"):
            raise ValueError(f"{name} must be a positive number; got {value!r}")
    if selector.lam is not None and (not isinstance(selector.lam, Real) or not 0 <= float(selector.lam) < float("inf")):
        raise ValueError(f"lam must be None (parameter-free loss) or a number of at least 0; got {selector.lam!r}")
    if not isinstance(selector.tol, Real) or not 0 <= float(selector.tol) < 1:
        raise ValueError(f"tol is a share of the gates and must be at least 0 and below 1; got {selector.tol!r}")
    for name, choices in (
        ("gate_noise", ("batch", "sample")), ("dtype", ("float32", "float64")), ("scaling", SCALINGS),
        ("convention", ("standard", "authors_code")),
    ):  # fmt: skip
        if getattr(selector, name) not in choices:
            value = getattr(selector, name)
            raise invalid_choice(name, value, choices)
    if selector.ranking not in (None, *RANKINGS):
        raise invalid_choice("ranking", selector.ranking, RANKINGS)
    if selector.ranking == "evidence" and fdr is None:
        raise ValueError('ranking="evidence" needs decoys, which fdr=None leaves out: set fdr, or ranking="gates"')
    for name in ("bandwidth_gradient", "self_loops"):
        value = getattr(rules, name, getattr(selector, name))
        if not isinstance(value, (bool, np.bool_)):
            raise ValueError(f"{name} must be True or False; got {value!r}")
    if isinstance(rules.bandwidth, str):
        quantile_of(rules.bandwidth)
    elif not isinstance(rules.bandwidth, Real) or not 0 < float(rules.bandwidth) < float("inf"):
        raise ValueError(f'bandwidth must be "median", "q90", "max" or a positive number; got {selector.bandwidth!r}')
    get_optimizer(selector.optimizer, selector.learning_rate, selector.momentum)
    if selector.max_memory is not None and (not is_int(selector.max_memory) or selector.max_memory < 1):
        raise ValueError(f"max_memory must be None or a positive number of bytes; got {selector.max_memory!r}")
    if not isinstance(selector.callbacks, (list, tuple)):
        raise ValueError(
            f"callbacks must be a list or tuple of functions, as in callbacks=[print]; got {selector.callbacks!r}"
        )
    draws = selector.n_draws
    if draws is not None and (not is_int(draws) or draws < 1 or (draws > 1 and draws % 2)):
        raise ValueError(f"n_draws must be None, 1 or an even number (pairs eps, -eps); got {draws!r}")
    check_n_neighbors(rules.n_neighbors, n)
    if selector.batch_size is not None:
        if not is_int(selector.batch_size) or selector.batch_size < rules.n_neighbors + 2:
            raise ValueError(
                f"batch_size must be a whole number of at least n_neighbors + 2 = {rules.n_neighbors + 2}; "
                f"got {selector.batch_size!r}"
            )
        smallest = n // -(-n // selector.batch_size)
        if smallest <= rules.n_neighbors:
            raise ValueError(
                f"batch_size={selector.batch_size} splits the {n} rows into batches of as few as {smallest}, too few "
                f"for n_neighbors={rules.n_neighbors}: use batch_size=None or a size that leaves more in each"
            )
        if selector.batch_size > n:
            warnings.warn(
                f"batch_size={selector.batch_size} exceeds the {n} rows: every step uses all rows.",
                DufsWarning, stacklevel=user_stacklevel(),
            )  # fmt: skip
    if selector.n_features_to_select is not None:
        n_wanted(selector.n_features_to_select, d)


def is_int(value: Any) -> bool:
    """Whether value is a whole number and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def seed_of(random_state: Any) -> int:
    """The 64 bits that draws are functions of. Raises ValueError for what is no seed and no RandomState."""
    if is_int(random_state):
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
    if is_int(requested) and 1 <= requested <= d:
        return int(requested)
    if isinstance(requested, Real) and 0 < float(requested) < 1:
        return max(1, int(float(requested) * d))
    raise ValueError(
        f"n_features_to_select must be None, a whole number from 1 to the {d} features of X, or a share between 0 "
        f"and 1; got {requested!r}"
    )


def n_threads(n_jobs: int | None) -> int:
    """The number of threads that n_jobs asks for. Raises ValueError."""
    if n_jobs is None or n_jobs == -1:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not is_int(n_jobs) or n_jobs < 1:
        raise ValueError(f"n_jobs must be None, -1 or a whole number of at least 1; got {n_jobs!r}")
    return n_jobs
