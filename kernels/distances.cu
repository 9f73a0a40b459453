// From the Gram matrices of all draws to their distances, and from the distances of the neighbours to the bandwidth.
// Equations and names as in dufs_core.kernels.sweeps. Matrices (R, n, n) and vectors (R, n) are contiguous.

#include "common.cuh"

// g_i = G_ii.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) diagonal(Global<const T> G, Index R, Index n, Global<T> g) {
    for (Index row = (Index)blockIdx.x * THREADS + threadIdx.x; row < R * n; row += (Index)gridDim.x * THREADS) {
        g[row] = G[row * n + row % n];
    }
}

// D_ij = max(g_i + g_j - 2 G_ij, 0), D_ii = 0; kth_i, the k-th smallest D_ij over j != i; largest_i = max_j D_ij.
// One block for each row.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) distances(
    Global<const T> G, Global<const T> g, Index R, Index n, Index k, Global<T> D, Global<T> kth, Global<T> largest) {
    for (Index row = blockIdx.x; row < R * n; row += gridDim.x) {
        const Index i = row % n, base = row * n, first = row - i;
        const T gi = g[row];
        T top = 0;
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            const T value = gi + g[first + j] - 2 * G[base + j];
            const T clamped = value > 0 && j != i ? value : T(0);
            D[base + j] = clamped;
            top = clamped > top ? clamped : top;
        }
        top = block_max(top);  // its barriers also make the row of D visible to the whole block
        Index rank = k - 1;
        const T value = select<T>(D, base, n, i, rank);
        if (threadIdx.x == 0) {
            largest[row] = top;
            kth[row] = value;
        }
    }
}

// The position of the entry equal to `value` that has `nth` such entries before it.
template <class T>
__device__ Index nth_equal(Global<const T> values, Index base, Index n, T value, Index nth) {
    SHARED(Index, found, 1);
    const Index share = (n + THREADS - 1) / THREADS, start = threadIdx.x * share;
    const Index stop = start + share < n ? start + share : n;
    Index count = 0;
    for (Index j = start; j < stop; ++j) count += values[base + j] == value;
    Index before = block_sum_before(count);
    if (before <= nth && nth < before + count) {
        for (Index j = start; j < stop; ++j) {
            if (values[base + j] == value && before++ == nth) found[0] = j;
        }
    }
    __syncthreads();
    const Index position = found[0];
    __syncthreads();
    return position;
}

// b (R,), whether a substitute was used (R,), 1 or 0, and the rows and weights (R, 2) that b was read from: the rules of
// dufs_core.objective.ops.bandwidth, with the quantile at position low + between of the sorted kth; relative and absolute are its
// noise_level. One block for each draw.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) bandwidth(
    Global<const T> kth, Global<const T> largest, Index R, Index n, Index low, double between, double factor,
    bool zero_is_one, bool gradient, double relative, double absolute, Global<double> b, Global<double> degenerate,
    Global<Index> rows, Global<double> weights) {
    for (Index draw = blockIdx.x; draw < R; draw += gridDim.x) {
        const Index base = draw * n;
        Index rank = low;
        const T low_value = select<T>(kth, base, n, -1, rank);
        Index first_row = nth_equal<T>(kth, base, n, low_value, rank);
        rank = low + 1 < n ? low + 1 : low;
        const T high_value = select<T>(kth, base, n, -1, rank);
        Index second_row = nth_equal<T>(kth, base, n, high_value, rank);
        T top = 0;
        for (Index i = threadIdx.x; i < n; i += THREADS) top = largest[base + i] > top ? largest[base + i] : top;
        top = block_max(top);

        double first = 1 - between, second = between;
        double s = low_value * first + high_value * second;
        bool replaced;
        if (zero_is_one) {
            replaced = s < 1e-8;
            if (replaced) {
                s = 1;
                first = second = 0;
            }
        } else {
            const double tiny = (double)top * relative > absolute ? (double)top * relative : absolute;
            const bool zero = s <= tiny;
            replaced = zero && top > 0;
            if (zero) {  // the same on every thread
                const double infinity = 1.0 / 0.0;
                double smallest = infinity;
                Index where = n;
                for (Index i = threadIdx.x; i < n; i += THREADS) {
                    const double value = kth[base + i];
                    if (value > tiny && value < smallest) {
                        smallest = value;
                        where = i;
                    }
                }
                where = block_argmin(smallest, where);
                first = second = 0;
                if (smallest < infinity) {
                    s = smallest;
                    first = 1;
                    first_row = second_row = where;
                } else {
                    s = top > 0 ? tiny : 1;
                }
            }
        }
        if (threadIdx.x == 0) {
            b[draw] = s * factor;
            degenerate[draw] = replaced;
            rows[2 * draw] = first_row;
            rows[2 * draw + 1] = second_row;
            weights[2 * draw] = gradient ? first * factor : 0;
            weights[2 * draw + 1] = gradient ? second * factor : 0;
        }
    }
}
