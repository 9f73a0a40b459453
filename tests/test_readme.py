"""The code that README and the first pages of the documentation show."""

from __future__ import annotations

import re
import shlex
import warnings
from pathlib import Path

import pytest

from dufs_core.cli.parser import build_parser

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="README.md is in the repository only")


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / file).read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    "file", ["README.md", "docs/index.md", "docs/quickstart.md", "docs/guide.md", "docs/messages.md"]
)
def test_python_runs(file, capsys, tmp_path, monkeypatch):
    """All blocks of a page in one namespace; what a comment says that a line prints, it prints."""
    code = blocks(file, "python")
    assert code
    monkeypatch.chdir(tmp_path)  # for the files that it writes
    namespace: dict[str, object] = {}
    with warnings.catch_warnings():
        for block in code:
            exec(compile(block, file, "exec"), namespace)
    printed = capsys.readouterr().out
    for said in re.findall(r"^print\(.*\)  # (\[.*\])$", "\n".join(code), re.MULTILINE):
        assert said in printed


def commands() -> list[tuple[str, list[str]]]:
    """Every `dufs-core` command line in a shell block of a page, as words."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        name = str(page.relative_to(ROOT))
        for block in blocks(name, "sh"):
            for line in block.splitlines():
                command = re.search(r"(?:^|&& |/)dufs-core (.*)", line)
                if command:
                    words = shlex.split(re.sub(r"\$\w+", "1", command[1].rstrip("& ")), comments=True)
                    found.append((name, words))
    return found


def test_commands_exist():
    found = commands()
    assert {"README.md", "docs/quickstart.md", "docs/batch-jobs.md"} <= {page for page, _ in found}
    for _, words in found:
        build_parser(words[0]).parse_args(words)  # one that is refused ends the test with the sentence
