"""Report on a selection: the features kept and dropped, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.data.accept import dense_part, host_array, some_rows
from dufs_core.data.dense import not_finite
from dufs_core.errors import printable
from dufs_core.inspection import html as html_page
from dufs_core.inspection.fitted import column_mask, host_data, is_judged, order_rule, selector_kind, shuffled_copies
from dufs_core.objective.protocol import undecided
from dufs_core.selection.base import check_fitted, names_of
from dufs_core.selection.fit_warnings import rate_text
from dufs_core.selection.search import excess_threshold

_MOST_ROWS = 1024  # for correlations: one of 0.9 has a standard error of 0.006
_MOST_COLUMNS = 2000  # the time of more grows like their square
_SURE = 0.05
_BLOCK = 256  # columns whose correlations with all others are computed at once


@dataclass(frozen=True)
class Report:
    """A selection explained; made by `report`.

    Attributes
    ----------
    title : str
    rows : list of dict
        One for every feature, best first: feature, index, rank, selected, reason, score, q_value and evidence (with
        decoys; None where not judged), probability (DUFS only; None without a gate), group (of the 2000 best selected
        features, else None), group_best (first in its group), stability (where given).
    groups : list of list of int
        Columns of every group of two or more correlated features, best first.
    notes : list of str
        Sentences about the fit.
    settings : dict
        Parameters of the selector.
    one_per_group : ndarray (n_features,) of bool
        The best of every group: ``X[:, report.one_per_group]``.
    """

    title: str
    rows: list[dict[str, Any]]
    groups: list[list[int]]
    notes: list[str]
    settings: dict[str, Any]
    one_per_group: Array
    _drawn: Any = field(repr=False)  # selector, X and labels, for the pictures of the page

    def frame(self) -> Any:
        """The rows as a pandas data frame. Raises ImportError without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("a data frame needs pandas: pip install pandas; report.rows has the same rows") from error
        frame = pandas.DataFrame(self.rows)
        frame["group"] = frame["group"].astype("Int64")
        return frame

    def text(self, most: int = 30) -> str:
        """The report as text, with at most `most` kept and `most` dropped features."""
        lines = [self.title, "", *self.notes]
        for what, kept in (("kept", True), ("dropped", False)):
            rows = [row for row in self.rows if row["selected"] == kept]
            shown = [(row, printable(row["feature"])) for row in rows[:most]]
            width = max((len(name) for _, name in shown), default=0)
            lines += ["", f"{what} ({len(rows)}):"]
            lines += [f"  {row['rank']:>5}  {name:<{width}}  {row['reason']}" for row, name in shown]
            if len(rows) > most:
                lines.append(f"  ... and {len(rows) - most} more, lower in rank")
        if self.groups:
            lines += ["", "groups of correlated features, best first:"]
            lines += [f"  {printable(group)}" for group in self._named_groups()]
        return "\n".join([*lines, "", f"settings: {self._settings_text()}"])

    def html(self) -> str:
        """The report as one HTML page, with pictures inside it if matplotlib is installed."""
        selector, X, labels = self._drawn
        names = [row["feature"] for row in sorted(self.rows, key=itemgetter("index"))]
        pictures = html_page.pictures(selector, X, names, labels)
        return html_page.page(self.title, self.notes, self.rows, self._named_groups(), self._settings_text(), pictures)

    def _named_groups(self) -> list[str]:
        names = {row["index"]: row["feature"] for row in self.rows}
        return [", ".join(names[k] for k in group) for group in self.groups]

    def _settings_text(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.settings.items())

    __str__ = text


def report(
    selector: Any,
    X: Any,
    *,
    names: Sequence[Any] | None = None,
    correlated: float = 0.9,
    stability: Any = None,
    labels: Any = None,
) -> Report:
    """Explain a selection: the features kept and dropped, why, and which of the selected ones are redundant.

    Groups are greedy: from the best feature on, each joins the first group whose best feature has a correlation of at
    least `correlated` in size with it, or begins a new one. Only the 2000 best selected features are compared.

    Parameters
    ----------
    selector : DUFS, LambdaPath, or a selector of `dufs_core.baselines`
        Fitted, else NotFittedError.
    X : array-like (n_samples, n_features)
        The data of the fit, in any container accepted by `fit`. Correlations are those of at most 1024 rows.
    names : sequence, optional
        Names of the features; by default those of the fit, or x0, x1, ...
    correlated : float in (0, 1], default 0.9
    stability : Stability or array-like (n_features,), optional
        From `dufs_core.stability_selection`, or the share of repeated fits that selected each feature.
    labels : array-like (n_samples,), optional
        Colours of the samples in the picture of the page.

    Raises
    ------
    ValueError
        If X, names or stability do not fit the selector's features, or selected columns of X have NaN or infinities.

    Examples
    --------
    >>> from dufs_core import DUFS, report
    >>> from dufs_core.datasets import two_moons
    >>> X = two_moons(n_features=10).X
    >>> report(DUFS(random_state=0).fit(X), X).rows[0]["reason"].partition(",")[0]  # its q-value follows
    'found'
    """
    check_fitted(selector)
    d, n = len(selector.support_), host_data(selector, X).shape[0]
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
    kind, reasons, gated = selector_kind(selector), _reasons(selector), np.ones(d, dtype=bool)
    optional: dict[str, tuple[Array, Array]] = {}  # values (d,), and where they mean something
    if kind == "decoys":
        judged = is_judged(selector)
        gated = ~(column_mask(selector, "constant_features_") | column_mask(selector, "excluded_features_"))
        optional = {"q_value": (selector.q_values_, judged), "evidence": (selector.evidence_, judged)}
    if kind in ("decoys", "gates"):
        optional["probability"] = (selector.gate_probabilities_, gated)
    rows = []
    for rank, k in enumerate(map(int, selector.order_), start=1):
        row = {"feature": str(names[k]), "index": k, "rank": rank, "selected": bool(selector.support_[k])}
        row |= {"reason": reasons[k], "score": float(selector.scores_[k])}
        row |= {name: float(values[k]) if known[k] else None for name, (values, known) in optional.items()}
        row |= {"group": group_of.get(k), "group_best": bool(best[k])}
        rows.append(row if shares is None else row | {"stability": float(shares[k])})
    several = [group for group in groups if len(group) > 1]
    settings = {k: v for k, v in selector.get_params(deep=False).items() if k not in ("callbacks", "verbose")}
    title = f"{type(selector).__name__}: {len(ranked)} of {d} features selected from {n} samples"
    notes = _notes(selector, several, correlated, n)
    return Report(title, rows, several, notes, settings, best, (selector, X, labels))


def _groups(X: Any, ranked: list[int], correlated: float) -> list[list[int]]:
    """Groups among the columns `ranked` (best first); see `report`."""
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
    kind, support, wanted = selector_kind(selector), selector.support_, int(selector.support_.sum())
    rank, scores, order = selector.ranking_, selector.scores_, selector.order_
    took_part = is_judged(selector) if kind == "decoys" else ~column_mask(selector, "excluded_features_")
    reasons = [_reason(selector, kind, k, took_part) for k in range(len(support))]
    for j in np.flatnonzero(column_mask(selector, "constant_features_")):
        reasons[j] = "constant: all its values are equal"
    if kind == "scores" or selector.n_features_to_select is not None:
        tied = np.zeros(len(rank), dtype=bool)
        if kind != "decoys" and order_rule(selector) == "gates" and 0 < wanted < len(rank):
            at_the_cut = scores[order[wanted]]
            tied = (scores == at_the_cut) & (scores[order[wanted - 1]] == at_the_cut)
        for k in range(len(rank)):
            reasons[k] += f"; rank {rank[k]} is {'among' if support[k] else 'beyond'} the best {wanted}"
            reasons[k] += ", by a tie at the cut: of equal scores the lower column index comes first" if tied[k] else ""
    return reasons


def _reason(selector: Any, kind: str, k: int, took_part: Array) -> str:
    """The reason of feature k, by its competition with decoys, its gate or its score."""
    score = selector.scores_[k]
    if kind == "decoys":
        if not took_part.any():
            return "not judged: fewer than two features vary in enough rows"
        if not took_part[k]:
            return "not judged: in too few rows it differs from its median to be told from shuffled copies"
        q, evidence, best_decoy = selector.q_values_[k], selector.evidence_[k], selector.decoy_evidence_[:, k].max()
        own, best = _told_apart(evidence, best_decoy)
        if evidence <= best_decoy and q > selector.fdr:
            return f"beaten by a decoy: evidence {own}, its decoys up to {best}"
        verdict = "found" if q <= selector.fdr else f"not found at fdr {selector.fdr:g}"
        return f"{verdict}, q = {rate_text(q)}: evidence {own}, its decoys at most {best}"
    if not took_part[k]:
        return "took no part in the run that was kept; ranked by the first run"
    if kind == "scores":
        return f"score {score:.4g}"
    reason = f"gate open: mu = {score:.2f} > 0" if score > 0 else f"gate closed: mu = {score:.2f}"
    if kind == "gates":
        reason += f", P(z > 0) = {selector.gate_probabilities_[k]:.3f}"
        reason += ", undecided" if undecided(score, selector.gate_sigma) else ""
    return reason


def _told_apart(a: float, b: float) -> tuple[str, str]:
    """Two numbers with three digits, or more if they would look equal."""
    digits = next((digits for digits in (3, 6, 17) if f"{a:.{digits}g}" != f"{b:.{digits}g}"), 3)
    return f"{a:.{digits}g}", f"{b:.{digits}g}"


def fit_notes(selector: Any, n: int) -> list[str]:
    """Sentences about a fit on n rows: its end, and how far the selection can be trusted."""
    by_kind = {"decoys": _decoy_notes, "gates": _gate_notes, "path": _path_notes}
    kind = selector_kind(selector)
    return by_kind[kind](selector, n) if kind in by_kind else []


def _notes(selector: Any, groups: list[list[int]], correlated: float, n: int) -> list[str]:
    kind, selected, notes = selector_kind(selector), int(selector.support_.sum()), fit_notes(selector, n)
    if kind in ("decoys", "gates"):
        notes.append(f"Computed by the engine {selector.engine_} on {selector.backend_}.")
    usual, rule = "evidence" if kind == "decoys" else "gates", order_rule(selector)
    if selected and rule != usual:
        by = "so that the first few complement each other" if rule == "diverse" else f"by {rule}"
        notes.append(f"Selected features are ranked {by}, not by {usual}.")
    if constant := len(selector.constant_features_):
        notes.append(f"{_features(constant, 'is', 'are')} constant.")
    if not selected:
        notes.append("Nothing is selected: set n_features_to_select to take the best of the ranking.")
    elif groups:
        notes.append(
            f"{sum(map(len, groups)) - len(groups)} of the selected features correlate with a better one, "
            f"|r| >= {correlated:g}: report.one_per_group is the selection without them."
        )
    else:
        notes.append(f"No two selected features correlate (|r| >= {correlated:g}).")
    if n > _MOST_ROWS:
        notes.append(f"Correlations are those of {_MOST_ROWS} of the {n} samples, drawn without replacement.")
    if selected > _MOST_COLUMNS:
        compared = f"Only the best {_MOST_COLUMNS} of the {selected} selected features were compared with each other"
        notes.append(f"{compared}: the others have no group, and are not in report.one_per_group.")
    return notes


def _path_notes(path: Any, n: int) -> list[str]:
    best, p = path.best_index_, path.p_value_[path.best_index_]
    notes = [f"lam = {path.lams_[best]:.3g} is the best of {len(path.lams_)} values."]
    if best == 0 and len(path.lams_) > 1:
        notes.append("It is the lowest of them: lower ones (lams=...) may be better, and keep more features.")
    more = f"{'more' if p <= _SURE else 'no more'} structure than the same columns shuffled"
    return [*notes, f"On held-out rows its columns have {more} (p = {p:.2g})."]


def _convergence(selector: Any, steps: str) -> str:
    if selector.converged_:
        return f"Converged ({steps})."
    return f"Not converged ({steps}): some gates are undecided; a larger max_iter lets them decide."


def _gate_notes(selector: Any, n: int) -> list[str]:
    excess, p, runs = selector.excess_score_, selector.p_value_, selector.n_runs_
    notes = [_convergence(selector, f"{selector.n_iter_} steps; the best of {runs} run" + "s" * (runs > 1))]
    if selector.stopped_by_hsic_:
        pairs = "Each open column depends on another one more than the strongest pair of shuffled columns does"
        notes.append(f"{pairs} (pairwise HSIC, p = {p:.2g}; excess score {excess:.3f}).")
    else:
        threshold = excess_threshold(int((selector.mu_ > 0).sum()), n)
        verdict = "no more" if p > _SURE else "more" if excess >= threshold else "slightly more"
        test = f"excess score {excess:.3g}, p = {p:.2g}"
        notes.append(f"The open columns have {verdict} structure than the same columns shuffled ({test}).")
        if verdict == "slightly more":
            notes.append(
                f"Convincing for so many columns is an excess score of {threshold:.3f}, since by chance columns chosen "
                "from many have some excess: confirm them on other rows (LambdaPath, stability_selection)."
            )
    if aside := len(selector.excluded_features_):
        looked = len(selector.mu_) - aside - len(selector.constant_features_)
        kept = f"The run that was kept had gates for the {looked} columns that depend most on another one"
        notes.append(f"{kept}; the other {aside} rank after them, in the order of the first run.")
    return notes


def _decoy_notes(selector: Any, n: int) -> list[str]:
    q, fdr, smallest, chosen = selector.q_values_, selector.fdr, selector.smallest_fdr_, selector.support_
    varying, judged = len(q) - len(selector.constant_features_), int(is_judged(selector).sum())
    found, against = int((q <= fdr).sum()), f"{shuffled_copies(len(selector.decoy_evidence_))} of each feature"
    if not judged:
        return ["Nothing was judged: a competition needs two features that vary in enough rows."]
    if found:
        share = "in expectation at most this share of them is independent of all other features"
        least = f"the smallest q-value is {rate_text(smallest)}, from a competition with {against}"
        notes = [f"{_features(found, 'is', 'are')} found at a false discovery rate of {fdr:g}: {share} ({least})."]
    else:
        at = f"the smallest rate that finds any is {rate_text(smallest)}" if smallest < 1 else "no rate finds any"
        notes = [f"No feature is found at a false discovery rate of {fdr:g} ({at}), in a competition with {against}."]
    if beyond := int((chosen & (q > fdr)).sum()):
        what = f"{beyond} of the {int(chosen.sum())}" if beyond < chosen.sum() else "All"
        wanted = f"n_features_to_select={selector.n_features_to_select}"
        notes.append(f"{what} selected features are so for {wanted} alone: at this rate they are not found.")
    given = varying - len(selector.excluded_features_)
    gates = _features(given) if given else "no feature"
    notes.append(_convergence(selector, f"{selector.n_iter_} steps; {gates} with a gate"))
    if judged < varying:
        some = _features(varying - judged, "is", "are")
        notes.append(f"{some} not judged: such features differ from their median in too few rows.")
    return notes


def _features(count: int, singular: str = "", plural: str = "") -> str:
    return f"1 feature {singular}".rstrip() if count == 1 else f"{count} features {plural}".rstrip()
