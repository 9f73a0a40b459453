"""Real data from the file to the pictures, as somebody new to the package goes through them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Parts = dict[str, Callable[[Path], None]]


def run(doc: str, parts: Parts) -> None:
    """The command line of a walk: some of its parts, or all, each writing its pictures to --out."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(parts), metavar="PART", help=", ".join(parts))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for the pictures")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(parts):
        parser.error(f"PART is one of {', '.join(parts)}; got {', '.join(sorted(unknown))}")
    args.out.mkdir(parents=True, exist_ok=True)
    for part in args.parts:
        parts[part](args.out)


def clusters(X: Any, labels: Any) -> list[Any]:
    """Of k-means, k the number of labels: five starts."""
    from sklearn.cluster import KMeans

    return [KMeans(len(np.unique(labels)), n_init=1, random_state=seed).fit_predict(X) for seed in range(5)]
