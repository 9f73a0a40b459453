"""The documentation site: `python -m sphinx -W --keep-going docs site`.

Sphinx, because it is maintained and reads both kinds of text that are here: Markdown pages (MyST) and numpydoc
docstrings. Docstrings are written to be read as they stand in the source, with equations as indented lines and names
like mu_; `as_written` keeps them so on the page.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

from dufs_core import __version__

os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # this environment's dufs-core
os.environ["COLUMNS"] = "100"  # of the help texts
warnings.filterwarnings("ignore", "CuPy cannot be used")  # installed for tests, on a machine without a GPU

project = "dufs-core"
author = "The dufs-core developers"
copyright = f"2026, {author}"
version = release = __version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.programoutput",
]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"dufs-core {__version__}"
default_role = "code"
highlight_language = "text"
exclude_patterns = ["gallery"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
python_maximum_signature_line_length = 100
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"\.py$",
    "abort_on_example_error": True,
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": 60,
    "write_computation_times": False,
    "remove_config_comments": True,
}

DOCS = Path(__file__).parent
BENCH = DOCS.parent / "bench"
_CODE = re.compile(r"(``.+?``|`[^`]+`)")
_TEXT_SECTIONS = ("Notes", "Examples", "References")


def as_written(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Indented lines of a docstring become literal blocks; outside them *, | and a final _ lose their meaning."""
    out: list[str] = []
    base, literal, after_blank = 0, False, True  # base is 4 in sections whose items have descriptions
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.strip():
            indent = len(line) - len(line.lstrip())
            if len(following) >= 3 and set(following) == {"-"}:
                base = 0 if line in _TEXT_SECTIONS else 4
            inside, literal = literal, indent >= base + 4 and (literal or after_blank)
            if literal and not inside:
                out += [" " * base + "::", ""]
            if base == 4 and indent == 0:  # "name : type", which numpydoc reads
                name_, colon, type_ = line.partition(" : ")
                line = name_ + colon + _escaped(type_)
            elif not literal and not line.lstrip().startswith((">>>", "...")):
                line = _escaped(line)
        after_blank = not line.strip()
        out.append(line)
    lines[:] = out


def _escaped(line: str) -> str:
    bullet = re.match(r" *\* ", line)
    start = bullet.end() if bullet else 0
    parts = _CODE.split(line[start:])
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", re.sub(r"([*|])", r"\\\1", parts[i]))
    return line[:start] + "".join(parts)


def evidence(app: Any, config: Any) -> None:
    """What bench/ has in Markdown becomes pages of the site, in docs/bench/, with links as they are from there."""
    for source in [*BENCH.glob("evidence/*.md"), *BENCH.glob("results/*.md")]:
        text = source.read_text("utf-8").replace("](../../docs/", "](../../")
        text = text.replace("](../README.md", "](../../benchmarks.md")
        text = re.sub(r"\]\(\.\./results/([\w-]+\.png)", r"](../../../bench/results/\1", text)
        title = "" if text.startswith("#") else f"# {source.stem}\n\n"
        page = DOCS / "bench" / source.relative_to(BENCH)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"---\norphan: true\n---\n{title}{text}", "utf-8")


def to_evidence(app: Any, page: str, source: list[str]) -> None:
    """Links from the pages to bench/, as the repository has them, lead to these copies."""
    source[0] = re.sub(r"\]\((?:\.\./)+bench/([\w/-]+\.md)", r"](/bench/\1", source[0])


def setup(app: Any) -> None:
    app.connect("config-inited", evidence)
    app.connect("source-read", to_evidence)
    app.connect("autodoc-process-docstring", as_written, priority=400)
