"""Parameters that a `dufs_core.DUFS` leaves open: the graph and the order of each mode, and published settings."""

from __future__ import annotations

from typing import Any, NamedTuple


class GraphRules(NamedTuple):
    """What the random walk on the gated data is: see `dufs_core.DUFS`."""

    power: int
    bandwidth: str | float
    n_neighbors: int
    bandwidth_factor: float
    self_loops: bool


LOCAL = GraphRules(power=1, bandwidth="median", n_neighbors=5, bandwidth_factor=1.0, self_loops=False)  # with decoys
WIDE = GraphRules(power=2, bandwidth="max", n_neighbors=2, bandwidth_factor=2.0, self_loops=True)  # near the paper's

_PUBLISHED = {"fdr": None, "n_draws": 1, "optimizer": "sgd", "learning_rate": 1.0, "max_iter": 15_000, "max_runs": 1}
PRESETS: dict[str, dict[str, Any]] = {  # documented in `dufs_core.DUFS.preset`
    "wide": {
        "fdr": None,
        "ranking": "diverse",
        **WIDE._replace(n_neighbors=5, bandwidth_factor=0.5, self_loops=False)._asdict(),
    },
    "paper": {**_PUBLISHED, "gate_noise": "batch", **WIDE._replace(bandwidth_factor=5.0)._asdict()},
    "authors_code": {
        **_PUBLISHED,
        "gate_noise": "sample",
        "convention": "authors_code",
        **WIDE._replace(bandwidth="median", n_neighbors=1, bandwidth_factor=1.0)._asdict(),
    },
}


def graph_rules(selector: Any, n: int) -> GraphRules:
    """The rules of a selector for n rows: its own, and where these are None those of its mode.

    `LOCAL` with decoys, as the score of a column without the column itself asks for; `WIDE` for gates that start among
    nuisance.
    """
    rules = WIDE if selector.fdr is None else LOCAL
    rules = rules._replace(n_neighbors=max(1, min(rules.n_neighbors, n - 1)))
    return rules._replace(**{k: v for k in rules._fields if (v := getattr(selector, k)) is not None})


def order_of(selector: Any) -> str:
    """What comes first among the selected columns: "gates", "evidence" or "diverse"."""
    mode = "gates" if selector.fdr is None else "diverse"
    return str(getattr(selector, "ranking", None) or mode)
