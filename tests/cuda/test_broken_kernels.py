"""Faults put into the CUDA sources on purpose: the emulator must catch each, and says where."""

from __future__ import annotations

import ctypes

import generators as gen
import numpy as np
import pytest
from emulator import KernelError, Library, Order
from test_emulated import lazily

from dufs_core.kernels import cuda

pytestmark = pytest.mark.cuda_emulated
i64, f64 = np.int64, np.float64


@pytest.fixture
def broken(build_folder):
    """broken(file, old, new): the library built from a source in which one piece of text is replaced."""

    def build(file, old, new, dtype="float64"):
        text = cuda.source(file)
        assert text.count(old) == 1, f"the text to break stands {text.count(old)} times in {file}"
        return Library(file, build_folder, text.replace(old, new), (dtype,))

    return build


def gram(n=70, R=2):
    X = gen.noise(n, 4)
    return np.ascontiguousarray(np.stack([X @ X.T] * R))


def distances(library, n=70, **how):
    G = gram(n)
    D, kth, neighbour, largest = np.zeros_like(G), np.zeros((2, n)), np.zeros((2, n), i64), np.zeros((2, n))
    g = np.ascontiguousarray(np.diagonal(G, axis1=1, axis2=2))
    sizes = (i64(0), i64(2 * n), i64(n), i64(2))
    library.launch("distances<double>", 2 * n, G, g, *sizes, D, kth, neighbour, largest, **how)
    return D, kth, neighbour, largest


def with_faults(file, text, faults, folder):
    """choose(number): the library of a source with that one of `faults` (text, text with FAULT), none for -1."""
    for number, (old, changed) in enumerate(faults):
        assert text.count(old) == 1, f"the text to break stands {text.count(old)} times: {old}"
        text = text.replace(old, changed.replace("FAULT", f"(fault == {number})"))
    library = Library(file, folder, 'extern "C" { int fault = -1; }\n' + text, ("float32",))
    chosen = ctypes.c_int.in_dll(library._library, "fault")

    def choose(number):
        chosen.value = number
        return library

    return choose


def caught(library, right, launch):
    """Whether some order of the threads gives an error, or another result than the kernel as it is in the package."""
    want = launch(right, order=Order.ROUNDS)
    for order in Order:
        try:
            got = launch(library, order=order)
        except KernelError:
            return True
        if not all(np.array_equal(a, c) for a, c in zip(got, want, strict=True)):
            return True
    return False


def test_index_past_the_end(broken):
    loop = "for (Index j = threadIdx.x; j {} n; j += THREADS) {{\n            const T value = distance"
    library = broken("distances.cu", loop.format("<"), loop.format("<="))
    with pytest.raises(KernelError, match=r"distances<double>: g\[140\], valid 0 to 139, block 70, thread 70"):
        distances(library)


def test_missing_bound(broken):
    library = broken("product.cu", "if (i < p && j < q) C[", "if (i < p) C[")
    with pytest.raises(KernelError, match=r"product<double, true>: C\[\d+\], valid 0 to 48, block 0"):
        library.launch("product<double, true>", 1, np.ones((3, 7)), np.ones((3, 7)), *map(i64, (1, 7, 7, 3, 21, 21, 1)),
                       np.zeros((7, 7)))  # fmt: skip


def test_index_into_shared_memory(broken):
    library = broken("sweep.cu", "sums[m] += (Tm[at] + turned[tx * PITCH +",
                     "sums[m] += (Tm[at] + turned[(tx + 2) * PITCH +")  # fmt: skip
    T = gram(70, 1)
    with pytest.raises(KernelError, match=r"grad_degrees<double>: shared turned\[\d+\], valid 0 to 1055, block 0"):
        library.launch("grad_degrees<double>", 3, T, T, np.ones(70), np.ones(70), np.ones(70), i64(1), i64(70),
                       np.zeros(70))  # fmt: skip


def test_missing_barrier_after_a_tile_is_loaded(broken, libraries):
    library = broken("sweep.cu", "matrix[base + j * n + i] : T(0);\n    }\n    __syncthreads();",
                     "matrix[base + j * n + i] : T(0);\n    }")  # fmt: skip

    def launch(chosen, **how):
        T, half_ddeg = gram(70, 1), np.zeros(70)
        T[0] += np.arange(70)  # not symmetric
        chosen.launch("grad_degrees<double>", 3, T, T, np.ones(70), np.ones(70), np.ones(70), i64(1), i64(70),
                      half_ddeg, **how)  # fmt: skip
        return (half_ddeg,)

    assert caught(library, libraries["sweep.cu"], launch)


def test_missing_barrier_before_a_tile_is_replaced(broken, libraries):
    """A race that no lockstep order shows: some threads load the next tile while others still read this one."""
    library = broken("product.cu", "            __syncthreads();  // the tiles before are still being read\n", "")

    def launch(chosen, **how):
        A, C = np.random.default_rng(0).normal(size=(1, 50, 40)), np.zeros((1, 40, 40))
        chosen.launch("product<double, true>", 1, A, A, *map(i64, (1, 40, 40, 50, 2000, 2000, 1)), C, **how)
        return (C,)

    assert caught(library, libraries["product.cu"], launch)


def test_missing_barrier_between_two_sums(broken, libraries):
    library = broken("sweep.cu", "    __syncthreads();  // an earlier result may still be being read\n", "")

    def launch(chosen, **how):
        G, q = gram(300, 1), np.linspace(1, 2, 300)
        Wq, Wr = np.zeros(300), np.zeros(300)
        chosen.launch("score<double>", 5, G, G, q, 1 / q, i64(1), i64(300), np.zeros_like(G), Wq, Wr, **how)
        return Wq, Wr

    assert caught(library, libraries["sweep.cu"], launch)


def test_missing_barrier_before_digits_are_counted(broken, libraries):
    library = broken("distances.cu", "        counts[threadIdx.x] = 0;\n        __syncthreads();",
                     "        counts[threadIdx.x] = 0;")  # fmt: skip
    assert caught(library, libraries["distances.cu"], distances)


def affinity(library, dtype, G, g, n, **how):
    name = {"float32": "affinity<float>", "float64": "affinity<double>"}[dtype]
    sizes = (f64(1), i64(0), i64(n), i64(n))
    library.launch(name, n, G, g, np.ones(1), *sizes, G, np.zeros(n), None, None, **how)


def test_barrier_that_some_threads_skip(broken):
    library = broken("distances.cu", "        total = block_sum(total);\n",
                     "        if (threadIdx.x < 64) total = block_sum(total);\n")  # fmt: skip
    with pytest.raises(KernelError, match=r"affinity<double>: a barrier \(line \d+\) is not reached by every thread"):
        affinity(library, "float64", gram(70, 1), np.ones(70), 70)


def test_indices_of_32_bits(broken):
    """The same arrays as in test_entries_beyond_32_bits, with an index cut to 32 bits."""
    n = 46_341
    library = broken("distances.cu", "const T D = distance<T>(G[base + j], g[at]",
                     "const T D = distance<T>(G[(int)(base + j)], g[at]", "float32")  # fmt: skip
    G, g = lazily(n * n, np.float32), np.ones(n, np.float32)
    with pytest.raises(KernelError, match=r"affinity<float>: G\[-21474\d+\], valid 0 to 2147488280"):
        affinity(library, "float32", G, g, n, blocks=range(n - 1, n))


def test_arguments_of_the_wrong_type(libraries):
    library = libraries["sweep.cu"]
    K, q = np.zeros((1, 4, 4)), np.ones(4)
    for arguments, message in (
        ((K, q, i64(1), 4), r"symmetrise<double>: n must be a NumPy scalar of int64; got int 4"),
        ((K, q.astype(np.float32), i64(1), i64(4)), r"q must be a contiguous array of float64; got float32"),
        ((K.transpose(0, 2, 1), q, i64(1), i64(4)), r"K must be a contiguous array of float64; got float64, not cont"),
        ((K, q, i64(1)), "has 4 parameters, 3 were given"),
    ):
        with pytest.raises(TypeError, match=message):
            library.launch("symmetrise<double>", 1, *arguments)
