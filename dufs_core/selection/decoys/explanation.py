"""What a competition with decoys found, in words."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, Context
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.errors import DegenerateBandwidthWarning, DufsWarning, isolated_rows
from dufs_core.objective.chain import Objective, OpenGraph
from dufs_core.selection.base import Explanation
from dufs_core.selection.explanation import COMPLEMENTING, ISOLATED_SHARE, features, sentences


def is_judged(selector: Any) -> Array:
    """Mask (d,) of the columns that competed with decoys."""
    return ~np.isnan(selector.decoy_evidence_).any(axis=0)


def rate_text(rate: float) -> str:
    """A false discovery rate in three digits, rounded up: at this rate, too, what it belongs to is found."""
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(float(rate)))):g}"


def shuffled_copies(count: int) -> str:
    """The number of decoys of each feature in words."""
    return "a shuffled copy" if count == 1 else f"{count} shuffled copies"


def doubt_of_decoys(judged: Any) -> str | None:
    """That no column was found at the rate asked for, and at which one would be.

    judged: `dufs_core.selection.decoys.competition.Judgement`.
    """
    q = judged.q_values
    if np.isnan(judged.decoy_evidence).all():
        return (
            f"No feature was judged: fewer than two of {len(q)} differ from their median in at least 3 rows (in "
            f"groups, within them; of series, freed of the past), and others cannot be told from their shuffled "
            f"copies. More rows are needed, or GatedLaplacian, which has no copies."
        )
    if (q <= judged.fdr).any():
        return None
    other = "No rate finds any: no column is told from its shuffled copies"
    if q.min() < 1:
        rate = rate_text(q.min())
        other = f"At fdr={rate} {int((q <= float(rate)).sum())} would be found"
    return (
        f"No feature was found at a false discovery rate of {judged.fdr:g}. {other}. That can be the answer. "
        f"More rows show weaker structure, and n_features_to_select takes the best of the ranking all the same."
    )


def doubts_of_graph(objective: Objective, graph: OpenGraph) -> Iterator[DufsWarning]:
    """What is doubtful about the graph that columns are scored on, made by the rules of an objective."""
    rule = objective.bandwidth
    neighbors = objective.n_neighbors
    if graph.isolated > ISOLATED_SHARE:
        said = f"On the graph of the columns found {graph.isolated:.0%} of the rows have no neighbour within the "
        said += f"bandwidth (b = {graph.bandwidth:.3g}), which turns the score into plain variance"
        yield isolated_rows(said, rule, objective.bandwidth_factor, neighbors)
    if graph.degenerate:
        yield DegenerateBandwidthWarning(
            f"On the graph of the columns found the bandwidth rule {rule!r} gave 0 (duplicate rows) and a substitute "
            f"was used. A larger n_neighbors (now {neighbors}) looks past the duplicates."
        )


def explain(selector: Any) -> Explanation:
    """The competition of a fitted `dufs_core.DUFS`, column by column and as a whole."""
    judged = is_judged(selector)
    numbers = {
        "q_value": np.where(judged, selector.q_values_, np.nan),
        "evidence": np.where(judged, selector.evidence_, np.nan),
    }
    reasons = [_reason(selector, judged, k) for k in range(len(judged))]
    order = f"{COMPLEMENTING}, not by evidence" if selector.ranking == "diverse" else None
    notes = [*_notes(selector, judged), *sentences(selector.diagnosis_)]
    return Explanation(reasons, notes, numbers, order, False, False)


def _reason(selector: Any, judged: Array, k: int) -> str:
    if not judged.any():
        return "not judged: fewer than two features vary in enough rows"
    if not judged[k]:
        more = ", or it remembers more of its past than could be taken out" if selector.rows == "series" else ""
        return f"not judged: in too few rows it differs from its median to be told from shuffled copies{more}"
    q = selector.q_values_[k]
    evidence = selector.evidence_[k]
    best_decoy = selector.decoy_evidence_[:, k].max()
    own, best = _told_apart(evidence, best_decoy)
    if evidence <= best_decoy and q > selector.fdr_:
        return f"beaten by a decoy: evidence {own}, its decoys up to {best}"
    verdict = "found" if q <= selector.fdr_ else f"not found at fdr {selector.fdr_:g}"
    return f"{verdict}, q = {rate_text(q)}: evidence {own}, its decoys at most {best}"


def _told_apart(a: float, b: float) -> tuple[str, str]:
    """Two numbers with three digits, or more if they would look equal."""
    digits = next((digits for digits in (3, 6, 17) if f"{a:.{digits}g}" != f"{b:.{digits}g}"), 3)
    return f"{a:.{digits}g}", f"{b:.{digits}g}"


def _notes(selector: Any, judged: Array) -> list[str]:
    q, fdr = selector.q_values_, selector.fdr_
    of_rows = [selector.rows_.sentence] if selector.rows_.sentence else []
    if not judged.any():
        return ["Nothing was judged: a competition needs two features that vary in enough rows.", *of_rows]

    # what was found at this rate, and at which other rate something would be
    smallest = float(q.min())
    found = int((q <= fdr).sum())
    against = f"{shuffled_copies(len(selector.decoy_evidence_))} of each feature"
    if found:
        share = "in expectation at most this share of them is independent of all other features"
        least = f"the smallest q-value is {rate_text(smallest)}, from a competition with {against}"
        notes = [f"{features(found, 'is', 'are')} found at a false discovery rate of {fdr:g}: {share} ({least})."]
    else:
        at = f"the smallest rate that finds any is {rate_text(smallest)}" if smallest < 1 else "no rate finds any"
        notes = [f"No feature is found at a false discovery rate of {fdr:g} ({at}), in a competition with {against}."]

    # what a number of columns that was asked for adds
    chosen = selector.support_
    if beyond := int((chosen & (q > fdr)).sum()):
        what = f"{beyond} of the {int(chosen.sum())}" if beyond < chosen.sum() else "All"
        wanted = f"n_features_to_select={selector.n_features_to_select}"
        notes.append(f"{what} selected features are so for {wanted} alone: at this rate they are not found.")

    if is_open := int(selector.in_graph_.sum()):
        notes.append(f"Scores are those on the graph of {features(is_open)}.")
    varying = len(q) - len(selector.constant_features_)
    if judged.sum() < varying:
        some = features(varying - int(judged.sum()), "is", "are")
        notes.append(f"{some} not judged: such features differ from their median in too few rows.")
    return [*notes, *of_rows]
