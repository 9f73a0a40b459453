"""Readings of the package's own source: size, imports, promises, density. No rules: to be compared before and after.

python -m bench.readings [--against DIR] [--json FILE]        DIR: another checkout
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.common import save

ROOT = Path(__file__).resolve().parents[1]
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip
_LONG = 40  # lines of a function
_PROMISES = """
import inspect, json, sys, warnings
warnings.simplefilter("ignore")
import dufs_core
from dufs_core.datasets import two_moons
found = {}
for name in ("DUFS", "GatedLaplacian"):
    kind = getattr(dufs_core, name, None)
    if kind is None:
        continue
    fitted = kind(random_state=0, backend="numpy").fit(two_moons(60, 6, random_state=0).X)
    attributes = {n for n in dir(fitted) if n.endswith("_") and not n.startswith("_")}
    attributes.add("feature_names_in_")
    found[name] = {"parameters": len(inspect.signature(kind).parameters), "attributes": len(attributes)}
print(json.dumps(found))
"""


def product(root: Path) -> Iterator[Path]:
    """The files that are installed."""
    yield from (path for path in sorted((root / "dufs_core").rglob("*.py")) if "kernels" not in path.parts)
    yield from sorted((root / "kernels").glob("*.py"))


def imported(tree: ast.Module, names: set[str]) -> set[str]:
    """The modules of the package that one module imports, wherever."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dufs_core"):
            whole = {f"{node.module}.{alias.name}" for alias in node.names} & names
            found |= whole or {str(node.module)}
    return found


def parallel_assignments(tree: ast.Module) -> int:
    """Assignments of several values to several names; those that only unpack one value are none."""
    assigned = (node for node in ast.walk(tree) if isinstance(node, ast.Assign))
    return sum(isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple) for node in assigned)


def readings(root: Path) -> dict[str, Any]:
    """All readings of one checkout."""
    paths = list(product(root))
    names = {".".join(path.relative_to(root).with_suffix("").parts) for path in paths}
    tokens = lines = characters = comments = assignments = long = 0
    imports: dict[str, int] = {}
    for path in paths:
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        documented: set[int] = set()
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                documented |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            if isinstance(node, ast.FunctionDef):
                doc = ast.get_docstring(node, clean=False)
                length = (node.end_lineno or 0) - node.lineno + 1 - (doc.count("\n") + 1 if doc else 0)
                long += length > _LONG
        with path.open("rb") as file:
            parts = list(tokenize.tokenize(file.readline))
        tokens += sum(part.type not in _LAYOUT for part in parts)
        comments += len({part.start[0] for part in parts if part.type == tokenize.COMMENT})
        code = [s for i, line in enumerate(text.splitlines(), 1) if (s := line.strip()) and i not in documented]
        code = [line for line in code if not line.startswith("#")]
        lines += len(code)
        characters += sum(map(len, code))
        assignments += parallel_assignments(tree)
        imports[str(path.relative_to(root))] = len(imported(tree, names))
    most = max(imports, key=lambda name: imports[name])
    promises = subprocess.run([sys.executable, "-c", _PROMISES], cwd=root, capture_output=True, text=True, check=True)
    return {
        "tokens": tokens,
        "files": len(paths),
        "most modules imported by one": [imports[most], most],
        "code lines": lines,
        "characters a code line": round(characters / lines, 1),
        "comment lines, share": round(comments / lines, 4),
        "parallel assignments per 1,000 lines": round(1000 * assignments / lines, 1),
        f"functions above {_LONG} lines": long,
        **json.loads(promises.stdout.splitlines()[-1]),
    }


def main(argv: list[str] | None = None) -> None:
    """Print the readings, of another checkout beside them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="DIR", type=Path)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    now = readings(ROOT)
    before = readings(args.against.resolve()) if args.against else {}
    for name, value in now.items():
        print(f"{name:40} {before.get(name, '')!s:>60} {value!s:>60}" if before else f"{name:40} {value}")
    save(args.json, {"now": now, "before": before})


if __name__ == "__main__":
    main()
