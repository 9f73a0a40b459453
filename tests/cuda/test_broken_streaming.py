"""Faults put into the kernels of the streaming form on purpose: the emulator must catch each."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from emulator import KernelError
from test_broken_kernels import broken, caught, with_faults  # noqa: F401 (a fixture)
from test_emulated import lazily
from test_streaming_kernels import new, streamed

from dufs_core.kernels import cuda

pytestmark = pytest.mark.cuda_emulated
i64, f32 = np.int64, np.float32
N, M = 70, 9
PAIRS = "load_slab<T>(data, right + k0, depth, n, j0, columns);\n"


def launch(library, *, kernel, **how):
    """What one kernel gives for a problem of two tiles of rows (float32)."""
    s = streamed(M, N, "float32")
    Xt = s.walks[0, 0]
    if kernel.startswith("nearest"):
        out, m = (new(N, of=f32), np.full(N, -1), new(N, of=f32)), M if kernel == "nearest" else 0
        library.launch("nearest<float>", 2, Xt[:m], i64(m), i64(N), i64(5), *out, **how)
    elif kernel == "walk":
        out = (new(2 * M, N, of=f32),)
        library.launch(
            "walk<float>", 1, Xt, s.b, s.own, s.deg, s.walks[1].reshape(-1, N), *map(i64, (M, 2 * M, N)), *out, **how
        )
    else:
        out = new(M, N, of=f32), new(N), new(N)
        library.launch("pull<float>", 1, s.walks, s.b, s.share, *map(i64, (2, M, M, N)), *out, **how)
    return out


# Where FAULT is 1 the kernel is broken, where it is 0 it is as in the package: one build holds all of them.
FAULTS = [  # kernel that shows it, text as it is, text that may be broken
    # races: barriers left out
    ("walk", PAIRS + "        __syncthreads();", PAIRS + "        if (!FAULT) __syncthreads();"),
    ("pull", "__syncthreads();  // the slabs before", "if (!FAULT) __syncthreads();  // the slabs before"),
    ("walk", "__syncthreads();  // the tile is complete", "if (!FAULT) __syncthreads();  // the tile is complete"),
    ("pull", " : T(0);\n        }\n        __syncthreads();\n#pragma",
     " : T(0);\n        }\n        if (!FAULT) __syncthreads();\n#pragma"),
    ("nearest, no columns", "__syncthreads();\n            T best", "if (!FAULT) __syncthreads();\n            T best"),
    # wrong indices, counts and pairs
    ("walk", "i0 + column < n ? matrix", "i0 + column < n + FAULT ? matrix"),
    ("pull", "if (i < n && column < wanted) BX", "if (i < n && (column < wanted || FAULT)) BX"),
    ("nearest", "j < n && j != i0 + tile_row(a)", "j < n + FAULT && j != i0 + tile_row(a)"),
    ("nearest", "value == before && j > before_j", "value == before && j > before_j - FAULT"),
    ("nearest", "found + p == k - 1", "found + p == k - 1 + FAULT"),
    ("pull", "(2 * t - 1 - block) * m", "(FAULT ? block : 2 * t - 1 - block) * m"),
    ("pull", "depth = count - k0 < DEPTH<T> ? (int)(count - k0) : DEPTH<T>",
     "depth = count - k0 < DEPTH<T> ? (int)(count - k0) - FAULT : DEPTH<T>"),
    # a barrier that some threads miss
    ("walk", "add_products<T>(Y,", "if (threadIdx.x < 64 || !FAULT) add_products<T>(Y,"),
]  # fmt: skip


@pytest.fixture(scope="module")
def breakable(build_folder):
    """breakable(number): the library with that fault, none for -1."""
    return with_faults(
        "streaming.cu", cuda.source("streaming.cu"), [(old, changed) for _, old, changed in FAULTS], build_folder
    )


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_streaming_faults_are_caught(breakable, libraries, number):
    """An error, or another result than the kernel's as it is in the package; none of either without the fault."""
    run = partial(launch, kernel=FAULTS[number][0])
    assert caught(breakable(number), libraries["streaming.cu"], run)
    assert not caught(breakable(-1), libraries["streaming.cu"], run)


def test_streaming_indices_of_32_bits(broken):  # noqa: F811
    """The same arrays as in test_streamed_entries_beyond_32_bits, with an index cut to 32 bits."""
    library = broken(
        "streaming.cu", "out[column * n + i] = T(totals", "out[(int)(column * n + i)] = T(totals", "float32"
    )
    n, width = 3, 2**31 // 3 + 70
    Y, out, blocks = lazily(width * n, f32), lazily(width * n, f32), -(-width // 64)
    with pytest.raises(KernelError, match=r"walk<float>: out\[-21474\d+\], valid 0 to 2147483855"):
        library.launch("walk<float>", blocks, np.zeros((1, n), f32), np.ones(1), np.float64(1), np.ones(n), Y,
                       *map(i64, (1, width, n)), out, blocks=range(blocks - 1, blocks))  # fmt: skip


def test_a_summary_past_the_end(broken):  # noqa: F811
    library = broken("streaming_terms.cu", "i = threadIdx.x; i < n", "i = threadIdx.x; i <= n", "float32")
    s = streamed(M, N, "float32")
    with pytest.raises(KernelError, match=r"summary<float>: score\[70\], valid 0 to 69, block 0, thread 70"):
        library.launch("summary<float>", 1, s.share, s.score, s.deg, s.slopes, s.b, np.float64(1), i64(N), new(1),
                       new(1), new(1))  # fmt: skip
