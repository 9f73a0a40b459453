"""What a fit allocates."""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.backend.memory import step_limit as step_limit
from dufs_core.data.accept import Accepted
from dufs_core.data.on_disk import chunked_bytes
from dufs_core.objective.engines.cpu_sparse import sparse_step_size
from dufs_core.objective.protocol import StepSize
from dufs_core.selection.diverse_ranking import diverse_ranking_bytes
from dufs_core.selection.parameters import graph_for, step_draws
from dufs_core.selection.procedure import Procedure


def plan(settings: Any, procedure: Procedure, accepted: Accepted, threads: int) -> tuple[StepSize, int]:
    """What the time and the memory of one step depend on, and the bytes kept beside it."""
    n, d = accepted.X.shape
    graph = graph_for(settings, n)
    itemsize = np.dtype(settings.dtype).itemsize
    rows = procedure.step_rows(n)
    step = StepSize(
        n=rows,
        d=procedure.n_gates(d),
        draws=step_draws(procedure.n_draws, rows),
        itemsize=itemsize,
        power=graph.power,
        fixed_bandwidth=not isinstance(graph.bandwidth, str),
        per_sample=procedure.conventions.gate_noise == "sample",
        threads=threads,
    )
    if accepted.is_sparse:
        sparse_step, data = sparse_step_size(step, accepted.X)
        step = sparse_step if procedure.on_sparse else step
    elif accepted.kind == "on disk":
        data = chunked_bytes(rows, d, itemsize)
    else:
        data = n * d * itemsize
    if rows < n:
        data += rows * step.d * itemsize  # the batch in hand
    data += procedure.bytes_kept(n, d, itemsize)
    after = procedure.bytes_after(n, d, itemsize, threads)
    if settings.ranking == "diverse":
        after = max(after, diverse_ranking_bytes(n, d))
    return step._replace(after=after), data
