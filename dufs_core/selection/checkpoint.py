"""Checkpoints: a fit that was killed goes on where it was, and ends with the same bits.

Random numbers are a function of (seed, step), and so is the order of the minibatches, so that the state of a fit is the
runs that are over, and mu, the optimiser's memory, the step and the records of the one that is not. With it the file
holds the settings and a fingerprint of the data. It is an archive of `dufs_core.selection.atomic_io`: plain arrays,
no pickle.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from dufs_core._version import __version__
from dufs_core.backend import Array, Backend
from dufs_core.data import fingerprint
from dufs_core.errors import CheckpointError, CheckpointWarning, DamagedFileError, InterruptedFit, user_stacklevel
from dufs_core.objective.protocol import RunState
from dufs_core.selection import atomic_io as durable
from dufs_core.selection.search import Outcome, SearchState
from dufs_core.significance.permutation_test import PermutationTest
from dufs_core.training.loop import Run

FORMAT = 2  # raised, too, when a search goes on otherwise from the same state
_ABOUT = "about"  # the name of the JSON text in the archive
_FREE = ("callbacks", "verbose", "n_jobs", "max_memory")  # parameters that change no result
_RESOLVED = ("backend", "engine", "random_state")  # compared by what they came to: backend, engine, seed


class Checkpoint:
    """A callback of `dufs_core.DUFS` that saves the state of the fit from time to time, and at its end.

    A crash at any moment leaves a complete file: the new state is written under a name of its own, flushed to the disk
    and renamed; the state before it stays as ``path + ".previous"``. `dufs_core.DUFS.resume` goes on from the file. A
    checkpoint that cannot be written (a full disk) is a warning; the fit goes on.

    Parameters
    ----------
    path : path
        Of the file, in a directory that exists. A fit does not overwrite the checkpoint of an earlier one.
    every_seconds : float, default 60.0
    stop : callable, optional
        Asked several times a second, between steps; when it returns True the state is saved and the fit ends
        with `dufs_core.errors.InterruptedFit`. For handlers of signals.

    Examples
    --------
    >>> import tempfile, os
    >>> from dufs_core import DUFS
    >>> from dufs_core.selection.checkpoint import Checkpoint
    >>> from dufs_core.datasets import two_moons
    >>> X, path = two_moons(n_features=10).X, os.path.join(tempfile.mkdtemp(), "fit.ckpt")
    >>> fitted = DUFS(random_state=0, callbacks=[Checkpoint(path)]).fit(X)
    >>> DUFS.resume(path, X).order_[:2]  # killed before this line, it would go on
    array([0, 1])
    """

    def __init__(self, path: str | Path, every_seconds: float = 60.0, stop: Callable[[], bool] | None = None) -> None:
        self.path = Path(path)
        self.every_seconds = float(every_seconds)
        self.stop = stop
        self._found: dict[str, Array] | None = None
        self._own = False  # whether what was found was found here
        self.damaged = False  # whether the last state cannot be read: the next save keeps the one before it
        if not self.every_seconds >= 0:
            raise ValueError(f"every_seconds must be 0 (after every call of the engine) or more; got {every_seconds}")

    @property
    def previous(self) -> Path:
        """Where the state before the last one is kept."""
        return self.path.with_name(self.path.name + ".previous")

    def exists(self) -> bool:
        """Whether there is something to resume from."""
        return self.path.exists() or self.previous.exists()

    def remove(self) -> None:
        """Delete both states, and what killed writers left."""
        durable.remove_temporaries(self.path)
        self.previous.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def read(self) -> dict[str, Any]:
        """Read the last good state for the next fit to go on from. Returns the settings it was made with.

        Raises FileNotFoundError if there is none, CheckpointError if none is usable.
        """
        if not self.exists():
            raise FileNotFoundError(f"there is no checkpoint at {self.path}")
        problems = []
        for path in (self.path, self.previous):
            try:
                found = durable.unpacked(path.read_bytes(), path)
                break
            except OSError as error:
                problems.append(f"{path} cannot be read ({(error.strerror or str(error)).lower()})")
            except DamagedFileError as error:
                problems.append(str(error))
        else:
            raise CheckpointError(f"No checkpoint to resume from: {'; '.join(problems)}. The fit must start anew.")
        if problems:
            warnings.warn(
                f"{problems[0]}. The state before it is used.", CheckpointWarning, stacklevel=user_stacklevel()
            )
        about = _about(found, path)
        if about["format"] != FORMAT:
            raise CheckpointError(
                f"{self.path} has format {about['format']}, which dufs-core {about['identity']['version']} wrote; this "
                f"is dufs-core {__version__}, which reads format {FORMAT}"
            )
        durable.remove_temporaries(self.path)
        self._found, self._own, self.damaged = found, True, bool(problems)
        identity = about["identity"]
        settings: dict[str, Any] = identity["settings"]
        return settings | {
            "random_state": identity["seed"],
            "engine": identity["engine"],
            "backend": identity["backend"],
        }

    def take_over(self, other: Checkpoint) -> None:
        """Go on from the state that `other` has read."""
        self._found, other._found = other._found, None
        self._own = self.path.resolve() == other.path.resolve()
        self.damaged = self._own and other.damaged

    def begin(self, bk: Backend, selector: Any, seed: int, X: Array) -> Keeping:
        """The keeper of one fit of `selector` to X (n, d), as it is called by ``fit``.

        Raises CheckpointError if there is a file and it was not read, or if it belongs to another fit.
        """
        found, self._found = self._found, None
        if not self.path.parent.is_dir():
            raise CheckpointError(f"{self.path} cannot be written: {self.path.parent} is not a directory")
        if (found is None or not self._own) and self.exists():
            raise CheckpointError(
                f"{self.path} holds the checkpoint of an earlier fit: go on with it by "
                f"DUFS.resume({str(self.path)!r}, X), or delete it (and {self.previous.name}) to fit anew"
            )
        identity = _identity(bk, selector, seed, X)
        progress = SearchState([], None)
        if found is not None:
            different = differences(json.loads(str(found[_ABOUT]))["identity"], identity)
            if different:
                raise CheckpointError(f"{self.path} belongs to another fit: {'; '.join(different)}")
            progress = _progress(bk, found)
        return Keeping(self, bk, identity, progress)


class Keeping:
    """`dufs_core.selection.search.ProgressSaver` of one fit, by a `Checkpoint`."""

    def __init__(self, checkpoint: Checkpoint, bk: Backend, identity: Mapping[str, Any], start: SearchState) -> None:
        self.start = start
        self._checkpoint, self._bk, self._identity = checkpoint, bk, identity
        self._saved = monotonic()
        self._warned = False

    def keep(self, progress: Callable[[], SearchState]) -> None:
        """Save if it is time to, or if the fit is to stop: then raise InterruptedFit."""
        stop = self._checkpoint.stop is not None and self._checkpoint.stop()
        if stop or monotonic() - self._saved >= self._checkpoint.every_seconds:
            saved = self._save(progress())
        if stop:
            path = self._checkpoint.path
            if saved:
                raise InterruptedFit(f"The fit was asked to stop; DUFS.resume({str(path)!r}, X) goes on")
            left = (
                f"DUFS.resume({str(path)!r}, X) goes on from an earlier one"
                if self._checkpoint.exists()
                else ("there is no earlier one, so that the fit must start anew")
            )
            raise InterruptedFit(f"The fit was asked to stop, and its state could not be saved to {path}: {left}")

    def finish(self, progress: SearchState) -> None:
        """Save the outcomes of all runs."""
        self._save(progress)

    def _save(self, progress: SearchState) -> bool:
        """Whether the state is on the disk; the first failure is a warning."""
        about = {"format": FORMAT, "identity": self._identity, "progress": _described(progress)}
        arrays = {_ABOUT: np.array(json.dumps(about)), **_arrays(self._bk, progress)}
        self._saved = monotonic()
        previous = None if self._checkpoint.damaged else self._checkpoint.previous
        try:
            durable.write_bytes(self._checkpoint.path, durable.packed(arrays), previous)
        except OSError as error:
            if not self._warned:
                cause = (error.strerror or str(error)).lower()
                warnings.warn(
                    f"The checkpoint {self._checkpoint.path} cannot be written ({cause}); the fit goes on, and tries "
                    f"again every {self._checkpoint.every_seconds:g} s.",
                    CheckpointWarning, stacklevel=user_stacklevel(),
                )  # fmt: skip
            self._warned = True
            return False
        self._checkpoint.damaged = False
        return True


def find(callbacks: Sequence[Any]) -> Checkpoint | None:
    """The Checkpoint among the callbacks. Raises ValueError for more than one."""
    found = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    if len(found) > 1:
        raise ValueError(f"callbacks holds {len(found)} Checkpoints; a fit takes one")
    return found[0] if found else None


def refuse(selector: Any, who: str) -> None:
    """Raise ValueError if a selector that `who` fits copies of has a callback that would be of no use.

    A Checkpoint saves one fit. What an object keeps (a `dufs_core.Trajectory`) is lost with the copy that kept it.
    """
    for name, value in selector.get_params().items():
        callbacks = value if isinstance(value, (list, tuple)) and name.rpartition("__")[2] == "callbacks" else ()
        for callback in callbacks:
            if isinstance(callback, Checkpoint):
                raise ValueError(
                    f"{who} fits the selector many times, and a Checkpoint saves one fit: take it out of {name}"
                )
            if deepcopy(callback) is not callback:  # as sklearn.base.clone copies it; functions stay what they are
                raise ValueError(
                    f"{who} fits copies of the selector, and what {type(callback).__name__} keeps would be lost with "
                    f"them: take it out of {name}, or give it to a fit of one selector"
                )


def refuse_in_processes(selector: Any) -> None:
    """Raise ValueError if a selector that is fitted in another process has callbacks other than a Checkpoint."""
    for callback in selector.callbacks:
        if not isinstance(callback, Checkpoint):
            called = getattr(callback, "__name__", type(callback).__name__)
            raise ValueError(
                f"Fits in other processes call copies of callbacks, and what {called} keeps or does would stay there: "
                f"take it out of callbacks, or fit in threads (joblib.parallel_config(backend='threading'))"
            )


def differences(then: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> list[str]:
    """One phrase for each entry of two nested mappings that is not the same."""
    found = []
    for name in dict.fromkeys([*then, *now]):
        a, b = then.get(name), now.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{where}{name} ")
        elif a != b:
            found.append(f"{where}{name} was {a!r} and is now {b!r}")
    return found


def _identity(bk: Backend, selector: Any, seed: int, X: Array) -> dict[str, Any]:
    """All that the bits of a fit depend on, in the types of JSON; settings hold every parameter but the free ones."""
    identity = {
        "version": __version__,
        "backend": bk.name,
        "engine": selector.engine_,
        "seed": int(seed),
        "settings": {
            name: value
            for name, value in selector.get_params(deep=False).items()
            if name not in _FREE and name not in _RESOLVED
        },
        "data": fingerprint.described(bk, X),
    }
    as_json: dict[str, Any] = durable.json_value(identity)
    return as_json


def _about(found: Mapping[str, Array], path: Path) -> dict[str, Any]:
    """The JSON text of an archive. Raises CheckpointError for an archive of something else."""
    try:
        about: dict[str, Any] = json.loads(str(found[_ABOUT]))
        if not {"format", "identity"} <= about.keys() or "version" not in about["identity"]:
            raise KeyError(_ABOUT)
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path} is not a checkpoint of a fit: it is an archive of something else") from error
    return about


def _described(progress: SearchState) -> dict[str, Any]:
    """The parts of a progress that are no arrays."""
    runs = [
        {
            "n_iter": o.run.n_iter, "converged": o.run.converged, "isolated": o.run.isolated,
            "degenerate": o.run.degenerate, "excess": o.test.excess, "p_value": o.test.p_value,
        }
        for o in progress.outcomes
    ]  # fmt: skip
    return {"runs": runs, "step": None if progress.position is None else progress.position.step}


def _arrays(bk: Backend, progress: SearchState) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for i, outcome in enumerate(progress.outcomes):
        arrays |= {f"run{i}/mu": bk.to_host(outcome.run.mu), f"run{i}/columns": outcome.columns}
        arrays |= {f"run{i}/history/{name}": column for name, column in outcome.run.history.items()}
    if progress.position is not None:
        arrays |= {f"steps/{name}": part for name, part in progress.position.steps.items()}
        arrays["records"] = progress.position.records
    return arrays


def _progress(bk: Backend, found: Mapping[str, Array]) -> SearchState:
    """The inverse of `_described` and `_arrays`."""
    described = json.loads(str(found[_ABOUT]))["progress"]
    outcomes = []
    for i, run in enumerate(described["runs"]):
        test = PermutationTest(run.pop("excess"), run.pop("p_value"))
        history = _below(found, f"run{i}/history/")
        outcomes.append(Outcome(Run(bk.to_device(found[f"run{i}/mu"]), history, **run), found[f"run{i}/columns"], test))
    position = None
    if described["step"] is not None:
        position = RunState(described["step"], _below(found, "steps/"), found["records"])
    return SearchState(outcomes, position)


def _below(found: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in found.items() if name.startswith(prefix)}
