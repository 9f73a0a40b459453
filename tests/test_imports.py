"""The one-way rule of imports, read from the source: docs/contributing.md has the folders and their contracts."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dufs_core

ROOT = Path(dufs_core.__file__).parent
ORDER = ("errors", "backend", "data", "objective", "training", "significance", "selection", "baselines", "inspection",
         "cli")  # fmt: skip
PLACES = {"_version": "errors", "datasets": "data", "anndata": "selection", "__main__": "cli"}  # single modules
SEEN_BY = {  # of what stands beside the line: who may import it; and what it may import
    "kernels": ({"kernels", "backend", "objective", "cli"}, {"kernels", "errors", "backend", "objective"}),
    "gradcheck": ({"gradcheck", "cli"}, {"gradcheck", "errors", "backend", "data", "objective", "baselines"}),
}
# What may be imported inside a function: what the first fit needs, compiled code, CuPy, engines and pictures. The
# command line, which answers --help at once, imports everything so.
LAZY = (
    "dufs_core.selection.fit",
    "dufs_core.selection.checkpoint",
    "dufs_core.objective.chain",
    "dufs_core.selection.decoys.competition",
    "dufs_core.selection.decoys.explanation",
    "dufs_core.selection.gates.search",
    "dufs_core.selection.gates.explanation",
    "dufs_core.kernels",
    "dufs_core.backend.cupy",
    "dufs_core.objective.engines.",
    "dufs_core.inspection.",
)


def modules():
    """Name -> syntax tree of every module but the package's own __init__, whose names load at first use."""
    found = {}
    for path in sorted({*ROOT.rglob("*.py"), *(ROOT / "kernels").rglob("*.py")}):  # a link, in a checkout
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(("dufs_core", *(parts[:-1] if parts[-1] == "__init__" else parts)))
        if name != "dufs_core":
            found[name] = ast.parse(path.read_text("utf-8"))
    return found


MODULES = modules()


def imports(tree, in_function=False):
    """(target module of dufs_core, whether inside a function); imports for type checkers alone are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dufs_core"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (full if full in MODULES else node.module), in_function
        elif isinstance(node, ast.Import):
            yield from ((a.name, in_function) for a in node.names if a.name.startswith("dufs_core"))
        else:
            inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, inside)


def place(module):
    part = module.split(".")[1] if "." in module else "errors"  # the package itself: its version
    return PLACES.get(part, part)


def allowed(source, target):
    a, b = place(source), place(target)
    for beside, (importers, imported) in SEEN_BY.items():
        if b == beside:
            return a in importers
        if a == beside:
            return b in imported
    return ORDER.index(b) <= ORDER.index(a)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module):
    wrong = {target for target, _ in imports(MODULES[module]) if not allowed(module, target)}
    assert not wrong, f"{module} imports {sorted(wrong)}: the order is {' < '.join(ORDER)}"


@pytest.mark.parametrize("module", MODULES)
def test_only_the_optional_or_slow_is_imported_inside_functions(module):
    wrong = {t for t, inside in imports(MODULES[module]) if inside and not t.startswith(LAZY)}
    assert place(module) == "cli" or not wrong, f"{module}: move {sorted(wrong)} to the top"


def test_no_circles():
    """Also none through imports inside functions."""
    edges = {m: {t for t, _ in imports(tree) if t in MODULES and t != m} for m, tree in MODULES.items()}
    edges["dufs_core.kernels.native"].remove("dufs_core.kernels.compile")  # only where code is not in the cache
    while edges:
        leaves = {m for m, targets in edges.items() if not targets & edges.keys()}
        assert leaves, f"each of these imports another of them: {sorted(edges)}"
        edges = {m: targets for m, targets in edges.items() if m not in leaves}


def test_few_modules_are_loaded_before_the_first_fit():
    code = "from dufs_core import DUFS; import sys; print(*(m for m in sys.modules if m.startswith('dufs_core')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(loaded) <= 20, sorted(loaded)
