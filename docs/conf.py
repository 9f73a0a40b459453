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


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", as_written, priority=400)
