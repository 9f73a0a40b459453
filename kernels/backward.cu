// The backward sweep: from H and the kept matrices to M = dS/dG. Equations and names as in dufs_core.kernels.sweeps.
// Matrices (R, n, n) and vectors (R, n) are contiguous. A block works on one row of 32 x 32 tiles; it reads the
// transposed tile through shared memory, so that both T_ij and T_ji are read along rows.

#include "common.cuh"

constexpr int TILE = 32;      // rows and columns of a tile
constexpr int TILE_ROWS = 8;  // rows that the block covers at once
constexpr int PITCH = TILE + 1;  // of a transposed tile: its columns fall into different banks

static_assert(THREADS == TILE * TILE_ROWS, "a block is 32 x 8 threads");

// turned[j][i] = T[j0 + j, i0 + i], for the whole block; 0 outside the matrix.
template <class T, class Tile>
__device__ void read_turned(Global<const T> matrix, Index base, Index n, Index j0, Index i0, Tile& turned) {
    const int tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;
    __syncthreads();  // the tile before is still being read
    for (int m = ty; m < TILE; m += TILE_ROWS) {
        const Index j = j0 + m, i = i0 + tx;
        turned[m * PITCH + tx] = j < n && i < n ? matrix[base + j * n + i] : T(0);
    }
    __syncthreads();
}

// share_i = (q_i (W q)_i - q_i^3 (W r)_i) / 4 - q_i^2 sum_j (T_ij + T_ji) A_ij / 2: half the derivative through the
// degrees. A is symmetric.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) degree_terms(
    Global<const T> Tm, Global<const T> A, Global<const T> q, Global<const double> Wq, Global<const double> Wr,
    Index R, Index n, Global<T> share) {
    SHARED(T, turned, TILE * PITCH);
    const Index tiles = (n + TILE - 1) / TILE;
    const int tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;
    for (Index tile = blockIdx.x; tile < R * tiles; tile += gridDim.x) {
        const Index draw = tile / tiles, i0 = (tile - draw * tiles) * TILE, base = draw * n * n;
        double sums[TILE / TILE_ROWS] = {};
        for (Index j0 = 0; j0 < n; j0 += TILE) {
            read_turned<T>(Tm, base, n, j0, i0, turned);
            for (int m = 0; m < TILE / TILE_ROWS; ++m) {
                const Index i = i0 + ty + m * TILE_ROWS, j = j0 + tx;
                if (i < n && j < n) {
                    const Index at = base + i * n + j;
                    sums[m] += (Tm[at] + turned[tx * PITCH + ty + m * TILE_ROWS]) * A[at];
                }
            }
        }
        for (int m = 0; m < TILE / TILE_ROWS; ++m) {
            const Index i = i0 + ty + m * TILE_ROWS;
            const double sum = lanes_sum<WARP>(sums[m]);
            if (tx == 0 && i < n) {
                const double qi = q[draw * n + i];
                share[draw * n + i] =
                    T(0.25 * (qi * Wq[draw * n + i] - qi * qi * qi * Wr[draw * n + i]) - 0.5 * sum * qi * qi);
            }
        }
    }
}

// M but for its diagonal and the bandwidth's entries; row_sums_i = sum_j dD_ij; db (R, tiles) = sum of E D / b over
// each row of tiles.
//
// With dA = T + T', K_ij = A_ij r_i r_j and E = (q_i dA_ij q_j + share_i + share_j) K_ij where D > 0:
// dD = -E / b,  M = A^t R - 2 dD. M may be At. D may be null where b does not depend on it: then E is taken everywhere
// (what that adds at D = 0 is cancelled by the diagonal) and db is 0.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) backward(
    Global<const T> Tm, Global<const T> A, Global<const T> D, Global<const T> At, Global<const T> q,
    Global<const T> r, Global<const T> share, Global<const double> b, Index R, Index n, Global<T> M,
    Global<double> row_sums, Global<double> db) {
    SHARED(T, turned, TILE * PITCH);
    const Index tiles = (n + TILE - 1) / TILE;
    const int tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;
    const bool with_D = D != nullptr;
    for (Index tile = blockIdx.x; tile < R * tiles; tile += gridDim.x) {
        const Index draw = tile / tiles, i0 = (tile - draw * tiles) * TILE, base = draw * n * n, row = draw * n;
        const T minus_inverse = T(-1 / b[draw]);
        double sums[TILE / TILE_ROWS] = {}, total = 0;
        for (Index j0 = 0; j0 < n; j0 += TILE) {
            read_turned<T>(Tm, base, n, j0, i0, turned);
            const Index j = j0 + tx;
            for (int m = 0; m < TILE / TILE_ROWS; ++m) {
                const Index i = i0 + ty + m * TILE_ROWS;
                if (i < n && j < n) {
                    const Index at = base + i * n + j;
                    const T qi = q[row + i], qj = q[row + j], ri = r[row + i], rj = r[row + j];
                    const T dA = Tm[at] + turned[tx * PITCH + ty + m * TILE_ROWS];
                    T E = (qi * qj * dA + (share[row + i] + share[row + j])) * (A[at] * (ri * rj));
                    const T distance = with_D ? D[at] : T(0);
                    if (with_D && !(distance > 0)) E = 0;
                    const T dD = E * minus_inverse;
                    total -= dD * distance;
                    sums[m] += dD;
                    M[at] = At[at] * ((ri * qj + qi * rj) / 2) - 2 * dD;
                }
            }
        }
        for (int m = 0; m < TILE / TILE_ROWS; ++m) {
            const Index i = i0 + ty + m * TILE_ROWS;
            const double sum = lanes_sum<WARP>(sums[m]);
            if (tx == 0 && i < n) row_sums[row + i] = sum;
        }
        total = block_sum(total);
        if (threadIdx.x == 0) db[tile] = total;
    }
}

// Add the bandwidth's share to the entries of M that b was read from, and 2 row sums of dD to the diagonal.
// rows, weights (R, 2) as `bandwidth` gave them (weights 0: b is a constant, D may be null). One block for each draw.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) finish(
    Global<T> M, Global<const T> D, Global<const T> kth, Global<const Index> rows, Global<const double> weights,
    Global<const double> b, Global<const double> db, Index R, Index n, Global<double> row_sums) {
    const Index tiles = (n + TILE - 1) / TILE;
    for (Index draw = blockIdx.x; draw < R; draw += gridDim.x) {
        const Index base = draw * n * n, row = draw * n;
        double slope = 0;
        for (Index tile = threadIdx.x; tile < tiles; tile += THREADS) slope += db[draw * tiles + tile];
        slope = block_sum(slope) / b[draw];
        for (int l = 0; l < 2; ++l) {
            const double weight = weights[2 * draw + l];
            if (weight != 0) {
                const Index i = rows[2 * draw + l];
                const double value = 0.5 * slope * weight;
                double gap = 1.0 / 0.0;
                Index j = n;
                for (Index c = threadIdx.x; c < n; c += THREADS) {  // the neighbour at that distance, not the row itself
                    const double difference = (double)D[base + i * n + c] - (double)kth[row + i];
                    const double size = difference < 0 ? -difference : difference;
                    if (c != i && size < gap) {
                        gap = size;
                        j = c;
                    }
                }
                j = block_argmin(gap, j);
                if (threadIdx.x == 0) {
                    M[base + i * n + j] -= T(2 * value);
                    M[base + j * n + i] -= T(2 * value);
                    row_sums[row + i] += value;
                    row_sums[row + j] += value;
                }
            }
        }
        __syncthreads();
        for (Index i = threadIdx.x; i < n; i += THREADS) M[base + i * n + i] += T(2 * row_sums[row + i]);
    }
}
