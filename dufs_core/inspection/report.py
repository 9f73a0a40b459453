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
from dufs_core.inspection.fitted import host_data
from dufs_core.selection.base import Explanation, check_fitted, names_of
from dufs_core.selection.explanation import features

_MOST_ROWS = 1024  # for correlations: one of 0.9 has a standard error of 0.006
_MOST_COLUMNS = 2000  # the time of more grows like their square
_BLOCK = 256  # columns whose correlations with all others are computed at once


@dataclass(frozen=True)
class Report:
    """A selection explained; made by `report`.

    Attributes
    ----------
    title : str
    rows : list of dict
        One for every feature, best first: feature, index, rank, selected, reason, score, q_value and evidence (with
        decoys; None where not judged), mu and probability (None without a gate), group (of the 2000 best selected
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
    explained = selector._explanation(n)
    reasons = _reasons(selector, explained)
    rows = []
    for rank, k in enumerate(map(int, selector.order_), start=1):
        row = {"feature": str(names[k]), "index": k, "rank": rank, "selected": bool(selector.support_[k])}
        row |= {"reason": reasons[k], "score": float(selector.scores_[k])}
        for name, values in explained.numbers.items():
            row[name] = None if np.isnan(values[k]) else float(values[k])
        row |= {"group": group_of.get(k), "group_best": bool(best[k])}
        rows.append(row if shares is None else row | {"stability": float(shares[k])})
    several = [group for group in groups if len(group) > 1]
    settings = {k: v for k, v in selector.get_params(deep=False).items() if k not in ("callbacks", "verbose")}
    title = f"{type(selector).__name__}: {len(ranked)} of {d} features selected from {n} samples"
    notes = [*explained.notes, *_notes(selector, explained, several, correlated, n)]
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


def _reasons(selector: Any, explained: Explanation) -> list[str]:
    """Why each feature was kept or dropped, (d,)."""
    reasons = list(explained.reasons)
    for k in selector.constant_features_:
        reasons[k] = "constant: all its values are equal"
    support, by_number = selector.support_, selector.n_features_to_select is not None
    if not (by_number or explained.always_by_number):
        return reasons

    # a number of features was asked for: where each ranks, and whether a tie decided
    rank, scores, order = selector.ranking_, selector.scores_, selector.order_
    wanted = int(support.sum())
    tied = np.zeros(len(rank), dtype=bool)
    if explained.ties_by_index and 0 < wanted < len(rank):
        at_the_cut = scores[order[wanted]]
        tied = (scores == at_the_cut) & (scores[order[wanted - 1]] == at_the_cut)
    for k in range(len(rank)):
        reasons[k] += f"; rank {rank[k]} is {'among' if support[k] else 'beyond'} the best {wanted}"
        reasons[k] += ", by a tie at the cut: of equal scores the lower column index comes first" if tied[k] else ""
    return reasons


def _notes(selector: Any, explained: Explanation, groups: list[list[int]], correlated: float, n: int) -> list[str]:
    """Sentences about the columns of any selection."""
    selected, notes = int(selector.support_.sum()), []
    if hasattr(selector, "backend_"):
        by = f"by the engine {selector.engine_} " if hasattr(selector, "engine_") else ""
        notes.append(f"Computed {by}on {selector.backend_}.")
    if selected and explained.order is not None:
        notes.append(f"Selected features are ranked {explained.order}.")
    if constant := len(selector.constant_features_):
        notes.append(f"{features(constant, 'is', 'are')} constant.")
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
