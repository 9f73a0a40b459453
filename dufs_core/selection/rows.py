"""The rows of a fit: whether they may be exchanged, which is what decoys and permutation tests do with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dufs_core.backend import Backend, random
from dufs_core.data.matrix import dense_block
from dufs_core.data.scaling import ScaledData
from dufs_core.significance.diagnosis import Finding, diagnose

DIAGNOSED = 1 << 22  # entries that are asked: of very many columns some, spread evenly


def findings(bk: Backend, data: ScaledData, seed: int, names: Sequence[Any] | None) -> tuple[Finding, ...]:
    """What says that the rows that a fit looks at may not be exchanged; of up to 512 rows the same for any seed.

    data: scaled, (n, d); names (d,) of the columns. "one factor" is asked, whatever is selected.
    """
    n, d = data.X.shape
    rows = random.sample(bk, seed, random.Stream.DECOYS, 1, n, random.MOST_ROWS)
    most = DIAGNOSED // min(n, random.MOST_ROWS)
    columns = np.arange(d) if d <= most else np.linspace(0, d - 1, most).astype(np.intp)
    block = bk.to_host(dense_block(bk, data.X, rows, columns))
    positions = None if isinstance(rows, slice) else bk.to_host(rows)
    called = None if names is None else [str(names[k]) for k in columns]
    found = diagnose(block, positions, 1.0, names=called)
    return tuple(finding._replace(columns=columns[finding.columns]) for finding in found)
