"""Whole steps on the stand-in device: against the trainer's own steps, one fit and several."""

from __future__ import annotations

import fake_cupy
import generators as gen
import numpy as np
import pytest

from dufs_core.backend import get_backend
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines import gpu_plan, gpu_steps
from dufs_core.objective.engines.gpu_dense import CudaEngine
from dufs_core.objective.engines.reference import ReferenceEngine
from dufs_core.objective.optimizers import get_optimizer
from dufs_core.objective.protocol import RunSpec, Schedule
from dufs_core.training.loop import TrainingRun, train

pytestmark = pytest.mark.cuda_launch
cpu = get_backend("numpy")
OPTIMIZERS = [("sgd", 0.5), ("adam", 0.05), ("normalized", 0.05)]


@pytest.fixture(params=["captured", "launched", "many entries"])
def size(request, monkeypatch):
    """The three ways that a step can be queued."""
    if request.param == "many entries":
        monkeypatch.setattr(gpu_plan, "CAPTURED_WORK", 0)
        monkeypatch.setattr(gpu_plan, "ELEMENTS_TOGETHER", 300)
    with fake_cupy.refusing_captures("refused" if request.param == "launched" else ""):
        yield request.param


def run(bk, X, evaluate, optimizer=("normalized", 0.05), schedule=None, objective=None, seed=5):
    schedule = schedule or Schedule(n_draws=2, max_iter=8, tol=0.0)
    columns = np.array([3, 0, 7, 9, 1][: X.shape[1]])
    X = bk.xp.asarray(np.asfortranarray(X))
    spec = RunSpec(objective or Objective(), get_optimizer(*optimizer), schedule, seed, columns)
    return train(bk, X, evaluate, [TrainingRun(spec)])[0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("lam", "draws", "batch_size"), [(None, 2, None), (0.2, 1, None), (None, 6, 6)])
def test_as_the_operations_on_the_cpu(device, size, optimizer, lam, draws, batch_size):
    X, schedule = gen.noise(13, 4), Schedule(n_draws=draws, max_iter=4, tol=0.0, batch_size=batch_size)
    ours, theirs = (
        run(bk, X, evaluate, optimizer, schedule, Objective(lam=lam))
        for bk, evaluate in ((device, CudaEngine()), (cpu, ReferenceEngine()))
    )
    gen.assert_close(ours.mu.get(), theirs.mu, 1e-9)
    assert (ours.n_iter, ours.converged, ours.degenerate) == (theirs.n_iter, theirs.converged, theirs.degenerate)
    assert ours.isolated == pytest.approx(theirs.isolated)
    for name, values in theirs.history.items():
        np.testing.assert_allclose(ours.history[name], values, rtol=1e-9, atol=1e-14, err_msg=name)


def test_a_captured_step_gives_the_same_bits(device):
    """First launched, then captured and replayed with new parameters; or never captured: the same."""
    problem, X = population(tol=0.0)[0], device.xp.asarray(np.asfortranarray(gen.noise(17, 4)))

    def path():
        steps = CudaEngine().steps(device, [problem], device.xp.full((1, 4), 0.5))
        (records,) = steps.advance(X, None, 1, 3)
        (replay,) = (replay for _, replay in steps._plans.values())
        return records, steps.mu.get(), replay

    records, mu, replay = path()
    assert replay.refused is None
    assert replay.graph.launched == 2
    with fake_cupy.refusing_captures("cudaErrorStreamCaptureUnsupported"):
        launched_records, launched_mu, replay = path()
    assert replay.graph is None
    assert replay.refused == "cudaErrorStreamCaptureUnsupported"
    np.testing.assert_array_equal(records, launched_records)
    np.testing.assert_array_equal(mu, launched_mu)


def test_a_capture_that_fails_inside_is_ended(device, monkeypatch):
    """An operation that may not be captured: the stream is not left capturing, and the step is launched."""
    problem, X = population(tol=0.0)[0], device.xp.asarray(np.asfortranarray(gen.noise(9, 4)))
    want, steps = (CudaEngine().steps(device, [problem], device.xp.full((1, 4), 0.5)) for _ in range(2))
    steps.advance(X, None, 1, 1)
    ((plan, replay),) = steps._plans.values()
    run = plan.run
    forbidden = plan.arrays.S.sum
    monkeypatch.setattr(plan, "run", lambda keys: (forbidden() if fake_cupy.streams.capturing else None, run(keys)))
    steps.advance(X, None, 2, 2)
    want.advance(X, None, 1, 3)
    np.testing.assert_array_equal(steps.mu.get(), want.mu.get())
    assert "not permitted when stream is capturing" in replay.refused
    assert not fake_cupy.streams.capturing


def test_batches_of_two_sizes_move_the_same_gates(device):
    problem = population(tol=0.0)[0]
    steps = CudaEngine().steps(device, [problem], device.xp.full((1, 4), 0.5))
    for step, n in enumerate((9, 10, 9, 10), start=1):
        X = device.xp.asarray(np.asfortranarray(gen.noise(n, 4, seed=n)))
        other = CudaEngine().steps(device, [problem], steps.mu)
        other.load([steps.save(0)])
        want = other.advance(X, None, step, 1)
        np.testing.assert_array_equal(steps.advance(X, None, step, 1)[0], want[0])
        np.testing.assert_array_equal(steps.mu.get(), other.mu.get())
    assert len(steps._plans) == 2


def test_a_run_ends_when_its_gates_are_decided(device, size):
    X, schedule = gen.noise(13, 4), Schedule(n_draws=2, max_iter=300, tol=0.3)
    ours, theirs = (
        run(bk, X, evaluate, ("normalized", 0.1), schedule, Objective(lam=0.3))
        for bk, evaluate in ((device, CudaEngine()), (cpu, ReferenceEngine()))
    )
    assert theirs.converged
    assert 10 < theirs.n_iter < 300
    assert (ours.n_iter, ours.converged) == (theirs.n_iter, True)
    gen.assert_close(ours.mu.get(), theirs.mu, 1e-8)


def population(lams=(None, 0.9, 0.05), optimizer=("normalized", 0.1), tol=0.3):
    schedule = Schedule(n_draws=2, max_iter=80, tol=tol)
    return [
        RunSpec(Objective(lam=lam), get_optimizer(*optimizer), schedule, 2**63 + i, np.arange(4))
        for i, lam in enumerate(lams)
    ]


def test_fits_together_are_the_bits_of_each_alone(device, size, monkeypatch):
    """They end at different steps; one that has ended keeps what it has."""
    monkeypatch.setattr(gpu_steps, "_ROOM", 5)
    problems, X = population(), device.xp.asarray(np.asfortranarray(gen.noise(8, 4)))
    start = device.xp.asarray(np.linspace(0.3, 0.7, 12).reshape(3, 4))
    steps = CudaEngine().steps(device, problems, start)
    together = [steps.advance(X, None, first, 15) for first in (1, 16)]
    assert steps.mu.shape == (3, 4)
    ends = set()
    for fit, problem in enumerate(problems):
        alone = CudaEngine().steps(device, [problem], start[fit : fit + 1])
        want = np.concatenate([alone.advance(X, None, first, 15)[0] for first in (1, 16)])
        got = np.concatenate([part[fit] for part in together])
        if size == "many entries":  # a column that one fit has closed is still open in another
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
        else:
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(steps.mu[fit].get(), alone.mu[0].get())
        ends.add(len(got))
    assert len(ends) > 1


@pytest.mark.parametrize("draws", [1, 4])
def test_a_stack_that_fills_a_device_is_the_bits_of_each_alone(device, draws):
    """G is summed in as many parts as for each alone."""
    fits, d = 16 // draws, 1100
    problems = [
        RunSpec(Objective(), get_optimizer("normalized", 0.1), Schedule(draws, 3, 0.0), seed, np.arange(d))
        for seed in range(fits)
    ]
    X = device.xp.asarray(np.asfortranarray(gen.noise(9, d).astype(np.float32)))
    start = device.xp.asarray(np.full((fits, d), 0.5, np.float32))
    assert gpu_plan.parts_of_gram(9, d, draws) > 1
    together = CudaEngine().steps(device, problems, start).advance(X, None, 1, 3)
    for fit in (0, fits - 1):
        (alone,) = CudaEngine().steps(device, [problems[fit]], start[:1]).advance(X, None, 1, 3)
        np.testing.assert_array_equal(together[fit], alone)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_rule_advances_fits_together(device, optimizer):
    problems, X = population(optimizer=optimizer, tol=0.0), device.xp.asarray(np.asfortranarray(gen.noise(8, 4)))
    start = device.xp.asarray(np.linspace(0.3, 0.7, 12).reshape(3, 4))
    together = CudaEngine().steps(device, problems, start).advance(X, None, 1, 4)
    for fit, problem in enumerate(problems):
        (alone,) = CudaEngine().steps(device, [problem], start[fit : fit + 1]).advance(X, None, 1, 4)
        np.testing.assert_array_equal(together[fit], alone)


def test_a_fit_is_saved_and_goes_on(device):
    X = device.xp.asarray(np.asfortranarray(gen.noise(11, 4)))
    for optimizer in OPTIMIZERS:
        problem = population(optimizer=optimizer, tol=0.0)[0]
        straight, first = (CudaEngine().steps(device, [problem], device.xp.full((1, 4), 0.5)) for _ in range(2))
        want = straight.advance(X, None, 1, 6)[0][4:]
        first.advance(X, None, 1, 4)
        saved = first.save(0)
        assert all(isinstance(a, np.ndarray) for a in saved.values())
        resumed = CudaEngine().steps(device, [problem], device.xp.full((1, 4), 0.1))
        resumed.load([saved])
        np.testing.assert_array_equal(resumed.advance(X, None, 5, 2)[0], want)
        np.testing.assert_array_equal(resumed.mu.get(), straight.mu.get())
