// What the streaming form computes of the arrays that its passes over pairs take and leave: the gated data, sums of rows,
// the score, and the derivatives of the gates. Equations and names as in streaming.cu.

#include "common.cuh"

// u = mu + sigma eps of a column and a sample: the gate before it is clipped. eps (d,), or (n, d) per sample.
template <class T>
__device__ T unclipped_gate(
    Global<const T> mu, Global<const T> eps, T sigma, bool per_sample, Index d, Index column, Index i) {
    return mu[column] + sigma * eps[per_sample ? i * d + column : column];
}

// Xt_ki = X_ki z_k of the columns (m,) of X (d, n).      Xt (m, n).
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) gated_columns(
    Global<const T> X, Global<const Index> columns, Global<const T> mu, Global<const T> eps, double sigma,
    bool per_sample, Index m, Index d, Index n, Global<T> Xt) {
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < m * n; l += (Index)gridDim.x * THREADS) {
        const Index k = l / n, i = l - k * n, column = columns[k];
        const T u = unclipped_gate<T>(mu, eps, T(sigma), per_sample, d, column, i);
        Xt[l] = X[column * n + i] * (u <= 0 ? T(0) : u >= 1 ? T(1) : u);
    }
}

// out_ki = Y_ki / deg_i.      Y, out (m, n).
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) divided(
    Global<const T> Y, Global<const double> deg, Index m, Index n, Global<T> out) {
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < m * n; l += (Index)gridDim.x * THREADS) {
        out[l] = T(Y[l] / deg[l % n]);
    }
}

// score_i = F_0i . F_ti and share_i = sum_(a < t) C_ai . F_(t-a)i, in double.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) row_terms(
    Global<const T> walks, Index t, Index m, Index n, Global<double> score, Global<T> share) {
    for (Index i = (Index)blockIdx.x * THREADS + threadIdx.x; i < n; i += (Index)gridDim.x * THREADS) {
        double with_start = 0, sum = 0;
        for (Index k = 0; k < m; ++k) {
            with_start += (double)walks[k * n + i] * (double)walks[(2 * t * m + k) * n + i];
            for (Index a = 0; a < t; ++a) {
                sum += (double)walks[((2 * a + 1) * m + k) * n + i] * (double)walks[(2 * (t - a) * m + k) * n + i];
            }
        }
        score[i] = with_start;
        share[i] = T(sum);
    }
}

// S, the share of rows whose degree is at most `alone`, and db = sum slopes / (2 b^2); slopes may be
// null, where no derivative is wanted. One block.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) summary(
    Global<const T> share, Global<const double> score, Global<const double> deg, Global<const double> slopes,
    Global<const double> b, double alone, Index n, Global<double> S, Global<double> isolated, Global<double> db) {
    double sum = 0, count = 0, slope = 0;
    const bool with_slopes = slopes != nullptr;
    for (Index i = threadIdx.x; i < n; i += THREADS) {
        sum += score[i];
        count += deg[i] <= alone;
        if (with_slopes) slope += slopes[i];
    }
    sum = block_sum(sum);
    count = block_sum(count);
    slope = block_sum(slope);
    if (threadIdx.x == 0) {
        S[0] = sum;
        isolated[0] = count / (double)n;
        db[0] = slope / (2 * b[0] * b[0]);
    }
}

// dS/dmu of the first `wanted` of the open columns, at their places in dots (d,): sum_i X_ki (dS/dXt)_ki [0 < u_ki < 1].
// The bandwidth was read with weights (2,) from the distances of rows (2,) to their neighbours: its derivative adds
// 2 v (Xt_ki - Xt_kj) to dS/dXt at k i and its negative at k j, v = weight db. One warp for each column.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) gate_dots(
    Global<const T> X, Global<const Index> columns, Global<const T> mu, Global<const T> eps, double sigma,
    bool per_sample, Index m, Index d, Index n, Global<const T> walks, Index t, Index wanted,
    Global<const double> deg, Global<const double> row_sums, Global<const T> BX, Global<const Index> rows,
    Global<const double> weights, Global<const Index> neighbour, Global<const double> db, Global<double> dots) {
    const int lane = threadIdx.x % WARP;
    for (Index k = (Index)blockIdx.x * WARPS + threadIdx.x / WARP; k < wanted; k += (Index)gridDim.x * WARPS) {
        const Index column = columns[k];
        double sum = 0;
        for (Index i = lane; i < n; i += WARP) {
            const T u = unclipped_gate<T>(mu, eps, T(sigma), per_sample, d, column, i);
            if (u > 0 && u < 1) {
                const double F = walks[(2 * t * m + k) * n + i], C = walks[((2 * t + 1) * m + k) * n + i];
                const double through_D = row_sums[i] * walks[k * n + i] - (double)BX[k * n + i];
                sum += (double)X[column * n + i] * (F + deg[i] * C + 2 * through_D);
            }
        }
        sum = lanes_sum<WARP>(sum);
        for (int l = 0; l < 2; ++l) {
            const double value = weights[l] * db[0];
            if (lane == 0 && value != 0) {
                const Index i = rows[l], j = neighbour[i];
                const double gap = (double)walks[k * n + i] - (double)walks[k * n + j];
                const T ui = unclipped_gate<T>(mu, eps, T(sigma), per_sample, d, column, i);
                const T uj = unclipped_gate<T>(mu, eps, T(sigma), per_sample, d, column, j);
                const double from_i = ui > 0 && ui < 1 ? (double)X[column * n + i] : 0;
                const double from_j = uj > 0 && uj < 1 ? (double)X[column * n + j] : 0;
                sum += 2 * value * gap * (from_i - from_j);
            }
        }
        if (lane == 0) dots[column] = sum;
    }
}
