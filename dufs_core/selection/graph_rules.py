"""Which graph a selector means where its parameters leave it open."""

from __future__ import annotations

from typing import Any, NamedTuple


class GraphRules(NamedTuple):
    """What the random walk on the gated data is: see `dufs_core.DUFS`."""

    power: int
    bandwidth: str | float
    n_neighbors: int
    bandwidth_factor: float
    self_loops: bool


WIDE = GraphRules(power=2, bandwidth="max", n_neighbors=2, bandwidth_factor=2.0, self_loops=True)
LOCAL = GraphRules(power=1, bandwidth="median", n_neighbors=5, bandwidth_factor=1.0, self_loops=False)


def graph_rules(selector: Any, n: int) -> GraphRules:
    """The rules of a selector for n rows: its own, and for those that are None the ones of its mode.

    `LOCAL` with decoys, which the score of a column without the column itself asks for; `WIDE`, near the paper's, for
    gates that start among nuisance.
    """
    rules = WIDE if selector.fdr is None else LOCAL
    rules = rules._replace(n_neighbors=max(1, min(rules.n_neighbors, n - 1)))
    return rules._replace(**{k: v for k in rules._fields if (v := getattr(selector, k)) is not None})


def order_of(selector: Any) -> str:
    """What comes first among the selected columns: "gates", "evidence" or "diverse"."""
    mode = "gates" if selector.fdr is None else "diverse"
    return str(getattr(selector, "ranking", None) or mode)
