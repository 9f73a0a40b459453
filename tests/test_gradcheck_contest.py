"""The contest of the checkers: its faults are faults, its right backwards are right, and what it counts."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mpmath", reason="the true derivatives are differences of its numbers")
contest = pytest.importorskip("bench.gradcheck_contest.__main__", reason="bench is not beside the tests")

from bench.gradcheck_contest import judging  # noqa: E402
from bench.gradcheck_contest.checkers import CHECKERS, Verdict  # noqa: E402
from bench.gradcheck_contest.planted import Functions  # noqa: E402
from bench.gradcheck_contest.points import NAMES  # noqa: E402
from bench.gradcheck_contest.problem import RIGHT  # noqa: E402


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("name", NAMES)
def test_right_backwards_are_right_and_every_fault_can_be_planted(name):
    group = Functions(name, 1)
    with group.planted(RIGHT) as problem:
        assert judging.kind_of_point(group, "plain 0", problem("plain 0")) == "smooth"
    for fault in group.faults:
        with group.planted(fault) as problem:
            assert problem("plain 0").inputs


@pytest.mark.parametrize("name", ["clip", "cumulative_product", "gather"])
def test_every_fault_is_shown_and_found_by_the_librarys_checker(name):
    group = Functions(name, 2)
    known = judging.truth(group)
    assert all(fault["shown"] for fault in known["faults"].values())
    result = judging.trial(group, CHECKERS["dufs_core.gradcheck"](), known)
    assert all(result["found"].values())
    assert result["said"]["wrong"] == result["said"]["raised"] == []


def test_an_alarm_at_the_right_backward_finds_nothing():
    group = Functions("clip", 1)
    result = judging.trial(group, lambda problem: Verdict("wrong"), judging.truth(group))
    assert not any(result["found"].values())
    assert len(result["said"]["wrong"]) == result["points"] == len(group.labels())


def test_a_kink_is_none_of_the_checkers_mistakes():
    known = {
        "group": "clip",
        "checker": "truth",
        "kinks": ["kink 0"],
        "faults": {"sign": {"shown": "x", "large": True}},
    }
    said = {"wrong": ["kink 0", "plain 0"], "kink": [], "raised": []}
    record = {"group": "clip", "checker": "central difference", "said": said, "found": {"sign": ""}, "seconds": [1, 2]}
    line = contest.table([known, record]).splitlines()[-1]
    assert line == "| central difference | 0 of 1 | 0 of 0 | 0 of 0 | 0 of 0 | 1 | 1 | 0 | 0 | 0 | 1.0 | 2.0 |"
