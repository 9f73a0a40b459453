"""Faults put into the kernels of the streaming form on purpose: the emulator must catch each."""

from __future__ import annotations

import numpy as np
import pytest
from emulator import KernelError
from test_broken_kernels import broken, caught  # noqa: F401
from test_emulated import lazily
from test_streaming_kernels import new, streamed

pytestmark = pytest.mark.cuda_emulated
i64, f32 = np.int64, np.float32
N, M = 70, 9
PAIRS = "load_slab<T>(data, right + k0, depth, n, j0, columns);\n"


def launch(library, kernel, **how):
    """What one kernel gives for a problem of two tiles of rows (float32)."""
    s = streamed(M, N, "float32")
    Xt = s.walks[0, 0]
    if kernel == "nearest":
        out = new(N, of=f32), np.full(N, -1), new(N, of=f32)
        library.launch("nearest<float>", 2, Xt, i64(M), i64(N), i64(5), *out, **how)
    elif kernel == "nearest, no columns":
        out = new(N, of=f32), np.full(N, -1), new(N, of=f32)
        library.launch("nearest<float>", 2, Xt[:0], i64(0), i64(N), i64(5), *out, **how)
    elif kernel == "walk":
        out = (new(2 * M, N, of=f32),)
        library.launch("walk<float>", 1, Xt, s.b, s.deg, s.walks[1].reshape(-1, N), *map(i64, (M, 2 * M, N)), *out, **how)
    elif kernel == "pull":
        out = new(M, N, of=f32), new(N), new(N)
        library.launch("pull<float>", 1, s.walks, s.b, s.share, *map(i64, (2, M, M, N)), *out, **how)
    else:
        out = new(1), new(1), new(1)
        library.launch("summary<float>", 1, s.share, s.score, s.deg, s.slopes, s.b, np.float64(1), i64(N), *out, **how)
    return out


@pytest.mark.parametrize(
    ("kernel", "old", "fault"),
    [
        # races: barriers left out
        ("walk", PAIRS + "        __syncthreads();\n", PAIRS),
        ("pull", "        __syncthreads();  // the slabs before are still being read\n", ""),
        ("walk", "        __syncthreads();  // the tile is complete; the slab before is still being read\n", ""),
        ("pull", " : T(0);\n        }\n        __syncthreads();\n#pragma", " : T(0);\n        }\n#pragma"),
        ("nearest, no columns", "            __syncthreads();\n            T best", "            T best"),
        # wrong indices and counts
        ("walk", "i0 + column < n ? matrix", "i0 + column <= n ? matrix"),
        ("pull", "if (i < n && column < wanted) BX", "if (i < n) BX"),
        ("nearest", "j < n && j != i0 + tile_row(a)", "j <= n && j != i0 + tile_row(a)"),
        ("nearest", "value > before || (value == before && j > before_j)", "value >= before"),
        ("pull", "(2 * t - 1 - block) * m", "block * m"),
        ("summary", "i = threadIdx.x; i < n", "i = threadIdx.x; i <= n"),
        # a barrier that some threads miss
        ("summary", "    count = block_sum(count);\n", "    if (threadIdx.x < 64) count = block_sum(count);\n"),
    ],
    ids=lambda text: " ".join(text.split())[:40],
)
def test_streaming_faults_are_caught(broken, libraries, kernel, old, fault):  # noqa: F811
    library = broken("streaming.cu", old, fault, "float32")
    right = libraries["streaming.cu"]
    assert caught(library, right, lambda chosen, **how: launch(chosen, kernel, **how))


def test_streaming_indices_of_32_bits(broken):  # noqa: F811
    """The same arrays as in test_streamed_entries_beyond_32_bits, with an index cut to 32 bits."""
    library = broken("streaming.cu", "out[column * n + i] = T(totals", "out[(int)(column * n + i)] = T(totals", "float32")
    n, width = 3, 2**31 // 3 + 70
    Y, out, blocks = lazily(width * n, f32), lazily(width * n, f32), -(-width // 64)
    with pytest.raises(KernelError, match=r"walk<float>: out\[-21474\d+\], valid 0 to 2147483855"):
        library.launch("walk<float>", blocks, np.zeros((1, n), f32), np.ones(1), np.ones(n), Y,
                       *map(i64, (1, width, n)), out, blocks=range(blocks - 1, blocks))  # fmt: skip
