"""A report as one HTML page: everything that comes from the user is escaped, pictures are in the page."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable
from functools import partial
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from dufs_core.data.accept import host_array
from dufs_core.errors import DufsWarning, user_stacklevel

if TYPE_CHECKING:
    from dufs_core.inspection.report import Report

_MOST_ROWS = 500  # of kept and of dropped features each
_HEADS = {
    "rank": "rank", "feature": "feature", "q_value": "q-value", "evidence": "evidence", "score": "score",
    "probability": "P(z &gt; 0)", "group": "group", "stability": "stability", "reason": "why",
}  # fmt: skip
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; } th, td { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } th { border-bottom: 1px solid #aaa; }
figure { margin: 1rem 0; } img { max-width: 100%; } figcaption, .more { color: #666; font-size: .9rem; }
code { overflow-wrap: anywhere; }
"""


def page(report: Report, selector: Any, X: Any, labels: Any) -> str:
    """The page of a report on `selector`, fitted on X."""
    kept = [row for row in report.rows if row["selected"]]
    dropped = [row for row in report.rows if not row["selected"]]
    names = {row["index"]: row["feature"] for row in report.rows}
    parts = [
        f"<h1>{escape(report.title)}</h1>",
        "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in report.notes) + "</ul>",
        *_pictures(selector, X, [names[k] for k in range(len(names))], labels),
        f"<h2>Kept ({len(kept)})</h2>", _table(kept),
    ]  # fmt: skip
    if report.groups:
        items = (", ".join(escape(names[k]) for k in group) for group in report.groups)
        parts += ["<h2>Groups of correlated features, best first</h2>",
                  "<ol>" + "".join(f"<li>{item}</li>" for item in items) + "</ol>"]  # fmt: skip
    parts += [f"<h2>Dropped ({len(dropped)})</h2>", _table(dropped), "<h2>Settings</h2>"]
    settings = (f"{name}={value!r}" for name, value in report.settings.items())
    parts.append(f"<p><code>{escape(', '.join(settings))}</code></p>")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f"<title>{escape(report.title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "<p>none</p>"
    columns = [name for name in _HEADS if name in rows[0] and any(row[name] is not None for row in rows)]
    head = "".join(f'<th class="{_kind(name)}">{_HEADS[name]}</th>' for name in columns)
    lines = [f"<table><thead><tr>{head}</tr></thead><tbody>"]
    for row in rows[:_MOST_ROWS]:
        cells = (f'<td class="{_kind(name)}">{escape(_cell(row[name]))}</td>' for name in columns)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    lines.append("</tbody></table>")
    if len(rows) > _MOST_ROWS:
        lines.append(f'<p class="more">and {len(rows) - _MOST_ROWS} more, lower in rank: report.frame() has all</p>')
    return "\n".join(lines)


def _kind(name: str) -> str:
    return "t" if name in ("feature", "reason") else "n"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _pictures(selector: Any, X: Any, names: list[str], labels: Any) -> list[str]:
    if find_spec("matplotlib") is None:
        return ["<p class=\"more\">Pictures need matplotlib: pip install 'dufs-core[plot]'</p>"]
    from dufs_core.inspection import plotting
    from dufs_core.inspection.plotting.canvas import figure

    first: list[Callable[..., Any]] = []
    if hasattr(selector, "lams_"):
        first = [partial(plotting.lambda_path, names=names), plotting.path_criterion]
    elif hasattr(selector, "history_"):
        first = [plotting.loss_and_gates]

    def fit(axes: Any) -> None:
        for draw, ax in zip([*first, plotting.ranked_scores], np.atleast_1d(axes), strict=True):
            draw(selector, ax)

    def data(axes: Any) -> None:
        plotting.spectrum(selector, X, axes[0])
        plotting.embedding(selector, X, labels, axes[1:])

    found = [_picture(figure(1, len(first) + 1), fit, "The fit")]
    if selector.support_.any() and host_array(X).shape[0] >= 3:  # as many eigenvectors
        what = "The random walk on the samples, and the samples in its eigenvectors, before and after the selection"
        found.append(_picture(figure(1, 3), data, what))
    return ["<h2>Pictures</h2>", *found]


def _picture(made: tuple[Any, Any], draw: Callable[[Any], None], what: str) -> str:
    """A picture inside the page; what keeps it from being drawn does not cost the report."""
    picture, axes = made
    try:
        draw(axes)
        buffer = io.BytesIO()
        picture.savefig(buffer, format="png", dpi=110)
    except Exception as error:
        warnings.warn(f"a picture of the report could not be drawn: {error}", DufsWarning, stacklevel=user_stacklevel())
        return f'<p class="more">{escape(what)}: could not be drawn ({escape(str(error))})</p>'
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<figure><img alt="{escape(what)}" src="data:image/png;base64,{data}"><figcaption>{escape(what)}'
        "</figcaption></figure>"
    )
