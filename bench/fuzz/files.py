"""Valid files of every format that the command line reads, checkpoints and job files; and their seeded mutations."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random

import h5py
import numpy as np
from scipy import sparse
from scipy.io import savemat

from dufs_core import Checkpoint, GatedLaplacian
from dufs_core.errors import InterruptedFit

_NUMBERS = (b"0", b"-1", b"1e400", b"nan", b"4294967295", b"9223372036854775807", b"99999999999999999999", b"9" * 5000)
_WORDS = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_CHANGES = "bits bits bits cut insert repeat remove splice word word word digits digits nest".split()  # noqa: SIM905
_JOB = """seeds = [0, 1]
threads = 1
checkpoint_seconds = 5.5
settings = {method = "gates", max_iter = 30}
grid = {lam = ["none", 0.05], n_neighbors = [2, 3]}
data = [{path = "two-moons", samples = 40, noise = 0.1},
        {path = "turned.npy", name = "table", transpose = true, settings = {batch_size = 7}}]
"""


def table() -> np.ndarray:
    """The data of every valid file."""
    return np.round(np.random.default_rng(0).normal(size=(14, 6)), 3)


def valid(folder: Path) -> dict[str, bytes]:
    """Name (its ending says the format) -> bytes."""
    X, Y = table(), np.arange(14) % 2
    S = sparse.csc_array(np.where(abs(X) > 0.7, X, 0))
    names = ["id", "gene a", '"b"', "µ", "=1+1", "\x1b[31mred"]

    def text(name: str, delimiter: str, decimal: str = ".", header: bool = True, encoding: str = "utf-8") -> None:
        rows = ([names] if header else []) + [[str(value).replace(".", decimal) for value in row] for row in X]
        (folder / name).write_text("\n".join(map(delimiter.join, rows)) + "\n", encoding)

    (folder / "job.toml").write_text(_JOB)
    text("a.csv", ",")
    text("bare.tsv", "\t", header=False)
    text("comma.txt", ";", ",")
    text("wide.txt", " ", header=False, encoding="utf-16")
    np.save(folder / "turned.npy", X.T)
    np.save(folder / "fortran.npy", np.asfortranarray(X, ">f4"))
    np.savez(folder / "plain.npz", X=X, Y=Y, text=np.array(names))
    np.savez_compressed(folder / "packed.npz", X=X, target=Y)
    for kind in ("csr", "csc", "coo"):
        sparse.save_npz(folder / f"{kind}.npz", S.asformat(kind), compressed=kind == "csc")
    savemat(folder / "plain.mat", {"X": X, "Y": Y, "s": {"a": 1}, "c": np.array(["a", 2.0], object)})
    savemat(folder / "packed.mat", {"X": X, "Y": Y[:, None], "t": names}, do_compression=True)
    savemat(folder / "sparse.mat", {"X": S})
    savemat(folder / "old.mat", {"X": X}, format="4")
    savemat(folder / "oldsparse.mat", {"X": S}, format="4")
    with h5py.File(folder / "a.h5", "w") as file:
        file["X"], file["Y"], file["kind"] = X, Y, np.array([b"a", b"b"] * 7)
    with h5py.File(folder / "chunked.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(5, 6), compression="gzip", shuffle=True)
        file.create_dataset("labels", data=["a", "b"] * 7, dtype=h5py.string_dtype())
    with h5py.File(folder / "new.mat", "w", userblock_size=512) as file:
        file["X/data"], file["X/ir"], file["X/jc"], file["Y"] = S.data, S.indices, S.indptr, Y[None]
        file["X"].attrs["MATLAB_sparse"], file["Y"].attrs["MATLAB_class"] = np.uint64(14), np.bytes_("double")
    for engine in ("dense", "reference"):
        path = folder / f"{engine}.ckpt"
        seen = iter(lambda path=path: path.exists() and b"run0/mu" in path.read_bytes(), None)  # in the second run
        settings = {"max_iter": 60, "learning_rate": 0.02, "max_runs": 3, "n_draws": 2, "random_state": 0}
        saving = Checkpoint(path, 0.0, lambda seen=seen: next(seen))
        with suppress(InterruptedFit):
            GatedLaplacian(**settings, engine=engine, backend="numpy", n_jobs=1, callbacks=[saving]).fit(X)
        path.with_name(path.name + ".previous").unlink()
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def mutated(random: Random, name: str, files: dict[str, bytes]) -> bytes:
    """The valid file called `name`, changed; half of the archives and compressed files inside, with right checksums."""
    inside = next((repack for end, repack in _INSIDE.items() if name.endswith(end)), None)
    if inside is None or random.random() < 0.5:
        return _changed(random, files[name], files)
    return inside(files[name], random.random(), lambda part: _changed(random, part, files))


def _changed(random: Random, original: bytes, files: dict[str, bytes]) -> bytes:
    data = bytearray(original or b"\0")
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        at, size, width = random.randrange(len(data)), random.randrange(1, 200), random.choice((1, 2, 4, 8))
        other, number = files[random.choice(list(files))], at // width * width
        written = [found.span() for found in re.finditer(rb"\d+", data)] or [(at, at)]
        how = random.choice(_CHANGES)
        if how == "bits":
            for _ in range(random.choice((1, 1, 2, 8))):
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            continue
        places = {
            "cut": slice(max(at, 1), None),
            "remove": slice(max(at, 1), at + size),
            "splice": slice(at, at + size),
        }
        places |= {
            "word": slice(number, number + width),
            "digits": slice(*random.choice(written)),
        }  # of headers, indices
        contents = {
            "insert": random.randbytes(size), "repeat": data[at : at + size], "splice": other[at : at + size],
            "word": random.choice(_WORDS).to_bytes(8, "little")[:width], "digits": random.choice(_NUMBERS),
            "nest": random.choice((b"[", b"(", b"{", b'"', b"a.", b"1,")) * random.choice((1, 100, 20_000)),
        }  # fmt: skip
        data[places.get(how, slice(at, at))] = contents.get(how, b"")
    return bytes(data)


def _archive(data: bytes, which: float, change: Callable[[bytes], bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        chosen = old.namelist()[int(which * len(old.namelist()))]
        for name in old.namelist():
            new.writestr(name, change(old.read(name)) if name == chosen else old.read(name))
        new.comment = old.comment
    return out.getvalue()


def _signed(data: bytes, which: float, change: Callable[[bytes], bytes]) -> bytes:
    """A checkpoint, with the checksum of what it holds now."""
    data = _archive(data, which, change)[:-64]
    return data + sha256(data).hexdigest().encode()


def _variable(data: bytes, _: float, change: Callable[[bytes], bytes]) -> bytes:
    """The first variable of a compressed MATLAB file."""
    (size,) = struct.unpack_from("<I", data, 132)
    part = zlib.compress(change(zlib.decompress(data[136 : 136 + size])))
    return data[:132] + struct.pack("<I", len(part)) + part + data[136 + size :]


_INSIDE = {".npz": _archive, ".ckpt": _signed, "packed.mat": _variable}
