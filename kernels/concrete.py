"""What the concrete autoencoder spends its steps on outside matrix products, with the bits of the plain forms.

`uniforms` is that of `dufs_core.backend.random`, rounded and held below 1; `adam` is that of
`dufs_core.training.optimizers`, in one pass and
in place. The order of the operations is theirs, and every operation is rounded for itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.kernels.compile import kernel
from dufs_core.kernels.noise import philox


@kernel
def uniforms(seed: Any, stream: Any, step: Any, columns: Any, largest: Any, words: Any, out: Any) -> None:
    """out[r, c] = min(u, largest), u in (0, 1) draw r of column columns[c] of a stream at `step`.

    seed, stream, step: uint64; columns (d,) uint64; out (k, d) and `largest` of one floating-point type; words (4, d)
    uint32: work memory. The words go through it because loops with one array to write to are vectorised whatever the
    distance of the rows.
    """
    k, d = out.shape
    k0, k1 = seed & np.uint64(0xFFFFFFFF), seed >> np.uint64(32)
    number = out.dtype.type
    for group in range((k + 3) // 4):
        tag = (stream << np.uint64(28)) | np.uint64(group)
        for c in range(d):
            w0, w1, w2, w3 = philox(columns[c], step, tag, k0, k1)
            words[0, c], words[1, c], words[2, c], words[3, c] = w0, w1, w2, w3
        for r in range(4 * group, min(4 * group + 4, k)):
            for c in range(d):
                out[r, c] = min(number((np.float64(words[r % 4, c]) + 0.5) * 2.0**-32), largest)


@kernel
def adam(
    learning_rate: float, b1: float, b2: float, eps: float, t: int, params: Any, grad: Any, first: Any, second: Any
) -> None:
    """Step t = 1, 2, ... of Adam on params, first and second, which are changed; all (size,) of one dtype."""
    number = params.dtype.type
    beta1, beta2, rest1, rest2 = number(b1), number(b2), number(1 - b1), number(1 - b2)
    started1, started2 = number(1 - b1 ** np.float64(t)), number(1 - b2 ** np.float64(t))
    rate, epsilon = number(learning_rate), number(eps)
    for i in range(params.size):
        g = grad[i]
        m = beta1 * first[i] + rest1 * g
        v = beta2 * second[i] + rest2 * g * g
        params[i] -= rate * ((m / started1) / (np.sqrt(v / started2) + epsilon))
        first[i], second[i] = m, v
