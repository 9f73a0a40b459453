"""What the documentation must have, seen without building it; `.ci/run` builds it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from dufs_core import __version__, errors

DOCS = Path(__file__).parents[1] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="docs/ is in the repository only")
PUBLIC = (
    "dufs_core",
    "dufs_core.anndata",
    "dufs_core.baselines",
    "dufs_core.datasets",
    "dufs_core.errors",
    "dufs_core.gradcheck",
    "dufs_core.cli.sweep",
    "dufs_core.inspection.metrics",
    "dufs_core.inspection.plotting",
    "dufs_core.inspection.spectral",
)


def reference() -> str:
    return "\n".join(page.read_text("utf-8") for page in sorted((DOCS / "reference").glob("*.md")))


def names(module: str) -> list[str]:
    """What a module offers: `__all__`, or what it defines without a leading underscore."""
    loaded = importlib.import_module(module)
    if hasattr(loaded, "__all__"):
        return list(loaded.__all__)
    return [
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module
    ]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module):
    text = reference()
    if re.search(rf"automodule:: {re.escape(module)}\n   :members:", text):
        return
    missing = [name for name in names(module) if not re.search(rf":: {re.escape(module)}\.{name}$", text, re.MULTILINE)]
    assert not missing


def test_every_name_in_the_reference_exists_and_has_a_docstring():
    for kind, name in re.findall(r"auto(class|function|exception|module):: (\S+)", reference()):
        module, _, attribute = name.rpartition(".")
        value = (
            importlib.import_module(name) if kind == "module" else getattr(importlib.import_module(module), attribute)
        )
        assert inspect.getdoc(value), name


def test_every_warning_is_explained():
    text = (DOCS / "messages.md").read_text("utf-8")
    for name in names(errors.__name__):
        if inspect.isclass(getattr(errors, name)) and name != "DufsError":
            assert re.search(rf"(### |`){name}\b", text), name


def test_the_citation_has_the_version():
    assert f"\nversion: {__version__}\n" in (DOCS.parent / "CITATION.cff").read_text("utf-8")


def test_gallery_scripts_are_short_and_draw():
    scripts = sorted((DOCS / "gallery").glob("plot_*.py"))
    assert len(scripts) >= 5
    for script in scripts:
        source = script.read_text("utf-8")
        assert source.count("\n") <= 40, script.name
        assert "plt.show()" in source
        assert ast.get_docstring(ast.parse(source)), script.name


def test_operations_are_in_the_equations():
    text = (DOCS / "equations.md").read_text("utf-8")
    objective = (DOCS.parent / "dufs_core" / "objective" / "chain.py").read_text("utf-8")
    chain = re.search(r"from dufs_core\.objective\.ops import \(([^)]*)\)", objective)
    assert chain
    for operation in re.findall(r"\w+", chain[1]):
        assert f"`ops/{operation}.py`" in text
