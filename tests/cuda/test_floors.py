"""The table of what a step must cost: it is the one in the documentation, and its launches are those of the engine."""

from __future__ import annotations

import numpy as np
import pytest

from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.gpu_dense import CudaEngine
from dufs_core.objective.optimizers import get_optimizer
from dufs_core.objective.protocol import RunSpec, Schedule

floors = pytest.importorskip("bench.floors", reason="bench/ is not beside the tests")
pytestmark = pytest.mark.cuda_launch


def test_the_evidence_has_the_table():
    page = floors.RESULTS.parents[1] / "evidence" / "gpu-floors.md"
    assert floors.table() in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("n", "d"), [(9, 4), (9, 140)])
def test_the_launches_of_a_step_are_counted(device, n, d):
    spec = RunSpec(Objective(), get_optimizer("normalized", 0.1), Schedule(1, 1, 0.0), 0, np.arange(d))
    X = device.xp.asarray(np.random.default_rng(0).normal(size=(n, d)))
    CudaEngine().steps(device, [spec], device.xp.full((1, d), 0.5)).advance(X, None, 1, 1)
    assert len(device.xp.launches) == floors.launches(n, d)
    assert floors.launches(4000, 1024) is None
