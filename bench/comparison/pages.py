"""The pages made from what was found: the tables of docs/comparison.md, and docs/comparison-evidence.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
INPUTS = (
    "fits",
    "constant column",
    "NaN",
    "infinity",
    "sparse X",
    "half of the rows equal",
    "one column of huge scale",
    "three rows",
    "integers",
    "float32",
    "DataFrame",
    "same seed, same result",
    "k = 1 gives 1 columns",
    "k = 3 gives 3 columns",
    "X as it was afterwards",
    "read-only X",
)
RESULTS = (
    "two moons found, 100 x 10",
    "two moons found, 100 x 50",
    "seconds, 100 x 10",
    "seconds, 100 x 50",
    "memory, 5000 x 50",
)
ITSELF = (
    "in a scikit-learn pipeline",
    "command line",
    "source speaks of CUDA",
    "source speaks of resuming",
    "source speaks of data on disk",
    "source speaks of sparse input",
    "source speaks of p-values",
)
METHOD = (
    "bandwidth",
    "neighbours",
    "power of the walk",
    "gate noise",
    "draws a step",
    "optimiser",
    "stops by itself",
    "several runs judged without labels",
)


def _plain(text: Any) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def cell(found: dict[str, Any], question: str) -> str:
    """The answers of all methods, equal ones once; why there is none otherwise."""
    records, failures = [], []
    for part in ("inputs", "recovery", "memory", "facts"):
        if isinstance(found.get(part), str):
            failures.append((part, found[part]))
        records += [r for r in found.get(part, []) if isinstance(r, dict) and r["question"] == question]
    if not records:
        expected = "facts" if question in (*ITSELF, *METHOD) else "inputs" if question in INPUTS else "recovery"
        expected = "memory" if question.startswith("memory") else expected
        return next((f"not run: {why}" for part, why in failures if part == expected), "-")
    answers: dict[str, list[str]] = {}
    for r in records:
        answers.setdefault(r["answer"], []).append(r["method"])
    if len(answers) == 1:
        return _plain(next(iter(answers)))
    return _plain("; ".join(f"{', '.join(methods)}: {answer}" for answer, methods in answers.items()))


def table(result: dict[str, Any], questions: tuple[str, ...], names: list[str]) -> str:
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {q} | " + " | ".join(cell(result["packages"][n], q) for n in names) + " |" for q in questions]
    return "\n".join(lines)


def installation(result: dict[str, Any]) -> str:
    """One row for each environment."""
    lines = [
        "| | asked of pip | version | pip's exit | imports | import, s | distributions | MB | licence (metadata) |",
        "|---" * 9 + "|",
    ]
    for name, found in result["packages"].items():
        for which in ("first", "second"):
            e = found.get(which)
            if e:
                asked = " ".join(e["asked"])
                cells = (
                    name,
                    f"`{asked}`",
                    e["version"],
                    e["exit"],
                    e["imports"],
                    e.get("import_s", "-"),
                    e["distributions"],
                    e["mb"],
                    e["licence"],
                )
                lines.append("| " + " | ".join(_plain(c) for c in cells) + " |")
    for name, e in result["refused"].items():
        lines.append(f"| {name} | `{' '.join(e['asked'])}` | - | {e['exit']} | {_plain(e['said'])} | - | - | - | - |")
    return "\n".join(lines)


def tables(result: dict[str, Any]) -> dict[str, str]:
    """Every generated table of docs/comparison.md, by the name in its marker."""
    names = list(result["packages"])
    gated = [n for n in names if n in ("dufs-core", "featselectlib")]
    return {
        "installation": installation(result),
        "inputs": table(result, INPUTS, names),
        "results": table(result, RESULTS, names),
        "itself": table(result, ITSELF, names),
        "method": table(result, METHOD, gated),
    }


def comparison(result: dict[str, Any], page: str) -> str:
    """The page with its tables replaced."""
    for name, text in tables(result).items():
        start, end = f"% table: {name}\n", "\n% end of table"
        before, rest = page.split(start)
        page = before + start + "\n" + text + "\n" + end + rest.split(end, 1)[1]
    return page


def evidence(result: dict[str, Any]) -> str:
    """What was run and what came back, for each package."""
    lines = [
        "# Evidence of the comparison",
        "",
        f"Made by `{result['command']}` from bench/results/comparison.json; see",
        "[Beside other packages](comparison.md). Each row is one call: the two moons are dufs_core.datasets.two_moons,",
        "100 x 10 unless stated.",
        "",
        f"How: {result['note']}.",
    ]
    for name, found in result["packages"].items():
        lines += ["", f"## {name}", "", f"{found['distribution']}, run on {found['date']}.", ""]
        lines += ["| question | method | answer | ran | came back |", "|---|---|---|---|---|"]
        lines += [_installed(which, found[which]) for which in ("first", "second") if found.get(which)]
        for part in ("facts", "inputs", "recovery", "memory"):
            if isinstance(found.get(part), str):
                lines.append(f"| {part} | | not run | | {_plain(found[part])} |")
                continue
            for r in found.get(part, []):
                values = [r[k] for k in ("question", "method", "answer")] + [f"`{r['ran']}`", f"`{r['came_back']}`"]
                lines.append("| " + " | ".join(_plain(v) for v in values) + " |")
    lines += ["", "## What pip refused", "", "| package | ran | exit | came back |", "|---|---|---|---|"]
    for name, e in result["refused"].items():
        lines.append(f"| {_plain(name)} | `pip install {' '.join(e['asked'])}` | {e['exit']} | `{_plain(e['said'])}` |")
    return "\n".join(lines) + "\n"


def _installed(which: str, e: dict[str, Any]) -> str:
    """The row of one environment."""
    took = f", {e['import_s']} s" if "import_s" in e else ""
    answer = f"exit {e['exit']}; imports: {e['imports']}{took}; {e['distributions']} distributions, {e['mb']} MB"
    answer += f"; version {e['version']}; licence: {e['licence']}"
    values = ("installation", f"{which} environment", answer, f"`pip install {' '.join(e['asked'])}`", f"`{e['said']}`")
    return "| " + " | ".join(_plain(v) for v in values) + " |"


def write(result: dict[str, Any]) -> None:
    """Both pages."""
    page = DOCS / "comparison.md"
    page.write_text(comparison(result, page.read_text("utf-8")), "utf-8")
    (DOCS / "comparison-evidence.md").write_text(evidence(result), "utf-8")
