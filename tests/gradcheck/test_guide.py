"""The guide's code runs and prints what the guide says."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "gradient-guide.md"


@pytest.mark.skipif(not GUIDE.exists(), reason="the documentation is not beside the tests")
def test_guide():
    text = GUIDE.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    prints = [block.strip() for block in re.findall(r"```text\n(.*?)```", text, re.S)]
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(block, names)
        if out.getvalue():
            said = prints.pop(0)
            assert _essence(said) == _essence(out.getvalue())
    assert names
    assert not prints


@pytest.mark.skipif(not GUIDE.exists(), reason="the documentation is not beside the tests")
def test_ten_minutes(tmp_path):
    """The test of the guide's first example fails with the message that is shown, and passes after the correction."""
    text = GUIDE.read_text(encoding="utf-8")
    test, corrected = re.findall(r"```python\n(.*?)```", text, re.S)[:2]
    said = re.search(r"```console\n(.*?)\n```", text, re.S)[1]
    wrong = _pytest(tmp_path / "test_layer.py", test)
    for line in said.splitlines():
        assert _essence(line.removesuffix(" ...")) in _essence(wrong)
    assert "1 passed" in _pytest(tmp_path / "test_layer.py", test + corrected)


def _pytest(file, source):
    file.write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file.name]
    return subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=60).stdout


def _essence(text: str) -> str:
    """The text without what depends on the processor's rounding: last digits and tiny errors."""
    text = re.sub(r"(\d\.\d{4})\d+", r"\1", text.strip())
    return re.sub(r"\d\.\d\de-1\d|below \de-1\d", "", text)
