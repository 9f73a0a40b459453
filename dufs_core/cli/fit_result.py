"""What dufs-core fit prints and writes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dufs_core.cli.common import machine, versions

if TYPE_CHECKING:
    from dufs_core.cli.fit import Source

_ROWS_SHOWN = 20  # of the table of features


def feature_rows(estimator: Any, names: tuple[str, ...] | None) -> list[dict[str, Any]]:
    """One row per feature, best first; with decoys q_value and evidence, too."""
    decoys = estimator.fdr is not None
    return [
        {
            "index": int(j),
            "name": names[j] if names else f"x{j}",
            "rank": rank,
            "score": estimator.scores_[j],
            **({"q_value": estimator.q_values_[j], "evidence": estimator.evidence_[j]} if decoys else {}),
            "mu": estimator.mu_[j],
            "probability": estimator.gate_probabilities_[j],
            "selected": bool(estimator.support_[j]),
        }
        for rank, j in enumerate(estimator.order_, start=1)
    ]


def result_of(args: argparse.Namespace, estimator: Any, source: Source, seconds: dict[str, float]) -> dict[str, Any]:
    """What --json prints and result.json keeps."""
    n, d = source.X.shape
    settings = {k: v for k, v in estimator.get_params(deep=False).items() if k not in ("callbacks", "verbose")}
    selected = [int(j) for j in estimator.order_ if estimator.support_[j]]
    result: dict[str, Any] = {
        "selected": selected,
        "scores": estimator.scores_,
        "seconds": seconds["fit"],
        "n_iter": estimator.n_iter_,
        "converged": estimator.converged_,
        "loss": estimator.loss_,
        "bandwidth": estimator.bandwidth_,
        "fdr": estimator.fdr,
        **_judgement(estimator),
        "n_runs": estimator.n_runs_,
        "n_samples": n,
        "n_features": d,
        "constant_features": estimator.constant_features_,
    }
    if source.names:
        result["selected_names"] = [source.names[j] for j in selected]
    if source.informative is not None:
        gated = estimator.gate_probabilities_ if estimator.fdr is None else None  # with decoys few columns have a gate
        result |= agreement(selected, source.informative, gated)
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


def _judgement(estimator: Any) -> dict[str, Any]:
    """What says how far the selection can be trusted: the competition with decoys, or the permutation gap."""
    if estimator.fdr is None:
        return {
            "excess_score": estimator.excess_score_,
            "p_value": estimator.p_value_,
            "ended_by_ties": estimator.stopped_by_hsic_,
        }
    return {
        "q_values": estimator.q_values_,
        "evidence": estimator.evidence_,
        "smallest_fdr": estimator.smallest_fdr_,
        "n_found": int((estimator.q_values_ <= estimator.fdr).sum()),
        "n_decoys": len(estimator.decoy_evidence_),
        "lam": estimator.lam_,
    }


def agreement(selected: Sequence[int], informative: Sequence[int], probability: Any = None) -> dict[str, float]:
    """Precision and recall of the selected set, and, with gate probabilities for membership, their soft forms."""
    from dufs_core.inspection.metrics import precision_recall, soft_precision_recall

    found = dict(zip(("precision", "recall"), precision_recall(selected, informative), strict=True))
    if probability is not None:
        soft = soft_precision_recall(probability, informative)
        found |= dict(zip(("soft_precision", "soft_recall"), soft, strict=True))
    return found


def summary(result: dict[str, Any], rows: Sequence[dict[str, Any]], out: str | None, written: Sequence[str]) -> str:
    """The result for reading: a table of the best features, and what there is to know about the fit."""
    n_selected, d = len(result["selected"]), result["n_features"]
    heads = {"mu": "     mu", "probability": " P(open)"}
    if result["fdr"] is not None:
        heads = {"evidence": "evidence", "q_value": "q-value"}
    shown = rows[: min(_ROWS_SHOWN, max(n_selected + 3, 10))]
    width = min(40, max(4, *(len(row["name"]) for row in shown)))
    lines = [
        f"{result['input']['source']}: {result['n_samples']} samples, {d} features",
        "",
        f"rank   index  {'name':<{width}}  {'  '.join(heads.values())}  selected",
    ]
    for row in shown:
        name = row["name"] if len(row["name"]) <= width else row["name"][: width - 3] + "..."
        lines.append(
            f"{row['rank']:>4}  {row['index']:>6}  {name:<{width}}  {_numbers(row, heads)}  "
            f"{'yes' if row['selected'] else 'no'}"
        )
    if len(rows) > len(shown):
        hidden = n_selected - len(shown)
        more = f", {hidden} of them selected" if hidden > 0 else ""
        lines.append(f" ...  {len(rows) - len(shown)} more{more}")
    if len(result["constant_features"]) == d:
        ending = "every feature is constant"
    elif not result["n_iter"]:
        ending = "fewer than two features vary in enough samples to be judged"
    elif result["converged"]:
        ending = "converged"
    else:
        ending = "NOT converged: some gates are undecided, see --max-iter"
    lines += [
        "",
        f"{n_selected} of {d} features selected in {result['n_iter']} steps, {result['seconds']:.2f} s; {ending}",
    ]
    lines.append(_in_words(result))
    scores = ("precision", "recall", "soft_precision", "soft_recall")
    if known := [f"{name.replace('_', ' ')} {result[name]:.2f}" for name in scores if name in result]:
        lines.append(", ".join(known))
    if out is not None:
        lines.append(f"written to {out}: {', '.join(written)}")
    return "\n".join(lines)


def _numbers(row: dict[str, Any], heads: dict[str, str]) -> str:
    """The numbers of a row of the table, below their heads."""
    from dufs_core.selection.fit_warnings import rate_text

    texts = {
        "mu": "{:.3f}".format, "probability": "{:.4f}".format, "evidence": "{:.2f}".format, "q_value": rate_text,
    }  # fmt: skip
    return "  ".join(f"{texts[name](row[name]):>{len(head)}}" for name, head in heads.items())


def _in_words(result: dict[str, Any]) -> str:
    """`_judgement` in a line."""
    if result["fdr"] is None:
        p = f"p = {result['p_value']:.2g}" + (" of the ties in pairs" if result["ended_by_ties"] else "")
        runs = f"best of {result['n_runs']} run{'' if result['n_runs'] == 1 else 's'}"
        return f"permutation gap {result['excess_score']:.3g}, {p}, {runs}"
    from dufs_core.selection.fit_warnings import rate_text

    copies = "a shuffled copy" if result["n_decoys"] == 1 else f"{result['n_decoys']} shuffled copies"
    return (
        f"at a false discovery rate of {result['fdr']:g}: {result['n_found'] or 'none'} found, smallest q-value "
        f"{rate_text(result['smallest_fdr'])}, against {copies} of each feature"
    )
