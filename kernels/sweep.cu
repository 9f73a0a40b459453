// The Gram form between its products: from the kernel to the scores, and back to M = dS/dG (names as in
// dufs_core.objective.ops). Matrices (R, n, n) and vectors (R, n) are contiguous. T is the half of the derivative with
// dS/dA = T + T'. Where T_ij and T_ji are needed, a block works on one row of tiles and reads the transposed tile through
// shared memory, so that both are read along rows.

#include "common.cuh"

constexpr int TILE_ROWS = THREADS / SWEEP_TILE;  // rows of a tile that the block covers at once
constexpr int PER_THREAD = SWEEP_TILE / TILE_ROWS;
constexpr int PITCH = SWEEP_TILE + 1;  // of a transposed tile: its columns fall into different banks

static_assert(SWEEP_TILE == WARP, "a warp covers one row of a tile");

// A_ij = q_i K_ij q_j, in place. One block for each row.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) symmetrise(Global<T> K, Global<const T> q, Index R, Index n) {
    for (Index row = blockIdx.x; row < R * n; row += gridDim.x) {
        const Index first = row - row % n;
        const T qi = q[row];
        for (Index j = threadIdx.x; j < n; j += THREADS) K[row * n + j] *= qi * q[first + j];
    }
}

// H_ij = G_ij (r_i q_j + q_i r_j) / 2, and W q, W r with W = A^t G (by entries). H may be G. One block for each row.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) score(
    Global<const T> At, Global<const T> G, Global<const T> q, Global<const T> r, Index R, Index n, Global<T> H,
    Global<double> Wq, Global<double> Wr) {
    for (Index row = blockIdx.x; row < R * n; row += gridDim.x) {
        const Index first = row - row % n;
        const T hq = q[row] / 2, hr = r[row] / 2;
        double sum_q = 0, sum_r = 0;
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            const T Gij = G[row * n + j], qj = q[first + j], rj = r[first + j], W = At[row * n + j] * Gij;
            sum_q += W * qj;
            sum_r += W * rj;
            H[row * n + j] = Gij * (hr * qj + hq * rj);
        }
        sum_q = block_sum(sum_q);
        sum_r = block_sum(sum_r);
        if (threadIdx.x == 0) {
            Wq[row] = sum_q;
            Wr[row] = sum_r;
        }
    }
}

// turned[j][i] = T[j0 + j, i0 + i], for the whole block; 0 outside the matrix.
template <class T, class Tile>
__device__ void read_turned(Global<const T> matrix, Index base, Index n, Index j0, Index i0, Tile& turned) {
    const int tx = threadIdx.x % SWEEP_TILE, ty = threadIdx.x / SWEEP_TILE;
    __syncthreads();  // the tile before is still being read
    for (int m = ty; m < SWEEP_TILE; m += TILE_ROWS) {
        const Index j = j0 + m, i = i0 + tx;
        turned[m * PITCH + tx] = j < n && i < n ? matrix[base + j * n + i] : T(0);
    }
    __syncthreads();
}

// half_ddeg_i = (q_i (W q)_i - q_i^3 (W r)_i) / 4 - q_i^2 sum_j (T_ij + T_ji) A_ij / 2: half the derivative through the
// degrees. A is symmetric.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) grad_degrees(
    Global<const T> Tm, Global<const T> A, Global<const T> q, Global<const double> Wq, Global<const double> Wr,
    Index R, Index n, Global<T> half_ddeg) {
    SHARED(T, turned, SWEEP_TILE * PITCH);
    const Index tiles = (n + SWEEP_TILE - 1) / SWEEP_TILE;
    const int tx = threadIdx.x % SWEEP_TILE, ty = threadIdx.x / SWEEP_TILE;
    for (Index tile = blockIdx.x; tile < R * tiles; tile += gridDim.x) {
        const Index draw = tile / tiles, i0 = (tile - draw * tiles) * SWEEP_TILE, base = draw * n * n;
        double sums[PER_THREAD] = {};
        for (Index j0 = 0; j0 < n; j0 += SWEEP_TILE) {
            read_turned<T>(Tm, base, n, j0, i0, turned);
            for (int m = 0; m < PER_THREAD; ++m) {
                const Index i = i0 + ty + m * TILE_ROWS, j = j0 + tx;
                if (i < n && j < n) {
                    const Index at = base + i * n + j;
                    sums[m] += (Tm[at] + turned[tx * PITCH + ty + m * TILE_ROWS]) * A[at];
                }
            }
        }
        for (int m = 0; m < PER_THREAD; ++m) {
            const Index i = i0 + ty + m * TILE_ROWS, row = draw * n + i;
            const double sum = warp_reduce<Add>(sums[m]);
            if (tx == 0 && i < n) {
                const double qi = q[row];
                half_ddeg[row] = T(0.25 * (qi * Wq[row] - qi * qi * qi * Wr[row]) - 0.5 * sum * qi * qi);
            }
        }
    }
}

// M but for its diagonal and the bandwidth's entries; row_sums_i = sum_j dD_ij; db (R, tiles) = sum of E D / b over
// each row of tiles.
//
// With K_ij = A_ij r_i r_j and E = (q_i (T + T')_ij q_j + half_ddeg_i + half_ddeg_j) K_ij where D > 0:
// dD = -E / b,  M = A^t R - 2 dD. M may be At. D may be null where b does not depend on it: then E is taken everywhere
// (what that adds at D = 0 is cancelled by the diagonal) and db is 0.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) backward(
    Global<const T> Tm, Global<const T> A, Global<const T> D, Global<const T> At, Global<const T> q,
    Global<const T> r, Global<const T> half_ddeg, Global<const double> b, Index R, Index n, Global<T> M,
    Global<double> row_sums, Global<double> db) {
    SHARED(T, turned, SWEEP_TILE * PITCH);
    const Index tiles = (n + SWEEP_TILE - 1) / SWEEP_TILE;
    const int tx = threadIdx.x % SWEEP_TILE, ty = threadIdx.x / SWEEP_TILE;
    const bool with_D = D != nullptr;
    for (Index tile = blockIdx.x; tile < R * tiles; tile += gridDim.x) {
        const Index draw = tile / tiles, i0 = (tile - draw * tiles) * SWEEP_TILE, base = draw * n * n, row = draw * n;
        const T minus_inverse = T(-1 / b[draw]);
        double sums[PER_THREAD] = {}, total = 0;
        for (Index j0 = 0; j0 < n; j0 += SWEEP_TILE) {
            read_turned<T>(Tm, base, n, j0, i0, turned);
            const Index j = j0 + tx;
            for (int m = 0; m < PER_THREAD; ++m) {
                const Index i = i0 + ty + m * TILE_ROWS;
                if (i < n && j < n) {
                    const Index at = base + i * n + j;
                    const T qi = q[row + i], qj = q[row + j], ri = r[row + i], rj = r[row + j];
                    const T dA = Tm[at] + turned[tx * PITCH + ty + m * TILE_ROWS];
                    T E = (qi * qj * dA + (half_ddeg[row + i] + half_ddeg[row + j])) * slope_of(A[at] * (ri * rj));
                    const T distance = with_D ? D[at] : T(0);
                    if (with_D && !(distance > 0)) E = 0;
                    const T dD = E * minus_inverse;
                    total -= dD * distance;
                    sums[m] += dD;
                    M[at] = At[at] * ((ri * qj + qi * rj) / 2) - 2 * dD;
                }
            }
        }
        for (int m = 0; m < PER_THREAD; ++m) {
            const Index i = i0 + ty + m * TILE_ROWS;
            const double sum = warp_reduce<Add>(sums[m]);
            if (tx == 0 && i < n) row_sums[row + i] = sum;
        }
        total = block_sum(total);
        if (threadIdx.x == 0) db[tile] = total;
    }
}

// Add the derivative through the bandwidth to the entries of M that b was read from, those of the rows (R, 2) and their
// neighbours, and 2 row sums of dD to the diagonal. Weights (R, 2) of 0: b is a constant. And the score S = sum_i q_i (W r)_i
// and the share of rows with at most the degree of an isolated one. One block for each draw.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) finish(
    Global<T> M, Global<const Index> neighbour, Global<const Index> rows, Global<const double> weights,
    Global<const double> b, Global<const double> db, Global<const double> Wr, Global<const T> q,
    Global<const double> deg, double isolated_degree, Index R, Index n, Global<double> row_sums, Global<double> S,
    Global<double> isolated) {
    const Index tiles = (n + SWEEP_TILE - 1) / SWEEP_TILE;
    for (Index draw = blockIdx.x; draw < R; draw += gridDim.x) {
        const Index base = draw * n * n, row = draw * n;
        double slope = 0;
        for (Index tile = threadIdx.x; tile < tiles; tile += THREADS) slope += db[draw * tiles + tile];
        slope = block_sum(slope) / b[draw];
        for (int l = 0; l < 2; ++l) {
            const double weight = weights[2 * draw + l], value = 0.5 * slope * weight;
            if (threadIdx.x == 0 && weight != 0) {
                const Index i = rows[2 * draw + l], j = neighbour[row + i];
                M[base + i * n + j] -= T(2 * value);
                M[base + j * n + i] -= T(2 * value);
                row_sums[row + i] += value;
                row_sums[row + j] += value;
            }
        }
        __syncthreads();
        double sum = 0, count = 0;
        for (Index i = threadIdx.x; i < n; i += THREADS) {
            M[base + i * n + i] += T(2 * row_sums[row + i]);
            sum += Wr[row + i] * q[row + i];
            count += deg[row + i] <= isolated_degree;
        }
        sum = block_sum(sum);
        count = block_sum(count);
        if (threadIdx.x == 0) {
            S[draw] = sum;
            isolated[draw] = count / (double)n;
        }
    }
}
