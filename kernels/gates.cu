// Gates: their draws, the gated data, the dots that carry the derivative back to them, the loss, and the step.

#include "common.cuh"

// Standard normals (fits, R, d) of step clock[f] + 1 of every fit, with its own seed, as dufs_core.backend.random.normals
// (Box-Muller in double). mirrored, with R > 1: R / 2 draws and the same with the other sign. A thread makes the four
// draws of one counter.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) normals(
    Global<const Word64> column, Global<const Word64> seed, Global<const Index> clock, Index stream, Index fits,
    Index R, Index d, bool mirrored, Global<T> out) {
    const Index drawn = mirrored && R > 1 ? R / 2 : R, groups = (drawn + 3) / 4, entries = groups * d;
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < fits * entries; l += (Index)gridDim.x * THREADS) {
        const Index fit = l / entries, entry = l - fit * entries, group = entry / d, k = entry - group * d;
        unsigned w[4];
        noise_words(w, column[k], clock[fit] + 1, stream, group, seed[fit]);
        for (int c = 0; c < 4 && 4 * group + c < drawn; ++c) {
            const Index draw = fit * R + 4 * group + c;
            const T value = T(normal_of(w, c));
            out[draw * d + k] = value;
            if (drawn < R) out[(draw + drawn) * d + k] = -value;
        }
    }
}

// Xt_ki = X_ki z_k, z = clip(u, 0, 1).      X (d, n), Xt (R, d, n).
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) gated(
    Global<const T> X, Global<const T> mu, Global<const T> eps, double sigma, Index R, Index first, Index per_fit,
    Index d, Index n, Global<T> Xt) {
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < R * d * n; l += (Index)gridDim.x * THREADS) {
        const Index draw = l / (d * n), entry = l - draw * d * n;
        Xt[l] = X[entry] * clipped(unclipped<T>(mu, eps, T(sigma), draw, first, per_fit, d, entry / n));
    }
}

// dS/dmu_k = 2 z_k x_k' (M x_k) [0 < u_k < 1] of each draw (R, d).      X (d, n), MX (R, d, n). One warp for each draw
// and column.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) column_dots(
    Global<const T> X, Global<const T> MX, Global<const T> mu, Global<const T> eps, double sigma, Index R, Index first,
    Index per_fit, Index d, Index n, Global<double> dots) {
    const int lane = threadIdx.x % WARP;
    for (Index row = (Index)blockIdx.x * WARPS + threadIdx.x / WARP; row < R * d; row += (Index)gridDim.x * WARPS) {
        const Index draw = row / d, k = row - draw * d;
        const T u = unclipped<T>(mu, eps, T(sigma), draw, first, per_fit, d, k);
        double sum = 0;
        if (u > 0 && u < 1) {  // the same for the whole warp
            for (Index i = lane; i < n; i += WARP) sum += (double)X[k * n + i] * (double)MX[row * n + i] * (2 * u);
        }
        sum = warp_reduce<Add>(sum);
        if (lane == 0) dots[row] = sum;
    }
}

// For every fit, of R draws: its loss, the mean share of isolated rows, and dmu_k = dL/dS sum_draws dots
// + dL/d(sum p) p'(mu_k).      L = -mean S / n + lam sum p, or where lam is NaN L = -mean S / (n sum p + delta).
// S, isolated (fits * R), dots (fits * R, d), mu (fits, d), lam (fits). One block for each fit.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) loss(
    Global<const double> S, Global<const double> isolated, Global<const double> dots, Global<const T> mu,
    Global<const double> lam, Index fits, Index R, Index d, Index n, double sigma, double delta, Global<T> dmu,
    Global<double> value, Global<double> mean_isolated) {
    for (Index fit = blockIdx.x; fit < fits; fit += gridDim.x) {
        double score = 0, share = 0, open = 0;
        for (Index draw = threadIdx.x; draw < R; draw += THREADS) {
            score += S[fit * R + draw];
            share += isolated[fit * R + draw];
        }
        for (Index k = threadIdx.x; k < d; k += THREADS) {
            open += 0.5 + 0.5 * erf((double)mu[fit * d + k] / (sqrt(2.0) * sigma));
        }
        score = block_sum(score) / (double)R;
        share = block_sum(share) / (double)R;
        open = block_sum(open);
        const bool regularised = lam[fit] == lam[fit];
        const double denominator = regularised ? (double)n : (double)n * open + delta;
        const double dS = -1 / (denominator * (double)R);
        const double dsum = regularised ? lam[fit] : score * (double)n / (denominator * denominator);
        for (Index k = threadIdx.x; k < d; k += THREADS) {
            double sum = 0;
            for (Index draw = 0; draw < R; ++draw) sum += dots[(fit * R + draw) * d + k];
            const double m = mu[fit * d + k];
            const double slope = exp(m * m / (-2 * sigma * sigma)) / (sqrt(6.283185307179586476925) * sigma);
            dmu[fit * d + k] = T(dS * sum + dsum * slope);
        }
        if (threadIdx.x == 0) {
            value[fit] = regularised ? -score / denominator + lam[fit] * open : -score / denominator;
            mean_isolated[fit] = share;
        }
    }
}

// Step clock[f] + 1 of every fit that is not done: a rule of dufs_core.objective.optimizers in place, then its record.
//
// grad, params (fits, d); first (fits, d) for Adam, else null; second (fits, d) for Adam, (fits) for normalized, else
// null. Both start as zeros. records[f, clock[f] - start] is dufs_core.objective.rules.RECORD. Then the clock is set
// forward; a fit is done when at most `enough` gates are undecided, |params - 1/2| <= 1/2 + margin. One block for each fit.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) advance(
    Global<const T> grad, Index rule, double rate, Global<T> params, Global<double> first, Global<double> second,
    Global<const double> value, Global<const double> mean_isolated, Global<const double> S, Global<const double> b,
    Global<const double> degenerate, Global<const Index> start, Index fits, Index R, Index d, Index n, Index room,
    double margin, double enough, Global<Index> clock, Global<Index> done, Global<double> records) {
    for (Index fit = blockIdx.x; fit < fits; fit += gridDim.x) {
        if (done[fit] != 0) continue;
        const double t = (double)(clock[fit] + 1);
        double size = 1;
        if (rule == NORMALIZED) {
            double sum = 0;
            for (Index k = threadIdx.x; k < d; k += THREADS) {
                sum += (double)grad[fit * d + k] * (double)grad[fit * d + k];
            }
            const double mean_square = (1 - DECAY) * (block_sum(sum) / (double)d) + DECAY * second[fit];
            __syncthreads();  // second is read before it is written
            if (threadIdx.x == 0) second[fit] = mean_square;
            size = mean_square > 0 ? sqrt(mean_square / (1 - pow(DECAY, t))) : 1;
        }
        double sums[RECORD] = {};
        for (Index k = threadIdx.x; k < d; k += THREADS) {
            const Index at = fit * d + k;
            const double g = grad[at];
            double direction = g / size;
            if (rule == ADAM) {
                first[at] = BETA1 * first[at] + (1 - BETA1) * g;
                second[at] = BETA2 * second[at] + (1 - BETA2) * g * g;
                direction = first[at] / (1 - pow(BETA1, t)) / (sqrt(second[at] / (1 - pow(BETA2, t))) + EPSILON);
            }
            params[at] = T((double)params[at] - rate * direction);
            const double m = params[at];
            sums[OPEN_GATES] += m > 0 ? 1 : 0;
            sums[UNDECIDED_GATES] += fabs(m - 0.5) > 0.5 + margin ? 0 : 1;  // NaN decides nothing
        }
        for (Index draw = threadIdx.x; draw < R; draw += THREADS) {
            sums[SCORE] += S[fit * R + draw];
            sums[BANDWIDTH] += b[fit * R + draw];
            sums[DEGENERATE] += degenerate[fit * R + draw];
        }
        for (int c = 0; c < RECORD; ++c) sums[c] = block_sum(sums[c]);
        if (threadIdx.x == 0) {
            sums[LOSS] = value[fit];
            sums[SCORE] /= (double)R * (double)n;
            sums[BANDWIDTH] /= (double)R;
            sums[ISOLATED] = mean_isolated[fit];
            sums[DEGENERATE] = sums[DEGENERATE] > 0 ? 1 : 0;
            const Index at = (fit * room + clock[fit] - start[0]) * RECORD;
            for (int c = 0; c < RECORD; ++c) records[at + c] = sums[c];
            clock[fit] += 1;
            done[fit] = sums[UNDECIDED_GATES] <= enough;
        }
    }
}
