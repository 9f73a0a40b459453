// From distances to the kernel, its symmetric form and the scores. Equations and names as in dufs_core.kernels.sweeps.
// Matrices (R, n, n) and vectors (R, n) are contiguous.

#include "common.cuh"
#include "tiles.cuh"

// deg_i, q_i = deg_i^(-1/2) and r_i = 1 / q_i (not sqrt(deg): the rounding of q then cancels).
template <class T>
__device__ void write_degree(
    double total, Index row, Global<double> deg, Global<T> q, Global<T> r) {
    const T inverse_root = T(1 / sqrt(total));
    deg[row] = total;
    q[row] = inverse_root;
    r[row] = 1 / inverse_root;
}

// K_ij = exp(-D_ij / b), K_ii = own, deg_i = sum_j K_ij. One block for each row.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) affinity(
    Global<const T> D, Global<const double> b, double own, Index R, Index n, Global<T> K, Global<double> deg,
    Global<T> q, Global<T> r) {
    for (Index row = blockIdx.x; row < R * n; row += gridDim.x) {
        const T minus_inverse = T(-1 / b[row / n]);
        double total = 0;
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            const T value = j == row % n ? T(own) : exp(D[row * n + j] * minus_inverse);
            K[row * n + j] = value;
            total += value;
        }
        total = block_sum(total);
        if (threadIdx.x == 0) write_degree<T>(total, row, deg, q, r);
    }
}

// From the gated data Xt (R, d, n) to K and the degrees without D: K_ij = exp(-sum_k (Xt_ki - Xt_kj)^2 / b), K_ii =
// own. One block for each row of 64 x 64 tiles; a thread forms 4 x 4 distances in registers.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) affinity_from_data(
    Global<const T> Xt, Global<const double> b, double own, Index R, Index d, Index n, Global<T> K, Global<double> deg,
    Global<T> q, Global<T> r) {
    SHARED(T, rows, STEP * TILE);
    SHARED(T, columns, STEP * TILE);
    const Index tiles = (n + TILE - 1) / TILE;
    const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    for (Index tile = blockIdx.x; tile < R * tiles; tile += gridDim.x) {
        const Index draw = tile / tiles, i0 = (tile - draw * tiles) * TILE, data = draw * d * n;
        const T minus_inverse = T(-1 / b[draw]);
        double totals[PER_THREAD] = {0, 0, 0, 0};
        for (Index j0 = 0; j0 < n; j0 += TILE) {
            T distance[PER_THREAD][PER_THREAD] = {};
            for (Index k0 = 0; k0 < d; k0 += STEP) {
                __syncthreads();  // the tiles before are still being read
                for (int l = threadIdx.x; l < STEP * TILE; l += THREADS) {
                    const Index k = k0 + l / TILE, i = i0 + l % TILE, j = j0 + l % TILE;
                    rows[l] = k < d && i < n ? Xt[data + k * n + i] : T(0);
                    columns[l] = k < d && j < n ? Xt[data + k * n + j] : T(0);
                }
                __syncthreads();
                for (int k = 0; k < STEP; ++k) {
                    T left[PER_THREAD], right[PER_THREAD];
                    for (int a = 0; a < PER_THREAD; ++a) {
                        left[a] = rows[k * TILE + ty * PER_THREAD + a];
                        right[a] = columns[k * TILE + tx + a * SIDE];
                    }
                    for (int a = 0; a < PER_THREAD; ++a) {
                        for (int c = 0; c < PER_THREAD; ++c) {
                            const T gap = left[a] - right[c];
                            distance[a][c] += gap * gap;
                        }
                    }
                }
            }
            for (int a = 0; a < PER_THREAD; ++a) {
                const Index i = i0 + ty * PER_THREAD + a;
                for (int c = 0; c < PER_THREAD; ++c) {
                    const Index j = j0 + tx + c * SIDE;
                    if (i < n && j < n) {
                        const T value = i == j ? T(own) : exp(distance[a][c] * minus_inverse);
                        K[(draw * n + i) * n + j] = value;
                        totals[a] += value;
                    }
                }
            }
        }
        for (int a = 0; a < PER_THREAD; ++a) {
            const Index i = i0 + ty * PER_THREAD + a;
            const double total = lanes_sum<SIDE>(totals[a]);
            if (tx == 0 && i < n) write_degree<T>(total, draw * n + i, deg, q, r);
        }
    }
}

// A_ij = q_i K_ij q_j, in place. One block for each row.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) symmetrise(Global<T> K, Global<const T> q, Index R, Index n) {
    for (Index row = blockIdx.x; row < R * n; row += gridDim.x) {
        const Index first = row - row % n;
        const T qi = q[row];
        for (Index j = threadIdx.x; j < n; j += THREADS) K[row * n + j] *= qi * q[first + j];
    }
}

// H = G R, and W q, W r with W = A^t G;  R_ij = (r_i q_j + q_i r_j) / 2. H may be G itself. One block for each row.
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

// S = sum_i q_i (W r)_i, and the share of rows whose degree is at most `alone`. One block per draw.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) totals(
    Global<const double> Wr, Global<const T> q, Global<const double> deg, double alone, Index R, Index n,
    Global<double> S, Global<double> isolated) {
    for (Index draw = blockIdx.x; draw < R; draw += gridDim.x) {
        double sum = 0, count = 0;
        for (Index i = threadIdx.x; i < n; i += THREADS) {
            sum += Wr[draw * n + i] * q[draw * n + i];
            count += deg[draw * n + i] <= alone;
        }
        sum = block_sum(sum);
        count = block_sum(count);
        if (threadIdx.x == 0) {
            S[draw] = sum;
            isolated[draw] = count / (double)n;
        }
    }
}
