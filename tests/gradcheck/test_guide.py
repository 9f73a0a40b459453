"""The guide's code runs and prints what the guide says."""

from __future__ import annotations

import contextlib
import io
import re
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
            # last digits depend on the processor's rounding: compare the words, and the numbers to 5 digits
            assert re.sub(r"\d\.\d\de-1\d", "small", _short(said)) == re.sub(
                r"\d\.\d\de-1\d", "small", _short(out.getvalue())
            )


def _short(text: str) -> str:
    return re.sub(r"(\d\.\d{4})\d+", r"\1", text.strip())
