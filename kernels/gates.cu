// Gates: their draws, the gated data, the dots that carry the derivative back to them, the loss, and the step.

#include "common.cuh"

// Philox-4x32-10 of one counter, as dufs_core.backend.random.philox: w becomes four independent 32-bit words.
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

// One 64-bit word for each of `count` (draw, row, column), as dufs_core.backend.random.words.
__global__ void __launch_bounds__(THREADS, RESIDENT) words(
    Global<const Word64> draw, Global<const Word64> row, Global<const Word64> column, Index count, Word64 seed,
    Word64 stream, Word64 step, Global<Word64> out) {
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < count; l += (Index)gridDim.x * THREADS) {
        unsigned w[4] = {(unsigned)column[l], (unsigned)row[l], (unsigned)step, (unsigned)(stream << 28 | draw[l])};
        philox(w, (unsigned)seed, (unsigned)(seed >> 32));
        out[l] = (Word64)w[0] << 32 | w[1];
    }
}

// The four standard normals of one counter, as dufs_core.backend.random.normals: Box-Muller in double.
__device__ inline void four_normals(
    Word64 column, Word64 row, Word64 step, Word64 tag, Word64 seed, double (&out)[4]) {
    unsigned w[4] = {(unsigned)column, (unsigned)row, (unsigned)step, (unsigned)tag};
    philox(w, (unsigned)seed, (unsigned)(seed >> 32));
    for (int pair = 0; pair < 2; ++pair) {
        const double scale = 1.0 / 4294967296.0;
        const double radius = sqrt(-2.0 * log(((double)w[2 * pair] + 0.5) * scale));
        const double half_turns = (double)w[2 * pair + 1] * (2 * scale);
        out[2 * pair] = radius * cospi(half_turns);
        out[2 * pair + 1] = radius * sinpi(half_turns);
    }
}

// Standard normals (draws, rows, columns), as dufs_core.backend.random.normals. A thread makes the four draws of one counter.
// row may be null where rows = 1 does not number a row: the counter's word is then 0.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) normals(
    Global<const Word64> row, Global<const Word64> column, Index draws, Index rows, Index columns, Word64 seed,
    Word64 stream, Word64 step, Global<T> out) {
    const Index groups = (draws + 3) / 4, entries = rows * columns;
    const bool with_rows = row != nullptr;
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < groups * entries; l += (Index)gridDim.x * THREADS) {
        const Index group = l / entries, entry = l - group * entries, i = entry / columns, k = entry - i * columns;
        double values[4];
        four_normals(column[k], with_rows ? row[i] : 0, step, stream << 28 | (Word64)group, seed, values);
        for (int c = 0; c < 4 && 4 * group + c < draws; ++c) out[(4 * group + c) * entries + entry] = T(values[c]);
    }
}

// The gate noise (fits, R, d) of step clock[f] + 1 of every fit, with its own seed: one draw, or R / 2 and the same
// with the other sign, as dufs_core.training.loop.gate_noise.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) gate_noise(
    Global<const Word64> column, Global<const Word64> seed, Global<const Index> clock, Index fits, Index R, Index d,
    Global<T> eps) {
    const Index half = R > 1 ? R / 2 : 1, groups = (half + 3) / 4, entries = groups * d;
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < fits * entries; l += (Index)gridDim.x * THREADS) {
        const Index fit = l / entries, entry = l - fit * entries, group = entry / d, k = entry - group * d;
        double values[4];
        four_normals(column[k], 0, (Word64)clock[fit] + 1, (Word64)group, seed[fit], values);  // stream 0: gates
        for (int c = 0; c < 4 && 4 * group + c < half; ++c) {
            const Index draw = 4 * group + c;
            eps[(fit * R + draw) * d + k] = T(values[c]);
            if (R > 1) eps[(fit * R + half + draw) * d + k] = T(-values[c]);
        }
    }
}

// u = mu_k + sigma eps: the gate before it is clipped. mu (fits, d), per_fit draws for each. eps (R, d), or (R, n, d)
// where each sample has its own, of R draws, number `first` and on.
template <class T>
__device__ T unclipped(
    Global<const T> mu, Global<const T> eps, T sigma, bool per_sample, Index draw, Index first,
    Index per_fit, Index d, Index n, Index k, Index i) {
    return mu[(first + draw) / per_fit * d + k] + sigma * eps[per_sample ? (draw * n + i) * d + k : draw * d + k];
}

// Xt_ki = X_ki z_k, z = clip(u, 0, 1).      X (d, n), Xt (R, d, n).
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) gated(
    Global<const T> X, Global<const T> mu, Global<const T> eps, double sigma, bool per_sample, Index R, Index first,
    Index per_fit, Index d, Index n, Global<T> Xt) {
    for (Index l = (Index)blockIdx.x * THREADS + threadIdx.x; l < R * d * n; l += (Index)gridDim.x * THREADS) {
        const Index draw = l / (d * n), entry = l - draw * d * n, k = entry / n, i = entry - k * n;
        const T u = unclipped<T>(mu, eps, T(sigma), per_sample, draw, first, per_fit, d, n, k, i);
        Xt[l] = X[entry] * (u <= 0 ? T(0) : u >= 1 ? T(1) : u);
    }
}

// dS/dmu_k of each draw (R, d) from Y: one gate a column (Y_k = M x_k): 2 z_k x_k' Y_k [0 < u_k < 1]; one a sample
// (Y_k = M Xt_k): 2 sum_i X_ki Y_ki [0 < u_ik < 1].      X (d, n), Y (R, d, n). One warp for each draw and column.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) column_dots(
    Global<const T> X, Global<const T> Y, Global<const T> mu, Global<const T> eps, double sigma, bool per_sample,
    Index R, Index first, Index per_fit, Index d, Index n, Global<double> dots) {
    const int lane = threadIdx.x % WARP;
    for (Index row = (Index)blockIdx.x * WARPS + threadIdx.x / WARP; row < R * d; row += (Index)gridDim.x * WARPS) {
        const Index draw = row / d, k = row - draw * d;
        double sum = 0;
        for (Index i = lane; i < n; i += WARP) {
            const T u = unclipped<T>(mu, eps, T(sigma), per_sample, draw, first, per_fit, d, n, k, i);
            if (u > 0 && u < 1) sum += (double)X[k * n + i] * (double)Y[row * n + i] * (per_sample ? 2 : 2 * u);
        }
        sum = lanes_sum<WARP>(sum);
        if (lane == 0) dots[row] = sum;
    }
}

// For every fit, of R draws: its loss and its mean isolated share, and dmu_k = dL/dS sum_draws dots
// + dL/d(sum p) p'(mu_k).      L = -mean S / n + lam sum p, or where lam is NaN L = -mean S / (n sum p + delta).
// S, isolated (fits * R), dots (fits * R, d), mu (fits, d), lam (fits). One block for each fit.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) loss(
    Global<const double> S, Global<const double> isolated, Global<const double> dots, Global<const T> mu,
    Global<const double> lam, Index fits, Index R, Index d, Index n, double sigma, double delta, Global<T> dmu,
    Global<double> value, Global<double> share) {
    for (Index fit = blockIdx.x; fit < fits; fit += gridDim.x) {
        double score = 0, alone = 0, open = 0;
        for (Index draw = threadIdx.x; draw < R; draw += THREADS) {
            score += S[fit * R + draw];
            alone += isolated[fit * R + draw];
        }
        for (Index k = threadIdx.x; k < d; k += THREADS) {
            open += 0.5 + 0.5 * erf((double)mu[fit * d + k] / (sqrt(2.0) * sigma));
        }
        score = block_sum(score) / (double)R;
        alone = block_sum(alone) / (double)R;
        open = block_sum(open);
        const double price = lam[fit];
        const bool regularised = price == price;
        const double denominator = regularised ? (double)n : (double)n * open + delta;
        const double dS = -1 / (denominator * (double)R);
        const double dopen = regularised ? price : score * (double)n / (denominator * denominator);
        for (Index k = threadIdx.x; k < d; k += THREADS) {
            double sum = 0;
            for (Index draw = 0; draw < R; ++draw) sum += dots[(fit * R + draw) * d + k];
            const double m = mu[fit * d + k];
            const double slope = exp(m * m / (-2 * sigma * sigma)) / (sqrt(6.283185307179586476925) * sigma);
            dmu[fit * d + k] = T(dS * sum + dopen * slope);
        }
        if (threadIdx.x == 0) {
            value[fit] = regularised ? -score / denominator + price * open : -score / denominator;
            share[fit] = alone;
        }
    }
}

constexpr int ADAM = 1, NORMALIZED = 2;  // the rules of dufs_core.training.optimizers; any other number is SGD

// Step clock[f] + 1 of an optimiser for every fit that is not done, in place, as dufs_core.training.optimizers: grad, params
// (fits, d); first (fits, d), null where the rule has none; second (fits, d) for Adam, (fits) for normalized, else
// null. Both start as zeros. One block for each fit.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) update(
    Global<const T> grad, Global<const Index> clock, Global<const Index> done, Index fits, Index d, int rule,
    double rate, double momentum, Global<T> params, Global<double> first, Global<double> second) {
    const double decay = 0.9, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
    for (Index fit = blockIdx.x; fit < fits; fit += gridDim.x) {
        if (done[fit] != 0) continue;
        const double t = (double)(clock[fit] + 1);
        double size = 1;
        if (rule == NORMALIZED) {
            double sum = 0;
            for (Index k = threadIdx.x; k < d; k += THREADS) {
                sum += (double)grad[fit * d + k] * (double)grad[fit * d + k];
            }
            const double mean_square = (1 - decay) * (block_sum(sum) / (double)d) + decay * second[fit];
            __syncthreads();  // second is read before it is written
            if (threadIdx.x == 0) second[fit] = mean_square;
            size = mean_square > 0 ? sqrt(mean_square / (1 - pow(decay, t))) : 1;
        }
        for (Index k = threadIdx.x; k < d; k += THREADS) {
            const Index at = fit * d + k;
            const double g = grad[at];
            double direction = g / size;
            if (rule == ADAM) {
                first[at] = beta1 * first[at] + (1 - beta1) * g;
                second[at] = beta2 * second[at] + (1 - beta2) * g * g;
                direction = first[at] / (1 - pow(beta1, t)) / (sqrt(second[at] / (1 - pow(beta2, t))) + epsilon);
            } else if (momentum != 0) {
                direction += momentum * first[at];
                first[at] = direction;
            }
            params[at] = T((double)params[at] - rate * direction);
        }
    }
}

constexpr int RECORD = 7;  // numbers of a record: dufs_core.training.loop.RECORD

// What every fit that is not done reports of step clock[f] + 1, as records[f, clock[f] - start]: loss, S / n, b, open
// gates, undecided gates, share of isolated rows, whether a bandwidth was degenerate. Then the clock is set forward;
// a fit is done when at most `enough` gates are undecided, |mu - 1/2| <= 1/2 + margin. One block for each fit.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) record(
    Global<const double> value, Global<const double> share, Global<const double> S, Global<const double> b,
    Global<const double> degenerate, Global<const T> mu, Global<const Index> start, Index fits, Index R, Index d,
    Index n, Index room, double margin, double enough, Global<Index> clock, Global<Index> done,
    Global<double> records) {
    for (Index fit = blockIdx.x; fit < fits; fit += gridDim.x) {
        if (done[fit] != 0) continue;
        double sums[5] = {0, 0, 0, 0, 0};
        for (Index draw = threadIdx.x; draw < R; draw += THREADS) {
            sums[0] += S[fit * R + draw];
            sums[1] += b[fit * R + draw];
            sums[2] += degenerate[fit * R + draw];
        }
        for (Index k = threadIdx.x; k < d; k += THREADS) {
            const double m = mu[fit * d + k];
            sums[3] += m > 0 ? 1 : 0;
            sums[4] += fabs(m - 0.5) > 0.5 + margin ? 0 : 1;  // NaN decides nothing
        }
        for (int c = 0; c < 5; ++c) sums[c] = block_sum(sums[c]);
        if (threadIdx.x == 0) {
            const Index at = (fit * room + clock[fit] - start[0]) * RECORD;
            const double reported[RECORD] = {
                value[fit], sums[0] / (double)R / (double)n, sums[1] / (double)R, sums[3], sums[4], share[fit],
                sums[2] > 0 ? 1.0 : 0.0};
            for (int c = 0; c < RECORD; ++c) records[at + c] = reported[c];
            clock[fit] += 1;
            done[fit] = sums[4] <= enough;
        }
    }
}
