"""The streaming engine where it differs from the dense one: many groups of rows, threads, interruption, the choice."""

from __future__ import annotations

import generators as gen
import numpy as np
import pytest
from generators import gated

from dufs_core import Conventions, GatedLaplacian
from dufs_core.backend import get_backend
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.choose import get_engine, predicted_bytes
from dufs_core.objective.engines.cpu_streaming import StreamingEngine
from dufs_core.objective.engines.reference import ReferenceEngine
from dufs_core.objective.protocol import StepSize

bk = get_backend("numpy")


def problem(n, d, draws=2, dtype=np.float64):
    arrays = np.full(d, 0.5), gen.draws(d, d, count=draws), gen.noise(n, d, seed=n)
    return [a.astype(dtype) for a in arrays]


@pytest.mark.parametrize(("n", "d", "t"), [(257, 130, 2), (700, 7, 3), (300, 64, 1), (1100, 3, 2)])
def test_many_groups(n, d, t):
    """More rows than a group, a block and a float32 sum have; more columns than a block of them."""
    arrays = problem(n, d)
    for rule, self_loops in (("median", True), ("max", True), ("q90", False), (2.0 * d, True)):
        objective = Objective(power=t, bandwidth=rule, self_loops=self_loops, lam=0.1)
        value, dmu = ReferenceEngine()(bk, objective, *arrays)
        other, other_dmu = StreamingEngine(1)(bk, objective, *arrays)
        gen.assert_close(
            other.score, value.score, 1e-13 if self_loops else 1e-12
        )  # without self-loops its terms cancel
        gen.assert_close(other.bandwidth, value.bandwidth, 1e-13)
        assert np.linalg.norm(other_dmu - dmu) <= 1e-12 * np.linalg.norm(dmu)


def test_any_number_of_threads_gives_the_same_bits():
    arrays = problem(1500, 5, draws=1, dtype=np.float32)
    (value, dmu), *others = (StreamingEngine(threads)(bk, Objective(), *arrays) for threads in (1, 2, 3, 5))
    for other, other_dmu in others:
        assert other.score == value.score
        assert other.bandwidth == value.bandwidth
        np.testing.assert_array_equal(other_dmu, dmu)


def test_float32_is_as_near_as_the_dense_form():
    arrays = problem(800, 20, draws=1)
    _, exact = ReferenceEngine()(bk, Objective(), *arrays)
    single = [a.astype(np.float32) for a in arrays]
    errors = []
    for name in ("dense", "streaming"):
        _, dmu = get_engine(name, bk, 1)(bk, Objective(), *single)
        errors.append(np.linalg.norm(dmu - exact))
    assert errors[1] <= 3 * errors[0]


@pytest.mark.parametrize("threads", [1, 2])
def test_interruption_inside_a_step(threads, monkeypatch):
    """What is raised between two compiled calls ends the step; the engine is whole afterwards."""
    from dufs_core.objective.engines import cpu_streaming as streaming

    monkeypatch.setattr(streaming, "_REPORT", 0.0)
    arrays = problem(1100, 4)
    engine = StreamingEngine(threads)
    shares = []

    def interrupt(share):
        shares.append(share)
        if len(shares) == 3:
            raise KeyboardInterrupt

    engine.progress = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine(bk, Objective(), *arrays)
    assert 0 < shares[0] < shares[1] < shares[2] < 1
    engine.progress = shares.append
    _, dmu = engine(bk, Objective(), *arrays)
    assert shares[-1] == pytest.approx(1, abs=0.2)
    np.testing.assert_array_equal(dmu, StreamingEngine(1)(bk, Objective(), *arrays)[1])


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_progress_inside_a_step_is_shown(monkeypatch, capsys):
    from dufs_core.objective.engines import cpu_streaming as streaming

    monkeypatch.setattr(streaming, "_REPORT", 0.0)
    settings = {"max_iter": 2, "max_runs": 1, "n_draws": 1, "random_state": 0, "backend": "numpy"}
    gated(**settings, engine="streaming", n_features_to_select=1, verbose=1).fit(gen.noise(600, 3))
    assert "% of a step" in capsys.readouterr().err


def test_auto_takes_the_faster_form_that_fits():
    def chosen(limit=None, **problem):
        return get_engine("auto", bk, 1, StepSize(draws=1, itemsize=4, **problem), limit).name

    assert chosen(n=100, d=20) == "dense"
    assert chosen(n=1000, d=1024) == "dense"
    assert chosen(n=100_000, d=50) == chosen(n=2500, d=5) == "streaming"
    assert chosen(n=400, d=5) == chosen(n=1600, d=200) == "dense"  # fewer than a third as many columns as rows
    assert chosen(n=300, d=1000, saturating=True) == "dense"
    assert chosen(n=1000, d=100, saturating=True) == "streaming"  # which needs no inverse of so many rows
    limit = predicted_bytes("streaming", StepSize(2000, 1000, 1, 4))
    assert chosen(n=2000, d=1000) == "dense"
    assert chosen(n=2000, d=1000, limit=limit) == "streaming"
    assert chosen(n=100_000, d=50, per_sample=True) == "reference"


@pytest.mark.parametrize("engine", ["dense", "streaming"])
def test_one_gate_per_sample_is_for_the_reference_engine(engine):
    with pytest.raises(ValueError, match=f'engine=\'{engine}\' cannot take gate_noise="sample".*engine="auto" picks'):
        GatedLaplacian(conventions=Conventions(gate_noise="sample"), engine=engine).fit(gen.noise(20, 3))
    with pytest.raises(ValueError, match='one gate per sample needs engine="reference"'):
        get_engine(engine, bk, 1)(bk, Objective(), np.full(3, 0.5), gen.draws(0, 3, 20), gen.noise(20, 3))
