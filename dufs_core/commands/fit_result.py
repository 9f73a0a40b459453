"""What dufs-core fit prints and writes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dufs_core.commands.common import machine, versions

if TYPE_CHECKING:
    from dufs_core.commands.fit import Source

_ROWS_SHOWN = 20  # of the table of features


def feature_rows(estimator: Any, names: tuple[str, ...] | None) -> list[dict[str, Any]]:
    """One row per feature, best first."""
    return [
        {
            "index": int(j),
            "name": names[j] if names else f"x{j}",
            "rank": rank,
            "score": estimator.scores_[j],
            "mu": estimator.mu_[j],
            "probability": estimator.gate_probabilities_[j],
            "selected": bool(estimator.support_[j]),
        }
        for rank, j in enumerate(estimator.ranking_, start=1)
    ]


def result_of(args: argparse.Namespace, estimator: Any, source: Source, seconds: dict[str, float]) -> dict[str, Any]:
    """What --json prints and result.json keeps."""
    n, d = source.X.shape
    settings = {k: v for k, v in estimator.get_params(deep=False).items() if k not in ("callbacks", "verbose")}
    selected = [int(j) for j in estimator.ranking_ if estimator.support_[j]]
    result: dict[str, Any] = {
        "selected": selected,
        "scores": estimator.scores_,
        "seconds": seconds["fit"],
        "n_iter": estimator.n_iter_,
        "converged": estimator.converged_,
        "loss": estimator.loss_,
        "bandwidth": estimator.bandwidth_,
        "permutation_gap": estimator.permutation_gap_,
        "p_value": estimator.p_value_,
        "ended_by_ties": estimator.ended_by_ties_,
        "n_runs": estimator.n_runs_,
        "n_samples": n,
        "n_features": d,
        "constant_features": estimator.constant_features_,
    }
    if source.names:
        result["selected_names"] = [source.names[j] for j in selected]
    if source.informative is not None:
        result |= agreement(selected, source.informative, estimator.gate_probabilities_)
    return result | {
        "seed": settings.get("random_state"),
        "settings": settings,
        "preset": args.preset,
        "backend": estimator.backend_,
        "engine": estimator.engine_,
        "input": source.described,
        "timings": seconds,
        "versions": versions(),
        "machine": machine(),
    }


def agreement(selected: Sequence[int], informative: Sequence[int], probability: Any) -> dict[str, float]:
    """Precision and recall of the selected set, and, with gate probabilities for membership, their soft forms."""
    from dufs_core.metrics import precision_recall, soft_precision_recall

    names = ("precision", "recall", "soft_precision", "soft_recall")
    hard = precision_recall(selected, informative)
    soft = soft_precision_recall(probability, informative)
    return dict(zip(names, (*hard, *soft), strict=True))


def summary(result: dict[str, Any], rows: Sequence[dict[str, Any]], out: str | None, written: Sequence[str]) -> str:
    """The result for reading: a table of the best features, and what there is to know about the fit."""
    n_selected, d = len(result["selected"]), result["n_features"]
    shown = rows[: min(_ROWS_SHOWN, max(n_selected + 3, 10))]
    width = min(40, max(4, *(len(row["name"]) for row in shown)))
    lines = [
        f"{result['input']['source']}: {result['n_samples']} samples, {d} features",
        "",
        f"rank   index  {'name':<{width}}       mu   P(open)  selected",
    ]
    for row in shown:
        name = row["name"] if len(row["name"]) <= width else row["name"][: width - 3] + "..."
        lines.append(
            f"{row['rank']:>4}  {row['index']:>6}  {name:<{width}}  {row['mu']:>7.3f}  "
            f"{row['probability']:>8.4f}  {'yes' if row['selected'] else 'no'}"
        )
    if len(rows) > len(shown):
        hidden = n_selected - len(shown)
        more = f", {hidden} of them selected" if hidden > 0 else ""
        lines.append(f" ...  {len(rows) - len(shown)} more{more}")
    if not result["n_iter"]:
        ending = "every feature is constant"
    elif result["converged"]:
        ending = "converged"
    else:
        ending = "NOT converged: some gates are undecided, see --max-iter"
    lines += [
        "",
        f"{n_selected} of {d} features selected in {result['n_iter']} steps, {result['seconds']:.2f} s; {ending}",
    ]
    p = f"p = {result['p_value']:.2g}" + (" of the ties in pairs" if result["ended_by_ties"] else "")
    lines.append(
        f"permutation gap {result['permutation_gap']:.3g}, {p}, "
        f"best of {result['n_runs']} run{'' if result['n_runs'] == 1 else 's'}"
    )
    if "precision" in result:
        lines.append(
            "precision {precision:.2f}, recall {recall:.2f}, soft precision {soft_precision:.2f}, "
            "soft recall {soft_recall:.2f}".format(**result)
        )
    if out is not None:
        lines.append(f"written to {out}: {', '.join(written)}")
    return "\n".join(lines)
