"""The pages that compare packages say what bench/results/comparison.json says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE = ROOT / "bench" / "results" / "comparison.json"
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="bench/ and docs/ are in the repository only")


@pytest.fixture(scope="module")
def result():
    return json.loads(FILE.read_text("utf-8"))


def test_tables_are_what_was_found(result):
    from bench.comparison import pages

    page = (ROOT / "docs" / "comparison.md").read_text("utf-8")
    assert pages.comparison(result, page) == page
    assert (ROOT / "docs" / "comparison-evidence.md").read_text("utf-8") == pages.evidence(result)


def test_nothing_else_on_the_page_is_a_table(result):
    """A table written by hand would have no evidence."""
    from bench.comparison import pages

    page = (ROOT / "docs" / "comparison.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    made = "\n".join(pages.tables(result).values()).splitlines()
    assert rows == made


def test_every_row_of_the_installation_table_has_its_evidence(result):
    from bench.comparison import pages

    page = pages.evidence(result)
    environments = [found[w] for found in result["packages"].values() for w in ("first", "second") if found.get(w)]
    for e in [*environments, *result["refused"].values()]:
        assert f"`pip install {' '.join(e['asked'])}`" in page
        assert pages._plain(e["said"]) in page
    assert result["note"] in page


def test_every_record_has_its_evidence(result):
    for name, found in result["packages"].items():
        for part in ("inputs", "recovery", "memory", "facts"):
            assert found[part], (name, part)
            for record in found[part] if isinstance(found[part], list) else []:
                assert all(record[k] for k in ("question", "answer", "ran", "came_back")), (name, record)
