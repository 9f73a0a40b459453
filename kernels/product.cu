// Products and sums of small matrices, where a library call costs more than the arithmetic or cannot be part of a CUDA graph.

#include "common.cuh"

constexpr int STEP = 16;  // depth of the operands' tiles in shared memory
constexpr int PER_THREAD = 4;  // entries of C along one side
constexpr int SIDE = TILE / PER_THREAD;  // threads along one side of a tile
constexpr int LEFT_PITCH = TILE + 4;  // of the left operand's tile: its columns begin at different banks, aligned

static_assert(THREADS == SIDE * SIDE, "the block covers a tile");

// C_b = A_b' B_b (transposed: A is (m, p)) or A_b B_b (A is (p, m)), B (m, q), C (p, q), b = 0 .. batch - 1; a stride of
// 0 uses the same matrix for the whole batch. A block computes 64 x 64 entries, a thread 4 x 4 in registers; the terms
// of an entry are added in the order of m, so that A' A is symmetric to the bit. The m terms are shared out to `parts`
// sums, C (parts, batch, p, q): a small C of long sums would otherwise keep few blocks busy.
template <class T, bool transposed>
__global__ void __launch_bounds__(THREADS, RESIDENT) product(
    Global<const T> A, Global<const T> B, Index batch, Index p, Index q, Index m, Index A_stride, Index B_stride,
    Index parts, Global<T> C) {
    SHARED(T, left, STEP * LEFT_PITCH);
    SHARED(T, right, STEP * TILE);
    const Index across = (q + TILE - 1) / TILE, down = (p + TILE - 1) / TILE;
    const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    const Index terms = (m + parts - 1) / parts;
    for (Index tile = blockIdx.x; tile < parts * batch * down * across; tile += gridDim.x) {
        const Index target = tile / (down * across), place = tile - target * down * across;  // the matrix written
        const Index part = target / batch, which = target - part * batch;
        const Index first = part * terms, last = first + terms < m ? first + terms : m;
        const Index i0 = place / across * TILE, j0 = place % across * TILE;
        const Index A_base = which * A_stride, B_base = which * B_stride;
        T sums[PER_THREAD][PER_THREAD] = {};
        for (Index k0 = first; k0 < last; k0 += STEP) {
            __syncthreads();  // the tiles before are still being read
            for (int l = threadIdx.x; l < STEP * TILE; l += THREADS) {
                const int depth = transposed ? l / TILE : l % STEP;
                const int across_l = transposed ? l % TILE : l / STEP;
                const Index k = k0 + depth, i = i0 + across_l;
                left[depth * LEFT_PITCH + across_l] =
                    k < last && i < p ? A[A_base + (transposed ? k * p + i : i * m + k)] : T(0);
                const Index k_right = k0 + l / TILE, j = j0 + l % TILE;
                right[l] = k_right < last && j < q ? B[B_base + k_right * q + j] : T(0);
            }
            __syncthreads();
            for (int k = 0; k < STEP; ++k) {
                T a[PER_THREAD], c[PER_THREAD];
                for (int l = 0; l < PER_THREAD; ++l) {
                    a[l] = left[k * LEFT_PITCH + ty * PER_THREAD + l];
                    c[l] = right[k * TILE + tx * PER_THREAD + l];
                }
                for (int u = 0; u < PER_THREAD; ++u) {
                    for (int v = 0; v < PER_THREAD; ++v) sums[u][v] += a[u] * c[v];
                }
            }
        }
        for (int u = 0; u < PER_THREAD; ++u) {
            const Index i = i0 + ty * PER_THREAD + u;
            for (int v = 0; v < PER_THREAD; ++v) {
                const Index j = j0 + tx * PER_THREAD + v;
                if (i < p && j < q) C[(target * p + i) * q + j] = sums[u][v];
            }
        }
    }
}

// out = the sum of `parts` arrays of `count` entries that lie one after the other, in this order.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) add_parts(
    Global<const T> arrays, Index parts, Index count, Global<T> out) {
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < count; l += (Index)gridDim.x * THREADS) {
        T sum = 0;
        for (Index part = 0; part < parts; ++part) sum += arrays[part * count + l];
        out[l] = sum;
    }
}

// out = a left + b right, `count` entries. out may be left or right.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) combine(
    double a, Global<const T> left, double b, Global<const T> right, Index count, Global<T> out) {
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < count; l += (Index)gridDim.x * THREADS) {
        out[l] = T(a) * left[l] + T(b) * right[l];
    }
}
