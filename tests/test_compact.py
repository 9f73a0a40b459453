"""bench.compact: what is measured, and what a rule is worth."""

from __future__ import annotations

import generators as gen
import numpy as np
import pytest

from bench import compact
from bench.compact import Case
from bench.natural import Natural

pytestmark = pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")


def test_a_record(monkeypatch):
    """Every order is one of the columns of the diverse one; statistics are finite and need no labels."""
    clusters = gen.three_clusters(60, 30)
    data = Natural(clusters.X, clusters.labels, np.ones(30))
    monkeypatch.setattr(compact, "load", lambda name: data)
    monkeypatch.setattr(compact, "POOL", 12)
    monkeypatch.setattr(compact, "SIZES", (3, 5))
    monkeypatch.setattr(compact, "RUNS", 2)
    monkeypatch.setitem(compact.GATES, "max_iter", 40)
    orders = compact.orders(data, 0)
    assert set(orders) == set(compact.ORDERS)
    for order in orders.values():
        assert sorted(order) == sorted(orders["diverse"])
    record = compact.measure("Yale", 0)
    for order in compact.ORDERS:
        for size in (3, 5):
            values = record[f"{order} {size}"]
            assert set(values) == {"accuracy", "nmi", *compact.STATISTICS}
            assert all(np.isfinite(value) for value in values.values())
    other = record | {"data": "Isolet", "seed": 1}
    printed = compact.table([record, other])
    assert "| A | Yale | 1 |" in printed
    assert "| compact | always compact | - | - |" in printed


def test_a_threshold_is_chosen_where_it_gains():
    """Compact helps where the difference of the statistic is large; where it never helps it is never taken."""
    some = [Case(gain, {"own": value}) for gain, value in ((-3.0, 0.1), (-1.0, 0.2), (2.0, 0.3), (4.0, 0.5))]
    threshold = compact.chosen(some, "own")
    assert 0.2 < threshold < 0.3
    assert compact.gained(some, "own", threshold) == 1.5
    assert compact.chosen(some[:2], "own") == np.inf
    assert compact.gained(some[:2], "own", np.inf) == 0
