"""The data sets of the paper's tables and figures, from the files in DUFS_DATA or ../shared/data.

A set is what the paper calls it; its file is what the benchmarks' owners publish, in their format. X is float64, in the
units of the file, except images of pixraw10P, which are divided by their maximum.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.io import loadmat
from sklearn.datasets import load_svmlight_file

from bench.common import required

Array = np.ndarray[Any, Any]
MNIST_SAMPLES = 1000
RCV1_PER_CLASS = 500
RCV1_TERMS = 47236
RCV1_FILES = ("rcv1_small.dat", "rcv1_small_test.data", "rcv1_smaller.dat")


class Data(NamedTuple):
    """One data set."""

    X: Array  # (n, d) float64
    labels: Array  # (n,)


@dataclass(frozen=True)
class Source:
    """Where a data set comes from."""

    files: tuple[str, ...]
    read: Callable[..., tuple[Array, Array]]
    same: bool = True  # whether these are the paper's data
    note: str = ""


def read_mat(path: Path) -> tuple[Array, Array]:
    """X and Y of a MATLAB file of the scikit-feature collection."""
    mat = loadmat(str(path))
    return mat["X"].astype(np.float64), mat["Y"].ravel()


def read_pix10(path: Path) -> tuple[Array, Array]:
    """As `read_mat`, divided by the largest value."""
    X, labels = read_mat(path)
    return X / X.max(), labels


def read_uci(data: Path, labels: Path) -> tuple[Array, Array]:
    """GISETTE as the UCI repository has it: rows of numbers separated by blanks, and a file with one label a row."""
    X, y = np.loadtxt(data, dtype=np.float64, ndmin=2), np.loadtxt(labels, dtype=np.int64, ndmin=1)
    if len(X) != len(y):
        raise ValueError(f"{data.name} has {len(X)} rows and {labels.name} {len(y)} labels; they must be as many")
    return X, y


def read_idx(path: Path) -> Array:
    """An array in IDX format, gzipped or not: unsigned bytes after a header of sizes (MNIST)."""
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    if raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path.name} is no IDX file of unsigned bytes: it begins with {raw[:4].hex()}, not 000008")
    rank = raw[3]
    shape = np.frombuffer(raw, ">u4", rank, 4)
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * rank)
    if values.size != shape.prod():
        raise ValueError(f"{path.name} holds {values.size} values; its header says {' x '.join(map(str, shape))}")
    return values.reshape(shape)


def read_mnist(images: Path, labels: Path) -> tuple[Array, Array]:
    """1,000 of the images, drawn with a fixed seed, in [0, 1]."""
    pixels, y = read_idx(images), read_idx(labels)
    rows = np.random.default_rng(0).permutation(len(y))[:MNIST_SAMPLES]
    return pixels[rows].reshape(len(rows), -1) / 255.0, y[rows]


def read_documents(*paths: Path) -> tuple[Any, list[tuple[float, ...]]]:
    """Sparse rows and the labels of each, from files in LIBSVM's format or Vowpal Wabbit's (one namespace).

    In Vowpal Wabbit's the label is followed by a bar and the namespace's name. Rows that were read before are left out.
    """
    lines: dict[bytes, None] = {}
    for path in paths:
        for line in path.read_bytes().splitlines():
            head, bar, rest = line.partition(b"|")
            if bar:
                line = head.strip() + b" " + rest.split(None, 1)[1]
            lines[line] = None
    X, labels = load_svmlight_file(
        BytesIO(b"\n".join(lines)), n_features=RCV1_TERMS + 1, multilabel=True, zero_based=True
    )
    return X, labels


def two_classes(X: Any, labels: list[tuple[float, ...]]) -> tuple[Array, Array]:
    """The paper's subset of RCV1: rows with one label alone, of the first two classes, as many of one as of the other.

    Drawn from with a fixed seed, at most 500 of each so that all methods can be computed; columns that are empty then
    are left out.
    """
    classes = sorted({label for row in labels for label in row})[:2]
    y = np.array([row[0] if len(row) == 1 and row[0] in classes else np.nan for row in labels])
    members = [np.flatnonzero(y == c) for c in classes]
    size = min(RCV1_PER_CLASS, *map(len, members))
    rng = np.random.default_rng(0)
    rows = np.sort(np.concatenate([rng.permutation(m)[:size] for m in members]))
    X = X[rows]
    used = np.flatnonzero(np.diff(X.tocsc().indptr))
    return X[:, used].toarray(), y[rows]


def read_rcv1(*paths: Path) -> tuple[Array, Array]:
    """`two_classes` of the documents."""
    return two_classes(*read_documents(*paths))


SOURCES: dict[str, Source] = {
    "GISETTE": Source(("gisette_train.data", "gisette_train.labels"), read_uci),
    "PIX10": Source(("pixraw10P.mat",), read_pix10),
    "COIL20": Source(("COIL20.mat",), read_mat),
    "Yale": Source(("Yale.mat",), read_mat),
    "TOX-171": Source(("TOX-171.mat",), read_mat),
    "ALLAML": Source(("ALLAML.mat",), read_mat),
    "PROSTATE": Source(("Prostate-GE.mat",), read_mat),
    "RCV1": Source(RCV1_FILES, read_rcv1, False, "1,000 of 1,747 documents of RCV1, not the paper's"),
    "ISOLET": Source(("Isolet.mat",), read_mat),
    "GLIOMA": Source(("GLIOMA.mat",), read_mat),
    "MNIST": Source(
        ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"), read_mnist, False, "1,000 of the test images"
    ),
}


def load(name: str) -> Data:
    """The data set, or MissingData."""
    source = SOURCES[name]
    return Data(*source.read(*required(*source.files)))
