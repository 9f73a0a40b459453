"""A report as one HTML page: text of users is escaped, pictures are embedded."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from importlib.util import find_spec
from string import Template
from typing import Any

import numpy as np

from dufs_core.data.accept import host_array
from dufs_core.errors import DufsWarning, user_stacklevel

Rows = Sequence[Mapping[str, Any]]
_MOST_ROWS = 500  # of kept and of dropped features each
_COLUMNS = ("rank", "feature", "q_value", "evidence", "score", "probability", "group", "stability", "reason")
_HEADS = {"q_value": "q-value", "probability": "P(z > 0)", "reason": "why"}
_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>$title</title><style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } th { border-bottom: 1px solid #aaa; }
img { max-width: 100%; } figcaption, .more { color: #666; } code { overflow-wrap: anywhere; }
</style></head>
<body>
<h1>$title</h1>
<ul>$notes</ul>
<h2>Pictures</h2>
$pictures
<h2>Kept ($n_kept)</h2>
$kept
<h2>Groups of correlated features, best first</h2>
$groups
<h2>Dropped ($n_dropped)</h2>
$dropped
<h2>Settings</h2>
<p><code>$settings</code></p>
</body>
</html>
""")
_FIGURE = Template('<figure><img alt="$what" src="data:image/png;base64,$data"><figcaption>$what</figcaption></figure>')


def page(title: str, notes: Sequence[str], rows: Rows, groups: Sequence[str], settings: str, pictures: str) -> str:
    """Fill in the page; `pictures` are HTML already."""
    kept, dropped = ([row for row in rows if row["selected"] == which] for which in (True, False))
    listed = f"<ol>{_items(groups)}</ol>" if groups else "<p>none</p>"
    texts = {"title": escape(title), "notes": _items(notes), "settings": escape(settings), "groups": listed}
    tables = {"kept": _table(kept), "n_kept": len(kept), "dropped": _table(dropped), "n_dropped": len(dropped)}
    return _PAGE.substitute(texts, **tables, pictures=pictures)


def _items(texts: Sequence[str]) -> str:
    return "".join(f"<li>{escape(text)}</li>" for text in texts)


def _table(rows: Rows) -> str:
    if not rows:
        return "<p>none</p>"
    shown = [name for name in _COLUMNS if any(row.get(name) is not None for row in rows)]
    kinds = ["t" if name in ("feature", "reason") else "n" for name in shown]  # text or numbers
    lines = [_line("th", kinds, [_HEADS.get(name, name) for name in shown])]
    lines += [_line("td", kinds, [_cell(row[name]) for name in shown]) for row in rows[:_MOST_ROWS]]
    table = "<table>{}</table>".format("\n".join(lines))
    if (more := len(rows) - _MOST_ROWS) > 0:
        table += f'\n<p class="more">and {more} more, lower in rank: report.frame() has all</p>'
    return table


def _line(tag: str, kinds: Sequence[str], texts: Sequence[str]) -> str:
    cells = (f'<{tag} class="{kind}">{escape(text)}</{tag}>' for kind, text in zip(kinds, texts, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def pictures(selector: Any, X: Any, names: Sequence[str], labels: Any) -> str:
    """Pictures of the fit, and of the data before and after the selection, as HTML."""
    if find_spec("matplotlib") is None:
        return "<p class=\"more\">Pictures need matplotlib: pip install 'dufs-core[plot]'</p>"
    from dufs_core.inspection import plotting

    own = [getattr(plotting, name) for name in selector._drawn().pictures]
    own = [partial(draw, names=names) if draw is plotting.lambda_path else draw for draw in own]
    fit = [*own, plotting.ranked_scores]

    def draw_fit(axes: Any) -> None:
        for draw, ax in zip(fit, np.atleast_1d(axes), strict=True):
            draw(selector, ax)

    def draw_data(axes: Any) -> None:
        plotting.spectrum(selector, X, axes[0])
        plotting.embedding(selector, X, labels, axes[1:])

    found = _picture(len(fit), draw_fit, "The fit")
    if selector.support_.any() and host_array(X).shape[0] >= 3:  # for three eigenvectors
        what = "The random walk on the samples, and the samples in its eigenvectors, before and after the selection"
        found += "\n" + _picture(3, draw_data, what)
    return found


def _picture(columns: int, draw: Callable[[Any], None], what: str) -> str:
    """A figure as HTML; if it cannot be drawn, a sentence and a warning."""
    from dufs_core.inspection.plotting.canvas import figure, png

    made, axes = figure(1, columns)
    try:
        draw(axes)
        return _FIGURE.substitute(what=escape(what), data=base64.b64encode(png(made, 110)).decode())
    except Exception as error:
        warnings.warn(f"a picture of the report could not be drawn: {error}", DufsWarning, stacklevel=user_stacklevel())
        return f'<p class="more">{escape(what)}: could not be drawn ({escape(str(error))})</p>'
