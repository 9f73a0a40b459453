// Gates: their draws, the gated data, the dots that carry the derivative back to them, the loss, and the step.

#include "common.cuh"

// Philox-4x32-10 of one counter, as dufs_core.random.philox: w becomes four independent 32-bit words.
__device__ inline void philox(unsigned (&w)[4], unsigned k0, unsigned k1) {
    for (int round = 0; round < 10; ++round) {
        const Word64 p0 = (Word64)0xD2511F53u * w[0], p1 = (Word64)0xCD9E8D57u * w[2];
        w[0] = (unsigned)(p1 >> 32) ^ w[1] ^ k0;
        w[1] = (unsigned)p1;
        w[2] = (unsigned)(p0 >> 32) ^ w[3] ^ k1;
        w[3] = (unsigned)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

// One 64-bit word for each of `count` (draw, row, column), as dufs_core.random.words.
__global__ void __launch_bounds__(THREADS, RESIDENT) words(
    Global<const Word64> draw, Global<const Word64> row, Global<const Word64> column, Index count, Word64 seed,
    Word64 stream, Word64 step, Global<Word64> out) {
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < count; l += (Index)gridDim.x * THREADS) {
        unsigned w[4] = {(unsigned)column[l], (unsigned)row[l], (unsigned)step, (unsigned)(stream << 28 | draw[l])};
        philox(w, (unsigned)seed, (unsigned)(seed >> 32));
        out[l] = (Word64)w[0] << 32 | w[1];
    }
}

// Standard normals (draws, rows, columns), as dufs_core.random.normals: Box-Muller in double, then cast. A thread makes
// the four draws of one counter. row may be null where rows = 1 does not number a row: the counter's word is then 0.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) normals(
    Global<const Word64> row, Global<const Word64> column, Index draws, Index rows, Index columns, Word64 seed,
    Word64 stream, Word64 step, Global<T> out) {
    const Index groups = (draws + 3) / 4, entries = rows * columns;
    const bool with_rows = row != nullptr;
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < groups * entries; l += (Index)gridDim.x * THREADS) {
        const Index group = l / entries, entry = l - group * entries, i = entry / columns, k = entry - i * columns;
        const Word64 tag = stream << 28 | (Word64)group;
        unsigned w[4] = {
            (unsigned)column[k], with_rows ? (unsigned)row[i] : 0u, (unsigned)step, (unsigned)tag};
        philox(w, (unsigned)seed, (unsigned)(seed >> 32));
        for (int pair = 0; pair < 2; ++pair) {
            const double scale = 1.0 / 4294967296.0;
            const double radius = sqrt(-2.0 * log(((double)w[2 * pair] + 0.5) * scale));
            const double half_turns = (double)w[2 * pair + 1] * (2 * scale);
            const Index draw = 4 * group + 2 * pair;
            if (draw < draws) out[draw * entries + entry] = T(radius * cospi(half_turns));
            if (draw + 1 < draws) out[(draw + 1) * entries + entry] = T(radius * sinpi(half_turns));
        }
    }
}

// u = mu_k + sigma eps: the gate before it is clipped. eps (R, d), or (R, n, d) where each sample has its own.
template <class T>
__device__ T unclipped(
    Global<const T> mu, Global<const T> eps, T sigma, bool per_sample, Index draw, Index d, Index n, Index k, Index i) {
    return mu[k] + sigma * eps[per_sample ? (draw * n + i) * d + k : draw * d + k];
}

// Xt_ki = X_ki z_k, z = clip(u, 0, 1).      X (d, n), Xt (R, d, n).
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) gated(
    Global<const T> X, Global<const T> mu, Global<const T> eps, double sigma, bool per_sample, Index R, Index d,
    Index n, Global<T> Xt) {
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < R * d * n; l += (Index)gridDim.x * THREADS) {
        const Index draw = l / (d * n), entry = l - draw * d * n, k = entry / n, i = entry - k * n;
        const T u = unclipped<T>(mu, eps, T(sigma), per_sample, draw, d, n, k, i);
        Xt[l] = X[entry] * (u <= 0 ? T(0) : u >= 1 ? T(1) : u);
    }
}

// dS/dmu_k of each draw (R, d) from Y: one gate a column (Y_k = M x_k): 2 z_k x_k' Y_k [0 < u_k < 1]; one a sample
// (Y_k = M Xt_k): 2 sum_i X_ki Y_ki [0 < u_ik < 1].      X (d, n), Y (R, d, n). One warp for each draw and column.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) column_dots(
    Global<const T> X, Global<const T> Y, Global<const T> mu, Global<const T> eps, double sigma, bool per_sample,
    Index R, Index d, Index n, Global<double> dots) {
    const int lane = threadIdx.x % WARP;
    for (Index row = (Index)blockIdx.x * WARPS + threadIdx.x / WARP; row < R * d; row += (Index)gridDim.x * WARPS) {
        const Index draw = row / d, k = row - draw * d;
        double sum = 0;
        for (Index i = lane; i < n; i += WARP) {
            const T u = unclipped<T>(mu, eps, T(sigma), per_sample, draw, d, n, k, i);
            if (u > 0 && u < 1) sum += (double)X[k * n + i] * (double)Y[row * n + i] * (per_sample ? 2 : 2 * u);
        }
        sum = lanes_sum<WARP>(sum);
        if (lane == 0) dots[row] = sum;
    }
}

// The loss, report = (loss, mean isolated share), and dmu_k = dL/dS sum_draws dots + dL/d(sum p) p'(mu_k).
// regularised: L = -mean S / n + lam sum p; otherwise L = -mean S / (n sum p + delta). One block.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) loss(
    Global<const double> S, Global<const double> isolated, Global<const double> dots, Global<const T> mu, Index R,
    Index d, Index n, double sigma, bool regularised, double lam, double delta, Global<T> dmu, Global<double> report) {
    double score = 0, alone = 0, open = 0;
    for (Index draw = threadIdx.x; draw < R; draw += THREADS) {
        score += S[draw];
        alone += isolated[draw];
    }
    for (Index k = threadIdx.x; k < d; k += THREADS) open += 0.5 + 0.5 * erf((double)mu[k] / (sqrt(2.0) * sigma));
    score = block_sum(score) / (double)R;
    alone = block_sum(alone) / (double)R;
    open = block_sum(open);
    const double denominator = regularised ? (double)n : (double)n * open + delta;
    const double dS = -1 / (denominator * (double)R);
    const double dopen = regularised ? lam : score * (double)n / (denominator * denominator);
    for (Index k = threadIdx.x; k < d; k += THREADS) {
        double sum = 0;
        for (Index draw = 0; draw < R; ++draw) sum += dots[draw * d + k];
        const double m = mu[k], slope = exp(m * m / (-2 * sigma * sigma)) / (sqrt(6.283185307179586476925) * sigma);
        dmu[k] = T(dS * sum + dopen * slope);
    }
    if (threadIdx.x == 0) {
        report[0] = regularised ? -score / denominator + lam * open : -score / denominator;
        report[1] = alone;
    }
}

constexpr int ADAM = 1, NORMALIZED = 2;  // the rules of dufs_core.optim; any other number is SGD

// One step of an optimiser, as dufs_core.optim, from the state first (d,), second ((d,) for Adam, (1,) for normalized)
// to the next; null where a rule has none yet (then 0), or none at all. t counts steps from 1. One block.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) update(
    Global<const T> grad, Global<const T> params, Global<const double> first, Global<const double> second, Index d,
    int rule, double rate, double momentum, Index t, Global<T> new_params, Global<double> new_first,
    Global<double> new_second) {
    const double decay = 0.9, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
    const bool has_first = first != nullptr, has_second = second != nullptr;
    double size = 1;
    if (rule == NORMALIZED) {
        double sum = 0;
        for (Index k = threadIdx.x; k < d; k += THREADS) sum += (double)grad[k] * (double)grad[k];
        const double mean_square = (1 - decay) * (block_sum(sum) / (double)d) + (has_second ? decay * second[0] : 0);
        if (threadIdx.x == 0) new_second[0] = mean_square;
        size = mean_square > 0 ? sqrt(mean_square / (1 - pow(decay, (double)t))) : 1;
    }
    for (Index k = threadIdx.x; k < d; k += THREADS) {
        const double g = grad[k], before = has_first ? first[k] : 0;
        double direction;
        if (rule == ADAM) {
            const double mean = beta1 * before + (1 - beta1) * g;
            const double square = beta2 * (has_second ? second[k] : 0) + (1 - beta2) * g * g;
            new_first[k] = mean;
            new_second[k] = square;
            direction =
                mean / (1 - pow(beta1, (double)t)) / (sqrt(square / (1 - pow(beta2, (double)t))) + epsilon);
        } else {
            direction = g / size;
            if (momentum != 0) {
                direction += momentum * before;
                new_first[k] = direction;
            }
        }
        new_params[k] = T((double)params[k] - rate * direction);
    }
}
