// Gram matrix and quadratic forms of sparse columns (dufs_core.data.sparse). Sparse columns hold their values as they are,
// and the mean m_k beside them; dense columns hold centred values, and an entry that is not stored stands for -m_k.
//
//   G_ij = sum_k z_k^2 x_ik x_jk - (a_i + a_j),   a_i = sum_k z_k^2 m_k x_ik - c / 2,   c = sum_k z_k^2 m_k^2
//   (x - m 1)' M (x - m 1) = x' M x - 2 m x' (M 1) + m^2 1' M 1
//
// The same entries by rows (values, columns, starts: CSR) and by columns (values, rows, starts: CSC), both ascending;
// z (R, d).

#include "common.cuh"

constexpr int STRIP = 2048;  // entries of a row of G that a block adds up in shared memory, in double: 16 KiB

// a (R, n) from c (R). A warp for each row.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) sparse_means(
    Global<const T> values, Global<const int> columns, Global<const Index> starts, Global<const double> shift,
    Global<const T> z, Global<const double> c, Index R, Index d, Index n, Global<double> a) {
    const int lane = threadIdx.x % WARP;
    for (Index row = (Index)blockIdx.x * WARPS + threadIdx.x / WARP; row < R * n; row += (Index)gridDim.x * WARPS) {
        const Index draw = row / n, i = row - draw * n, last = starts[i + 1];
        double sum = 0;
        for (Index s = starts[i] + lane; s < last; s += WARP) {
            const Index k = columns[s];
            const double gate = z[draw * d + k];
            sum += gate * gate * shift[k] * (double)values[s];
        }
        sum = warp_reduce<Add>(sum);
        if (lane == 0) a[row] = sum - c[draw] / 2;
    }
}

// The first entry of a column, between first and last, whose row is at least i.
__device__ inline Index first_from(Global<const int> rows, Index first, Index last, Index i) {
    while (first < last) {
        const Index middle = first + (last - first) / 2;
        if (rows[middle] < i) {
            first = middle + 1;
        } else {
            last = middle;
        }
    }
    return first;
}

// G (R, n, n), symmetric to the bit: products of two factors z_k x_ik, z_k x_jk, added in the order of k. A block for each
// strip of a row; its threads share the entries of one column after the other, each of another row of it.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) sparse_gram(
    Global<const T> row_values, Global<const int> row_columns, Global<const Index> row_starts, Global<const T> values,
    Global<const int> rows, Global<const Index> starts, Global<const T> z, Global<const double> a, Index R, Index d,
    Index n, Global<T> G) {
    SHARED(double, sums, STRIP);
    const Index strips = (n + STRIP - 1) / STRIP;
    for (Index task = blockIdx.x; task < R * n * strips; task += gridDim.x) {
        const Index row = task / strips, j0 = (task - row * strips) * STRIP, draw = row / n, i = row - draw * n;
        const Index width = n - j0 < STRIP ? n - j0 : STRIP, row_last = row_starts[i + 1];
        for (Index l = threadIdx.x; l < width; l += THREADS) sums[l] = 0;
        for (Index s = row_starts[i]; s < row_last; ++s) {
            const Index k = row_columns[s], last = starts[k + 1];
            const double gate = z[draw * d + k];
            if (gate == 0) continue;
            const double left = gate * (double)row_values[s];
            __syncthreads();  // the column before has been added
            for (Index t = first_from(rows, starts[k], last, j0) + threadIdx.x; t < last; t += THREADS) {
                const Index l = rows[t] - j0;
                if (l >= width) break;
                sums[l] += left * (gate * (double)values[t]);
            }
        }
        __syncthreads();  // the sums are complete
        for (Index l = threadIdx.x; l < width; l += THREADS) {
            G[row * n + j0 + l] = T(sums[l] - (a[row] + a[draw * n + j0 + l]));
        }
    }
}

// dots_k = 2 z_k (x_k - m_k 1)' M (x_k - m_k 1) where 0 < z_k < 1, else 0.      M (R, n, n); M1 = M 1 (R, n);
// total = 1' M 1 (R); dots (R, d). A warp for each column.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) sparse_dots(
    Global<const T> values, Global<const int> rows, Global<const Index> starts, Global<const double> shift,
    Global<const T> z, Global<const T> M, Global<const double> M1, Global<const double> total, Index R, Index d,
    Index n, Global<double> dots) {
    const int lane = threadIdx.x % WARP;
    for (Index at = (Index)blockIdx.x * WARPS + threadIdx.x / WARP; at < R * d; at += (Index)gridDim.x * WARPS) {
        const Index draw = at / d, k = at - draw * d, first = starts[k], last = starts[k + 1];
        const double gate = z[at], m = shift[k];
        const bool undecided = gate > 0 && gate < 1;
        double sum = 0;
        if (undecided) {
            for (Index p = first; p < last; ++p) {
                const Index base = (draw * n + rows[p]) * n;
                double Mx = 0;
                for (Index q = first + lane; q < last; q += WARP) Mx += (double)M[base + rows[q]] * (double)values[q];
                sum += (double)values[p] * Mx;
            }
            for (Index p = first + lane; p < last; p += WARP) sum -= 2 * m * (double)values[p] * M1[draw * n + rows[p]];
        }
        sum = warp_reduce<Add>(sum);
        if (lane == 0) dots[at] = undecided ? 2 * gate * (sum + m * m * total[draw]) : 0.0;
    }
}

// The listed ones of the dense columns, a block for each.      out (count, n).
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) dense_columns(
    Global<const T> values, Global<const int> rows, Global<const Index> starts, Global<const double> shift,
    Global<const Index> listed, Index count, Index n, Global<T> out) {
    for (Index c = blockIdx.x; c < count; c += gridDim.x) {
        const Index k = listed[c], last = starts[k + 1];
        for (Index i = threadIdx.x; i < n; i += THREADS) out[c * n + i] = T(-shift[k]);
        __syncthreads();  // every entry has its -m
        for (Index t = starts[k] + threadIdx.x; t < last; t += THREADS) out[c * n + rows[t]] = values[t];
    }
}
