"""Checkpoints: a fit that was killed goes on where it was, and ends with the same bits.

Random numbers and the order of the minibatches are functions of (seed, step), so the state of a fit is the runs that
are over, and mu, the optimiser's memory and the records of the one that is not. With it the file holds the settings and
a fingerprint of the data. It is an archive of `dufs_core.selection.atomic_io`: plain arrays, no pickle.
"""

from __future__ import annotations

import json
import math
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
from dufs_core.objective.rules import RECORD
from dufs_core.selection import atomic_io
from dufs_core.selection.settings import flat_settings
from dufs_core.selection.trainer import FinishedRun, Progress
from dufs_core.significance.permutation import PermutationTest
from dufs_core.significance.rows import Rows
from dufs_core.training.loop import Run

FORMAT = 5  # raised when the layout changes, or when the same state would continue differently
_FREE = ("callbacks", "verbose", "n_jobs", "max_memory")  # parameters that change no result
_RESOLVED = ("backend", "engine", "random_state")  # compared by what they came to: backend, engine, seed


class Checkpoint:
    """A callback of a fit that saves its state from time to time, and at its end.

    For `dufs_core.GatedLaplacian`. A crash at any moment leaves a complete file: the new state is
    written under a name of its own, flushed to the disk and renamed; the state before it stays as
    ``path + ".previous"``. The selector's ``resume`` goes on from the file. A checkpoint that cannot be written (a full
    disk) is a warning; the fit goes on.

    Parameters
    ----------
    path : path
        Of the file, in a directory that exists. A fit does not overwrite the checkpoint of an earlier one.
    every_seconds : float, default 60.0
    stop : callable, optional
        Called several times a second, between steps; when it returns True the state is saved and the fit ends
        with `dufs_core.errors.InterruptedFit`. For handlers of signals.

    Examples
    --------
    >>> import tempfile, os
    >>> from dufs_core import Checkpoint, GatedLaplacian
    >>> from dufs_core.datasets import two_moons
    >>> X, path = two_moons(n_features=10).X, os.path.join(tempfile.mkdtemp(), "fit.ckpt")
    >>> fitted = GatedLaplacian(random_state=0, callbacks=[Checkpoint(path)]).fit(X)
    >>> GatedLaplacian.resume(path, X).get_support(indices=True)  # killed before this line, it would go on
    array([0, 1])
    """

    def __init__(self, path: str | Path, every_seconds: float = 60.0, stop: Callable[[], bool] | None = None) -> None:
        self.path = Path(path)
        self.every_seconds = float(every_seconds)
        self.stop = stop
        self._found: dict[str, Array] | None = None  # a state that was read
        self._keeps_previous = True  # whether the next save does: not where the last state cannot be read
        self._is_new = True  # whether a file at the path is of another fit
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
        atomic_io.remove_temporaries(self.path)
        self.previous.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def read(self, path: str | Path | None = None) -> tuple[str, dict[str, Any]]:
        """Read the last good state, of this or another path, for the next fit to go on from.

        Returns the name of the selector, and the settings that it was made with.
        Raises FileNotFoundError if there is none, CheckpointError if none is usable.
        """
        other = self if path is None else Checkpoint(path)
        if not other.exists():
            raise FileNotFoundError(f"there is no checkpoint at {other.path}")
        problems: list[str] = []
        for source in (other.path, other.previous):
            try:
                found = atomic_io.unpack_npz(source.read_bytes(), source)
                break
            except OSError as error:
                problems.append(f"{source} cannot be read ({atomic_io.os_reason(error)})")
            except DamagedFileError as error:
                problems.append(str(error))
        else:
            raise CheckpointError(f"No checkpoint to resume from: {'; '.join(problems)}. The fit must start anew.")
        if problems:
            message = f"{problems[0]}. The state before it is used."
            warnings.warn(message, CheckpointWarning, stacklevel=user_stacklevel())
        try:
            about = atomic_io.json_of(found["about"])
            identity = about["identity"]
            settings: dict[str, Any] = identity["settings"] | {"random_state": identity["seed"]}
            settings |= {name: identity[name] for name in ("engine", "backend")}
            _check_state(about["runs"], found, np.dtype(settings["dtype"]))
        except (KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise CheckpointError(f"{source} is not a checkpoint of a fit, but something else ({reason})") from error
        atomic_io.remove_temporaries(other.path)
        self._found, self._is_new = found, other.path.resolve() != self.path.resolve()
        self._keeps_previous = self._is_new or not problems
        return str(identity["selector"]), settings

    def begin(self, bk: Backend, selector: Any, engine: str, seed: int, X: Array, rows: Rows) -> CheckpointWriter:
        """The writer for one fit of `selector` to accepted X (n, d) and its rows.

        Raises CheckpointError if there is a file that was not read, or if it belongs to another fit.
        """
        found, self._found = self._found, None
        if not self.path.parent.is_dir():
            raise CheckpointError(f"{self.path} cannot be written: {self.path.parent} is not a directory")
        if (found is None or self._is_new) and self.exists():
            raise CheckpointError(
                f"{self.path} holds the checkpoint of an earlier fit: go on with it by "
                f"{type(selector).__name__}.resume({str(self.path)!r}, X), or delete it (and {self.previous.name}) to "
                f"fit anew"
            )
        identity = _identity(bk, selector, engine, seed, X, rows)
        if found is None:
            return CheckpointWriter(self, bk, identity, Progress([], None))
        about = atomic_io.json_of(found["about"])
        if different := differences(about["identity"], identity):
            raise CheckpointError(f"{self.path} belongs to another fit: {'; '.join(different)}")
        return CheckpointWriter(self, bk, identity, _search_state(bk, about["runs"], found))

    def write(self, data: bytes) -> None:
        """Put a state in the place of the last one, which is kept. Raises OSError."""
        atomic_io.write_bytes(self.path, data, self.previous if self._keeps_previous else None)
        self._keeps_previous = True


Checkpoint.__module__ = "dufs_core"  # where users find it, and where pickles look for it


class CheckpointWriter:
    """`dufs_core.selection.trainer.ProgressSaver` of one fit, by a `Checkpoint`."""

    def __init__(self, checkpoint: Checkpoint, bk: Backend, identity: Any, start: Progress) -> None:
        self.start = start
        self._checkpoint, self._bk, self._identity = checkpoint, bk, identity
        self._written = monotonic()
        self._warned = False

    def save(self, progress: Callable[[], Progress]) -> None:
        """Save if it is time to, or if the fit is to stop: then raise InterruptedFit."""
        checkpoint = self._checkpoint
        stop = checkpoint.stop is not None and checkpoint.stop()
        if not stop and monotonic() - self._written < checkpoint.every_seconds:
            return
        resume = f"{self._identity['selector']}.resume({str(checkpoint.path)!r}, X)"
        message, goes_on = "The fit was asked to stop", f"{resume} goes on"
        if not self.save_now(progress()):
            message += f", and its state could not be saved to {checkpoint.path}"
            goes_on = f"{goes_on} from an earlier one" if checkpoint.exists() else "the fit must start anew"
        if stop:
            raise InterruptedFit(f"{message}; {goes_on}")

    def save_now(self, progress: Progress) -> bool:
        """Save in any case. Returns whether the state is on the disk; the first failure is a warning."""
        self._written = monotonic()
        try:
            self._checkpoint.write(atomic_io.pack_npz(_arrays(self._bk, self._identity, progress)))
        except OSError as error:
            if not self._warned:
                warnings.warn(
                    f"The checkpoint {self._checkpoint.path} cannot be written ({atomic_io.os_reason(error)}); "
                    f"the fit goes on, and tries again every {self._checkpoint.every_seconds:g} s.",
                    CheckpointWarning, stacklevel=user_stacklevel(),
                )  # fmt: skip
            self._warned = True
            return False
        return True


def callbacks_of(selector: Any) -> Sequence[Any]:
    """The callbacks of a selector; none where it trains no gates."""
    found: Sequence[Any] = getattr(selector, "callbacks", ())
    return found


def find(callbacks: Sequence[Any]) -> Checkpoint | None:
    """The Checkpoint among the callbacks. Raises ValueError for more than one."""
    found = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    if len(found) > 1:
        raise ValueError(f"callbacks holds {len(found)} Checkpoints; a fit takes one")
    return found[0] if found else None


def keeps(callback: Any) -> bool:
    """Whether a callback has a memory of its own: `sklearn.base.clone` copies it; functions stay what they are."""
    return deepcopy(callback) is not callback


def refuse(selector: Any, who: str) -> None:
    """Raise ValueError if a selector that `who` fits copies of has a callback whose memory is lost with its copy."""
    for name, value in selector.get_params().items():
        callbacks = value if isinstance(value, (list, tuple)) and name.rpartition("__")[2] == "callbacks" else ()
        for callback in callbacks:
            if keeps(callback):
                raise ValueError(
                    f"{who} fits copies of the selector, and what {type(callback).__name__} keeps would be lost with "
                    f"them: take it out of {name}, or give it to a fit of one selector"
                )


def differences(then: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> list[str]:
    """One phrase for each entry of two nested mappings that is not the same."""
    found = []
    for name in dict.fromkeys([*then, *now]):
        a, b = then.get(name), now.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{where}{name} ")
        elif name == "groups":
            if a != b:
                found.append(f"its groups {'are others' if a and b else 'are missing' if a else 'were not there'}")
        elif a != b:
            found.append(f"{where}{name} was {a!r} and is now {b!r}")
    return found


def _identity(bk: Backend, selector: Any, engine: str, seed: int, X: Array, rows: Rows) -> Any:
    """All that the bits of a fit depend on, in the types of JSON."""
    parameters = flat_settings(selector)
    settings = {name: parameters[name] for name in parameters if name not in (*_FREE, *_RESOLVED)}
    resolved = {"selector": type(selector).__name__, "backend": bk.name, "engine": engine, "seed": int(seed)}
    made_by = {"version": __version__, "format": FORMAT}
    data = fingerprint.describe(bk, X)
    if rows.group is not None:
        data["groups"] = fingerprint.array_fingerprint(rows.group[:, None].astype(np.int64))
    return atomic_io.json_value({**made_by, **resolved, "settings": settings, "data": data})


def _arrays(bk: Backend, identity: Any, progress: Progress) -> dict[str, Any]:
    """A state as named arrays."""
    runs = [(outcome.run.converged, *outcome.test) for outcome in progress.finished]
    arrays: dict[str, Any] = {"about": np.array(json.dumps({"identity": identity, "runs": runs}))}
    for i, (run, columns, *_) in enumerate(progress.finished):
        arrays |= {f"run{i}/mu": bk.to_host(run.mu), f"run{i}/records": run.records, f"run{i}/columns": columns}
    if progress.position is not None:
        arrays |= {f"steps/{name}": part for name, part in progress.position.steps.items()}
        arrays["records"] = progress.position.records
    return arrays


def _check_state(runs: Sequence[Any], arrays: Mapping[str, Array], dtype: Any) -> None:
    """Raise KeyError, TypeError or ValueError if no fit can have written this state: compiled code will believe it."""

    def part(name: str, kind: str, *shape: int | None) -> Array:
        array = arrays[name]
        fits = array.ndim == len(shape) and all(a in (None, b) for a, b in zip(shape, array.shape, strict=True))
        if not fits or array.dtype.kind != kind or not np.isfinite(array).all():
            raise ValueError(f"{name} ({array.dtype}, shape {array.shape}) has another shape or type, or is not finite")
        return array

    for i, (converged, excess, p_value) in enumerate(runs):
        columns = part(f"run{i}/columns", "i", None)
        mu = part(f"run{i}/mu", "f", len(columns))
        part(f"run{i}/records", "f", None, len(RECORD))
        test = isinstance(converged, bool) and math.isfinite(excess) and math.isfinite(p_value)
        if not test or mu.dtype != dtype or len(np.unique(columns)) < len(columns) or columns.min(initial=0) < 0:
            raise ValueError(f"run {i} has no columns, gates and tests of a fit")
    names = {name.removeprefix("steps/") for name in arrays if name.startswith("steps/")}
    if "records" in arrays or names:
        steps, d = len(part("records", "f", None, len(RECORD))), len(part("steps/mu", "f", None))
        if not steps or names - {"mu", "step", "first", "second", "running"}:
            raise ValueError(f"{steps} steps, with {', '.join(sorted(names))}")
        for name in names - {"mu"}:
            size = () if (shape := arrays[f"steps/{name}"].shape) == () else (d if shape == (d,) else 1,)
            part(f"steps/{name}", "i" if name == "step" else "f", *size)
        if "step" in names and int(arrays["steps/step"]) != steps:
            raise ValueError(f"step {arrays['steps/step']} after {steps} steps")


def _search_state(bk: Backend, runs: Sequence[Any], arrays: Mapping[str, Array]) -> Progress:
    """The inverse of `_arrays`."""
    outcomes = []
    for i, (converged, *test) in enumerate(runs):
        run = Run(bk.to_device(arrays[f"run{i}/mu"]), arrays[f"run{i}/records"], converged)
        outcomes.append(FinishedRun(run, arrays[f"run{i}/columns"], PermutationTest(*test)))
    if "records" not in arrays:
        return Progress(outcomes, None)
    steps = {name.removeprefix("steps/"): part for name, part in arrays.items() if name.startswith("steps/")}
    return Progress(outcomes, RunState(len(arrays["records"]), steps, arrays["records"]))
