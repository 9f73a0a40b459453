"""What a selector kept and dropped, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.data.accept import dense_part, host_array, some_rows
from dufs_core.data.dense import not_finite
from dufs_core.objective.protocol import undecided
from dufs_core.selection.base import check_fitted, names_of
from dufs_core.selection.fit_warnings import rate_text
from dufs_core.selection.graph_rules import order_of
from dufs_core.selection.search import excess_threshold

CORRELATED = 0.9
_MOST_ROWS = 1024  # that correlations are computed from: one of 0.9 has a standard error of 0.006
_MOST_COLUMNS = 2000  # the time of more grows like their square
_SURE = 0.05
_BLOCK = 256  # columns whose correlations with all others are computed at once
_LEFT_OUT = ("constant_features_", "excluded_features_")


@dataclass(frozen=True)
class Report:
    """A selection explained; made by `report`.

    Attributes
    ----------
    rows : list of dict
        A row for every feature, best first: feature, index, rank, selected, reason, score, q_value and evidence (with
        decoys; None where a feature was not judged), probability (DUFS only; None where no gate was given), group,
        group_best, stability (where given). Features of a group are correlated; group_best says whether a feature is
        the best-ranked one of its group. Features that are not selected, or rank behind 2000 selected ones, have the
        group None.
    groups : list of list of int
        Column indices of every group of two or more, best first.
    notes : list of str
        What there is to know about the fit, a sentence each.
    settings : dict
        Parameters of the selector.
    one_per_group : ndarray (n_features,) of bool
        Of the 2000 best selected features those that correlate with no better one: ``X[:, report.one_per_group]``.
    title : str
    """

    title: str
    rows: list[dict[str, Any]]
    groups: list[list[int]]
    notes: list[str]
    settings: dict[str, Any]
    one_per_group: Array
    _drawn: Any = field(repr=False)  # selector, X and labels, for the pictures of the page

    def frame(self) -> Any:
        """The rows as a pandas data frame. Raises ImportError, saying what to install, without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("a data frame needs pandas: pip install pandas; report.rows has the same rows") from error
        frame = pandas.DataFrame(self.rows)
        frame["group"] = frame["group"].astype("Int64")
        return frame

    def text(self, most: int = 30) -> str:
        """The report for reading; of kept and of dropped features at most `most` each."""
        kept = [row for row in self.rows if row["selected"]]
        dropped = [row for row in self.rows if not row["selected"]]
        lines = [self.title, "", *self.notes]
        for what, rows in (("kept", kept), ("dropped", dropped)):
            lines += ["", f"{what} ({len(rows)}):"]
            width = max((len(row["feature"]) for row in rows[:most]), default=0)
            lines += [f"  {row['rank']:>5}  {row['feature']:<{width}}  {row['reason']}" for row in rows[:most]]
            if len(rows) > most:
                lines.append(f"  ... and {len(rows) - most} more, lower in rank")
        if self.groups:
            names = {row["index"]: row["feature"] for row in self.rows}
            lines += ["", "groups of correlated features, best first:"]
            lines += [f"  {', '.join(names[k] for k in group)}" for group in self.groups]
        lines += ["", "settings: " + ", ".join(f"{name}={value!r}" for name, value in self.settings.items())]
        return "\n".join(lines)

    def html(self) -> str:
        """One page that needs no other file; with pictures where matplotlib is installed."""
        from dufs_core.inspection.html import page

        return page(self, *self._drawn)

    def __str__(self) -> str:
        return self.text()


def report(
    selector: Any,
    X: Any,
    *,
    names: Sequence[Any] | None = None,
    correlated: float = CORRELATED,
    stability: Any = None,
    labels: Any = None,
) -> Report:
    """Explain a selection: what was kept and dropped and why, and which of the selected features are redundant.

    Groups: going through the selected features from the best, one joins the group of the first better feature whose
    correlation with it has at least the size `correlated`, or else begins a group. So the best of all groups are not
    correlated with each other, and every other selected feature is with one of them. Only the 2000 best are compared.

    Parameters
    ----------
    selector : DUFS, LambdaPath, or a selector of `dufs_core.baselines`
        Fitted.
    X : array-like (n_samples, n_features)
        The data it was fitted on, in any container that `fit` takes. Of more than 1024 rows so many are used for
        correlations.
    names : sequence, optional
        Of the features; by default those of the fit, or x0, x1, ...
    correlated : float, default 0.9
    stability : Stability or array-like (n_features,), optional
        Result of `dufs_core.stability_selection`, or the share of repeated fits that selected each feature.
    labels : array-like (n_samples,), optional
        Colours of the page's picture of the rows.

    Returns
    -------
    Report

    Raises
    ------
    NotFittedError
        If the selector is not fitted.
    ValueError
        If X, names or stability do not belong to the selector's features, X holds NaN or infinite values in selected
        columns, or `correlated` is not a share.

    Examples
    --------
    >>> from dufs_core import DUFS, report
    >>> from dufs_core.datasets import two_moons
    >>> X = two_moons(n_features=10).X
    >>> report(DUFS(random_state=0).fit(X), X).rows[0]["reason"].partition(",")[0]  # its q-value follows
    'found'
    """
    check_fitted(selector)
    d, shape = len(selector.support_), host_array(X).shape
    if len(shape) != 2 or shape[1] != d:
        raise ValueError(f"X must have the {d} features that the selector was fitted on; its shape is {shape}")
    if not 0 < correlated <= 1:
        raise ValueError(f"correlated is the size of a correlation, above 0 and at most 1; got {correlated!r}")
    if names is None:
        found = names_of(selector)
        names = [f"x{k}" for k in range(d)] if found is None else found
    shares = None if stability is None else np.asarray(getattr(stability, "frequencies", stability), dtype=float)
    for what, values in (("names", names), ("stability", shares)):
        if values is not None and len(values) != d:
            raise ValueError(f"{what} must have {d} entries, one for each feature; got {len(values)}")

    ranked = [int(k) for k in selector.order_ if selector.support_[k]]
    groups = _groups(X, ranked[:_MOST_COLUMNS], correlated)
    group_of = {k: number for number, group in enumerate(groups, start=1) for k in group}
    best = np.zeros(d, dtype=bool)
    best[[group[0] for group in groups]] = True
    competed = hasattr(selector, "q_values_")
    judged = ~np.isnan(selector.decoy_evidence_).any(axis=0) if competed else np.ones(d, dtype=bool)
    reasons = _reasons(selector) if not competed else _reasons_with_decoys(selector, judged)
    gated = np.ones(d, dtype=bool)
    if competed:  # the probabilities of the others only say that they have none
        gated[[*selector.constant_features_, *selector.excluded_features_]] = False
    rows = []
    for rank, k in enumerate(map(int, selector.order_), start=1):
        row: dict[str, Any] = {
            "feature": str(names[k]), "index": k, "rank": rank, "selected": bool(selector.support_[k]),
            "reason": reasons[k], "score": float(selector.scores_[k]),
        }  # fmt: skip
        if competed:
            row |= {
                "q_value": float(selector.q_values_[k]) if judged[k] else None,
                "evidence": float(selector.evidence_[k]) if judged[k] else None,
            }
        if hasattr(selector, "gate_probabilities_"):
            row["probability"] = float(selector.gate_probabilities_[k]) if gated[k] else None
        row |= {"group": group_of.get(k), "group_best": bool(best[k])}
        if shares is not None:
            row["stability"] = float(shares[k])
        rows.append(row)
    several = [group for group in groups if len(group) > 1]
    settings = {k: v for k, v in selector.get_params(deep=False).items() if k not in ("callbacks", "verbose")}
    title = f"{type(selector).__name__}: {len(ranked)} of {d} features selected from {shape[0]} samples"
    notes = _notes(selector, several, correlated, min(shape[0], _MOST_ROWS), shape[0])
    if len(ranked) > _MOST_COLUMNS:
        notes.append(
            f"Only the best {_MOST_COLUMNS} of the {len(ranked)} selected features were compared with each other: the "
            f"others have no group, and report.one_per_group leaves them out."
        )
    return Report(title, rows, several, notes, settings, best, (selector, X, labels))


def _groups(X: Any, ranked: list[int], correlated: float) -> list[list[int]]:
    """Groups of the columns `ranked` (best first), the best of a group first; see `report`."""
    if not ranked:
        return []
    rows = some_rows(host_array(X).shape[0], _MOST_ROWS)
    Z = dense_part(X, rows, np.array(ranked))  # (n, m), a copy
    if not (finite := np.isfinite(Z)).all():
        raise not_finite(int((~finite).sum()), Z.size, min(np.array(ranked)[~finite.all(axis=0)]))
    Z /= np.maximum(abs(Z).max(axis=0), np.finfo(float).tiny)
    Z -= Z.mean(axis=0)
    norm = np.linalg.norm(Z, axis=0)
    Z /= np.where(norm > 0, norm, 1)
    columns, groups = np.array(ranked), []
    while len(columns):
        r = abs(Z[:, :_BLOCK].T @ Z)
        free = np.ones(len(columns), dtype=bool)
        for i in range(len(r)):
            if free[i]:
                joins = free & (r[i] >= correlated - 1e-12)
                joins[i] = True  # a column that does not vary in these rows correlates with nothing, itself included
                groups.append([int(k) for k in columns[joins]])
                free &= ~joins
        Z, columns = Z[:, free], columns[free]
    return groups


def _reasons(selector: Any) -> list[str]:
    """Why each feature was kept or dropped, (d,)."""
    support, scores, ranking = selector.support_, selector.scores_, selector.order_
    d, wanted = len(support), int(support.sum())
    gated = hasattr(selector, "mu_")  # scores are mu then
    rank = np.empty(d, dtype=int)
    rank[ranking] = np.arange(1, d + 1)
    constant, aside = (np.isin(np.arange(d), getattr(selector, name, [])) for name in _LEFT_OUT)
    turning = undecided(scores, selector.gate_sigma) if hasattr(selector, "gate_sigma") else np.zeros(d, dtype=bool)
    by_number = not gated or selector.n_features_to_select is not None
    tied = np.zeros(d, dtype=bool)
    by_scores = _order(selector) == "gates"
    if by_number and by_scores and 0 < wanted < d and scores[ranking[wanted - 1]] == scores[ranking[wanted]]:
        tied = scores == scores[ranking[wanted]]
    reasons = []
    for k in range(d):
        if constant[k]:
            reason = "constant: all its values are equal"
        elif aside[k]:
            reason = "took no part in the run that was kept; ranked by the first run"
        elif gated:
            reason = f"gate open: mu = {scores[k]:.2f} > 0" if scores[k] > 0 else f"gate closed: mu = {scores[k]:.2f}"
            if hasattr(selector, "gate_probabilities_"):
                reason += f", P(z > 0) = {selector.gate_probabilities_[k]:.3f}"
            reason += ", undecided" if turning[k] else ""
        else:
            reason = f"score {scores[k]:.4g}"
        if by_number:
            reason += _by_number(rank[k], support[k], wanted)
        if tied[k]:
            reason += ", by a tie at the cut: of equal scores the lower column index comes first"
        reasons.append(reason)
    return reasons


def _by_number(rank: int, chosen: bool, wanted: int) -> str:
    return f"; rank {rank} is {'among' if chosen else 'beyond'} the best {wanted}"


def _order(selector: Any) -> str:
    """What comes first among the selected columns; a path and baselines have one order."""
    return order_of(selector) if hasattr(selector, "fdr") else "gates"


def _reasons_with_decoys(selector: Any, judged: Array) -> list[str]:
    """Why each feature was found or not, (d,); judged (d,) bool."""
    support, q, evidence = selector.support_, selector.q_values_, selector.evidence_
    best_decoy = selector.decoy_evidence_.max(axis=0)
    d, wanted = len(support), int(support.sum())
    rank = selector.ranking_
    constant = np.isin(np.arange(d), selector.constant_features_)
    reasons = []
    for k in range(d):
        own, best = _told_apart(evidence[k], best_decoy[k])
        compared = f"evidence {own}, its decoys {{}} {best}"
        if constant[k]:
            reason = "constant: all its values are equal"
        elif not judged.any():
            reason = "not judged: fewer than two features vary in enough rows"
        elif not judged[k]:
            reason = "not judged: in too few rows it differs from its median to be told from shuffled copies"
        elif q[k] <= selector.fdr:
            reason = f"found, q = {rate_text(q[k])}: {compared.format('at most')}"
        elif evidence[k] > best_decoy[k]:
            reason = f"not found at fdr {selector.fdr:g}, q = {rate_text(q[k])}: {compared.format('at most')}"
        else:
            reason = f"beaten by a decoy: {compared.format('up to')}"
        if selector.n_features_to_select is not None:
            reason += _by_number(rank[k], support[k], wanted)
        reasons.append(reason)
    return reasons


def _told_apart(a: float, b: float) -> tuple[str, str]:
    """Two numbers in three digits, or as many as tell them apart."""
    for digits in (3, 6, 17):
        texts = f"{a:.{digits}g}", f"{b:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return f"{a:.3g}", f"{b:.3g}"


def _notes_with_decoys(selector: Any) -> list[str]:
    """What there is to know about a fit in which decoys competed."""
    q, fdr, smallest = selector.q_values_, selector.fdr, selector.smallest_fdr_
    varying = len(q) - len(selector.constant_features_)
    found, judged = int((q <= fdr).sum()), int((~np.isnan(selector.decoy_evidence_)).all(axis=0).sum())
    copies = len(selector.decoy_evidence_)
    against = f"{copies} shuffled copies of each feature" if copies > 1 else "a shuffled copy of each feature"
    notes = []
    if not judged:
        notes.append("Nothing was judged: a competition needs two features that vary in enough rows.")
    elif found:
        notes.append(
            f"{_features(found)} found at a false discovery rate of {fdr:g}: in expectation at most this share of "
            f"them is independent of all other features (the smallest q-value is {rate_text(smallest)}, from a "
            f"competition with {against})."
        )
    else:
        at = f"the smallest rate that finds any is {rate_text(smallest)}" if smallest < 1 else "no rate finds any"
        notes.append(
            f"No feature is found at a false discovery rate of {fdr:g} ({at}), in a competition with {against}."
        )
    chosen = selector.support_
    if beyond := int((chosen & (q > fdr)).sum()):
        what = f"{beyond} of the {int(chosen.sum())}" if beyond < chosen.sum() else "All"
        notes.append(
            f"{what} selected features are so for n_features_to_select={selector.n_features_to_select} alone: at this "
            f"rate they are not found."
        )
    if judged:
        given = varying - len(selector.excluded_features_)
        steps = f"{selector.n_iter_} steps; {_features(given, verb=False) if given else 'no feature'} with a gate"
        if selector.converged_:
            notes.append(f"Converged ({steps}).")
        else:
            notes.append(f"Not converged ({steps}): some gates are undecided; a larger max_iter lets them decide.")
        order = {"diverse": "what they say together (representatives)", "gates": "their gates"}
        if chosen.any() and (by := order.get(_order(selector))):
            notes.append(f"Selected features are ranked by {by}, not by evidence.")
    if 0 < judged < varying:
        notes.append(
            f"{_features(varying - judged)} not judged: such features differ from their median in too few rows."
        )
    notes.append(f"Computed by the engine {selector.engine_} on {selector.backend_}.")
    return notes


def _features(count: int, verb: bool = True) -> str:
    return f"{count} feature{'' if count == 1 else 's'}" + (f" {'is' if count == 1 else 'are'}" if verb else "")


def _notes(selector: Any, groups: list[list[int]], correlated: float, used: int, n: int) -> list[str]:
    """What there is to know about the fit."""
    notes = []
    if hasattr(selector, "lams_"):
        best, p = selector.best_index_, selector.p_value_[selector.best_index_]
        notes.append(f"The price lam = {selector.lams_[best]:.3g} is the best of {len(selector.lams_)}.")
        if best == 0 and len(selector.lams_) > 1:
            notes.append("It is the lowest of them: lower ones (lams=...) may be better, and keep more features.")
        verdict = "more structure than" if p <= _SURE else "no more structure than"
        notes.append(f"On held-out rows its columns have {verdict} the same columns shuffled (p = {p:.2g}).")
    elif hasattr(selector, "q_values_"):
        notes += _notes_with_decoys(selector)
    elif hasattr(selector, "mu_"):
        steps = f"{selector.n_iter_} steps; the best of {selector.n_runs_} run" + "s" * (selector.n_runs_ > 1)
        if selector.converged_:
            notes.append(f"Converged ({steps}).")
        else:
            notes.append(f"Not converged ({steps}): some gates are undecided; a larger max_iter lets them decide.")
        gap, p = selector.excess_score_, selector.p_value_
        if selector.stopped_by_hsic_:
            tie = "Each open column depends on another one more than the strongest pair of shuffled columns does"
            notes.append(f"{tie} (p = {p:.2g}; permutation gap {gap:.3f}).")
        else:
            asked = excess_threshold(int((selector.mu_ > 0).sum()), n)
            sure = "more" if gap >= asked else "slightly more"
            verdict = f"{sure if p <= _SURE else 'no more'} structure than the same columns shuffled"
            notes.append(f"The open columns have {verdict} (permutation gap {gap:.3g}, p = {p:.2g}).")
            if p <= _SURE and gap < asked:
                notes.append(
                    f"A convincing gap of so many columns is {asked:.3f}, since columns chosen from many have some by "
                    f"chance: see whether other rows confirm the selection (LambdaPath, stability_selection)."
                )
        if aside := len(getattr(selector, "excluded_features_", [])):
            looked = len(selector.mu_) - aside - len(selector.constant_features_)
            notes.append(
                f"The run that was kept looked at the {looked} columns that depend most on another one; the {aside} "
                f"others rank behind them, in the order of the first run."
            )
        if _order(selector) == "diverse":
            notes.append("Open features are ranked by what they say together (representatives), not by mu.")
        notes.append(f"Computed by the engine {selector.engine_} on {selector.backend_}.")
    if constant := len(getattr(selector, "constant_features_", [])):
        notes.append(f"{constant} feature{'s are' if constant > 1 else ' is'} constant.")
    if not selector.support_.any():
        notes.append("Nothing is selected: set n_features_to_select to take the best of the ranking.")
    elif groups:
        spare = sum(map(len, groups)) - len(groups)
        notes.append(
            f"{spare} of the selected features correlate with a better one, |r| >= {correlated:g}: "
            f"report.one_per_group is the selection without them."
        )
    else:
        notes.append(f"No two selected features correlate (|r| >= {correlated:g}).")
    if used < n:
        notes.append(f"Correlations are those of {used} of the {n} samples, drawn without replacement.")
    return notes
