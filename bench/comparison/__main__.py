"""Run the packages beside each other: every cell of docs/comparison.md, with what was run and what came back.

    python -m bench.comparison [--only NAME ...] [--python PATH] [--venvs DIR] [--limit S] [--json FILE] [--pages]

For each package a fresh environment is made in DIR (kept, and used again), looked at, and asked by
`bench.comparison.probes` in processes of its own; where a package does not work as installed, a second environment with
what it lacks. --python: the probes run with that interpreter instead, and nothing is installed. Records of other
packages in FILE are kept. --pages: write the tables of docs/comparison.md and the page docs/comparison-evidence.md from
FILE, and run nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

from bench.common import save
from bench.comparison import environments, facts, pages
from bench.comparison.peers import PEERS

PARTS = ("inputs", "recovery", "memory")


def examine(name: str, python: Path | None, venvs: Path, limit: float) -> dict[str, Any]:
    """All records of one package."""
    peer = PEERS[name]
    found: dict[str, Any] = {"distribution": peer.distribution, "date": datetime.date.today().isoformat()}
    if python is None:
        python = environments.interpreter(venvs, name)
        for which in ("first", "second") if peer.adds else ("first",):
            folder = venvs / f"{name}-{which}"
            found[which] = json.loads((folder / "pip.json").read_text()) | environments.look(folder, name)
    for part in PARTS:
        found[part] = environments.probe(python, name, part, limit)
    return found | {"facts": facts.ask(python, name)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS), metavar="NAME")
    parser.add_argument("--python", type=Path, metavar="PATH")
    parser.add_argument("--venvs", type=Path, default=Path("build/comparison"), metavar="DIR")
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS", help="of one process of probes")
    parser.add_argument("--json", metavar="FILE", default="bench/results/comparison.json")
    parser.add_argument("--pages", action="store_true")
    arguments = parser.parse_args()
    file = Path(arguments.json)
    result: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"packages": {}}
    if arguments.pages:
        pages.write(result)
        return
    for name in arguments.only:
        result["packages"][name] = examine(name, arguments.python, arguments.venvs.resolve(), arguments.limit)
        save(arguments.json, {"packages": result["packages"], "refused": result.get("refused", {})})
        print(f"{name}: done", flush=True)
    if arguments.python is None:
        result["refused"] = environments.refusals(arguments.venvs.resolve())
        save(arguments.json, {"packages": result["packages"], "refused": result["refused"]})


if __name__ == "__main__":
    main()
