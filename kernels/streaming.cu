// The streaming form for few columns: tiles of K are formed in registers wherever they are needed and used at once;
// nothing of size n x n is ever stored. One draw at a time; its m open columns, the undecided ones first.
//
// Everything that the score needs is P = diag(1 / deg) K applied again and again to two arrays (m, n):
//
//     F_0 = Xt,  C_0 = Xt / deg,  F_a = P F_(a-1) = P^a Xt,  C_a = P C_(a-1) = ((P')^a Xt) / deg
//
// `walks` holds them as rows (t + 1, 2, m, n): F_0, C_0, F_1, C_1, ... F_t, C_t. With E_ij = K_ij dS/dK_ij
//
//     S = sum_i F_0i . F_ti,   share_i = sum_(a < t) C_ai . F_(t-a)i,   F_ai = column i of F_a
//     (E + E')_ij = K_ij (sum_(a < t) (C_ai . F_(t-1-a)j + F_(t-1-a)i . C_aj) - share_i - share_j)
//     B = -(E + E') / b,   dS/dXt = F_t + deg C_t + 2 (rowsum(B) Xt - B Xt),   db = sum_ij (E + E')_ij D_ij / (2 b^2)
//
// Multiply-adds of a draw (t = 2, all gates undecided; a squared gap counts as one): nearest n^2 m for every two
// neighbours, degrees n^2 m, each of t walks n^2 (m + 2 m), pull n^2 (m + 4 m + m): 14 n^2 m. From 65 columns of an
// operand on, the distances are formed once for every 64 of them. Traffic: each pass reads its operands once for every
// 64 rows, from the level 2 cache where they fit it: n^2 / 64 entries for every row of an operand.

#include "common.cuh"
#include "streaming.cuh"

constexpr int NEAREST = 2;  // neighbours that one sweep over the columns finds

// kth_i, the k-th smallest D_ij over j != i; neighbour_i, that j (the lowest where distances tie); largest_i = max_j
// D_ij. A sweep over the columns finds the next NEAREST neighbours beyond those found before, by (distance, index).
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) nearest(
    Global<const T> Xt, Index m, Index n, Index k, Global<T> kth, Global<Index> neighbour, Global<T> largest) {
    SHARED(T, rows, DEPTH<T> * PITCH);
    SHARED(T, columns, DEPTH<T> * PITCH);
    SHARED(T, last, TILE);  // the farthest found before, for each row
    SHARED(Index, last_j, TILE);
    const T infinity = T(1.0 / 0.0);
    for (Index i0 = (Index)blockIdx.x * TILE; i0 < n; i0 += (Index)gridDim.x * TILE) {
        T top[PER_THREAD] = {};
        for (int a = 0; a < PER_THREAD; ++a) {
            if (tile_column(0) == 0) {
                last[tile_row(a)] = -1;
                last_j[tile_row(a)] = -1;
            }
        }
        for (Index found = 0; found < k; found += NEAREST) {
            __syncthreads();
            T best[PER_THREAD][NEAREST];
            Index best_j[PER_THREAD][NEAREST];
            for (int a = 0; a < PER_THREAD; ++a) {
                for (int p = 0; p < NEAREST; ++p) {
                    best[a][p] = infinity;
                    best_j[a][p] = n;
                }
            }
            for (Index j0 = 0; j0 < n; j0 += TILE) {
                T distance[PER_THREAD][PER_THREAD] = {};
                add_pairs<T, true>(Xt, 0, 0, m, n, i0, j0, rows, columns, distance);
                for (int a = 0; a < PER_THREAD; ++a) {
                    const T before = last[tile_row(a)];
                    const Index before_j = last_j[tile_row(a)];
                    for (int c = 0; c < PER_THREAD; ++c) {
                        T value = distance[a][c];
                        Index j = j0 + tile_column(c);
                        const bool counts = j < n && j != i0 + tile_row(a);
                        if (counts && value > top[a]) top[a] = value;
                        if (counts && (value > before || (value == before && j > before_j))) {
                            for (int p = 0; p < NEAREST; ++p) {  // j grows: of equal distances the first stays ahead
                                if (value < best[a][p]) {
                                    const T moved = best[a][p];
                                    const Index moved_j = best_j[a][p];
                                    best[a][p] = value;
                                    best_j[a][p] = j;
                                    value = moved;
                                    j = moved_j;
                                }
                            }
                        }
                    }
                }
            }
            for (int a = 0; a < PER_THREAD; ++a) {
                const Index i = i0 + tile_row(a);
                for (int p = 0; p < NEAREST; ++p) {  // the smallest over the threads of the row, taken from its owner
                    T value = best[a][0];
                    Index j = best_j[a][0];
                    for (int offset = SIDE / 2; offset > 0; offset /= 2) {
                        const T other = __shfl_xor_sync(ALL_LANES, value, offset);
                        const Index other_j = __shfl_xor_sync(ALL_LANES, j, offset);
                        if (other < value || (other == value && other_j < j)) {
                            value = other;
                            j = other_j;
                        }
                    }
                    if (best_j[a][0] == j) {
                        for (int l = 1; l < NEAREST; ++l) {
                            best[a][l - 1] = best[a][l];
                            best_j[a][l - 1] = best_j[a][l];
                        }
                        best[a][NEAREST - 1] = infinity;
                        best_j[a][NEAREST - 1] = n;
                    }
                    if (found + p == k - 1 && tile_column(0) == 0 && i < n) {
                        kth[i] = value;
                        neighbour[i] = j;
                    }
                    if (p == NEAREST - 1 && tile_column(0) == 0) {
                        last[tile_row(a)] = value;
                        last_j[tile_row(a)] = j;
                    }
                }
            }
        }
        for (int a = 0; a < PER_THREAD; ++a) {
            const Index i = i0 + tile_row(a);
            for (int offset = SIDE / 2; offset > 0; offset /= 2) {
                const T other = __shfl_xor_sync(ALL_LANES, top[a], offset);
                top[a] = other > top[a] ? other : top[a];
            }
            if (tile_column(0) == 0 && i < n) largest[i] = top[a];
        }
    }
}

// deg_i = sum_j K_ij, K_ij = exp(-D_ij / b), K_ii = own.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) degrees(
    Global<const T> Xt, Global<const double> b, double own, Index m, Index n, Global<double> deg) {
    SHARED(T, rows, DEPTH<T> * PITCH);
    SHARED(T, columns, DEPTH<T> * PITCH);
    const T minus_inverse = T(-1 / b[0]);
    for (Index i0 = (Index)blockIdx.x * TILE; i0 < n; i0 += (Index)gridDim.x * TILE) {
        double totals[PER_THREAD] = {};
        for (Index j0 = 0; j0 < n; j0 += TILE) {
            T distance[PER_THREAD][PER_THREAD] = {};
            add_pairs<T, true>(Xt, 0, 0, m, n, i0, j0, rows, columns, distance);
            for (int a = 0; a < PER_THREAD; ++a) {
                T sum = 0;
                for (int c = 0; c < PER_THREAD; ++c) {
                    const Index j = j0 + tile_column(c);
                    const bool other = j != i0 + tile_row(a);
                    if (j < n) sum += other ? exp(distance[a][c] * minus_inverse) : T(own);
                }
                totals[a] += sum;
            }
        }
        for (int a = 0; a < PER_THREAD; ++a) {
            const double total = lanes_sum<SIDE>(totals[a]);
            if (tile_column(0) == 0 && i0 + tile_row(a) < n) deg[i0 + tile_row(a)] = total;
        }
    }
}

// out = P Y: out_ci = sum_j K_ij Y_cj / deg_i, K_ii = own.      Y, out (width, n). A block forms 64 rows of 64 columns
// of Y. m is at least 1: the barriers of add_pairs stand between the readers of a tile and the next tile.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) walk(
    Global<const T> Xt, Global<const double> b, double own, Global<const double> deg, Global<const T> Y, Index m,
    Index width, Index n, Global<T> out) {
    SHARED(T, rows, DEPTH<T> * PITCH);
    SHARED(T, columns, DEPTH<T> * PITCH);
    SHARED(T, tile, TILE * PITCH);
    const T minus_inverse = T(-1 / b[0]);
    const Index chunks = (width + TILE - 1) / TILE, tiles = (n + TILE - 1) / TILE;
    for (Index work = blockIdx.x; work < tiles * chunks; work += gridDim.x) {
        const Index i0 = work / chunks * TILE, c0 = work % chunks * TILE;
        T totals[PER_THREAD][PER_THREAD] = {};
        for (Index j0 = 0; j0 < n; j0 += TILE) {
            T distance[PER_THREAD][PER_THREAD] = {};
            add_pairs<T, true>(Xt, 0, 0, m, n, i0, j0, rows, columns, distance);
            for (int a = 0; a < PER_THREAD; ++a) {
                for (int c = 0; c < PER_THREAD; ++c) {
                    const bool other = j0 + tile_column(c) != i0 + tile_row(a);
                    tile[tile_column(c) * PITCH + tile_row(a)] = other ? exp(distance[a][c] * minus_inverse) : T(own);
                }
            }
            add_products<T>(Y, c0, width, n, j0, tile, columns, totals);
        }
        for (int a = 0; a < PER_THREAD; ++a) {
            const Index i = i0 + tile_row(a);
            for (int c = 0; c < PER_THREAD; ++c) {
                const Index column = c0 + tile_column(c);
                if (i < n && column < width) out[column * n + i] = T(totals[a][c] / deg[i]);
            }
        }
    }
}

// BX = B Xt for the first `wanted` columns (wanted, n), row_sums_i = sum_j B_ij, slopes_i = sum_j (E + E')_ij D_ij.
// The first 2 t blocks of m rows of the walks pair with the same blocks in reversed order: F_a with C_(t-1-a). m is at
// least 1, as for walk.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) pull(
    Global<const T> walks, Global<const double> b, Global<const T> share, Index t, Index m, Index wanted, Index n,
    Global<T> BX, Global<double> row_sums, Global<double> slopes) {
    SHARED(T, rows, DEPTH<T> * PITCH);
    SHARED(T, columns, DEPTH<T> * PITCH);
    SHARED(T, tile, TILE * PITCH);
    SHARED(double, sums, TILE);  // each is one thread's alone: registers are few
    SHARED(double, moments, TILE);
    const T minus_inverse = T(-1 / b[0]);
    const Index chunks = (wanted + TILE - 1) / TILE, tiles = (n + TILE - 1) / TILE;
    for (Index work = blockIdx.x; work < tiles * chunks; work += gridDim.x) {
        const Index i0 = work / chunks * TILE, c0 = work % chunks * TILE;
        T totals[PER_THREAD][PER_THREAD] = {};
        for (int a = 0; a < PER_THREAD; ++a) {
            if (tile_column(0) == 0) sums[tile_row(a)] = moments[tile_row(a)] = 0;
        }
        for (Index j0 = 0; j0 < n; j0 += TILE) {
            T entries[PER_THREAD][PER_THREAD] = {};
            add_pairs<T, true>(walks, 0, 0, m, n, i0, j0, rows, columns, entries);
            for (int a = 0; a < PER_THREAD; ++a) {
                for (int c = 0; c < PER_THREAD; ++c) {  // kept there by the thread that reads it
                    tile[tile_column(c) * PITCH + tile_row(a)] = entries[a][c];
                    entries[a][c] = 0;
                }
            }
            for (Index block = 0; block < 2 * t; ++block) {
                add_pairs<T, false>(walks, (2 * t - 1 - block) * m, block * m, m, n, i0, j0, rows, columns, entries);
            }
            for (int a = 0; a < PER_THREAD; ++a) {
                const Index i = i0 + tile_row(a);
                T sum = 0, moment = 0;
                for (int c = 0; c < PER_THREAD; ++c) {
                    const Index j = j0 + tile_column(c);
                    const int at = tile_column(c) * PITCH + tile_row(a);
                    const T distance = tile[at];
                    T E = 0;
                    if (i < n && j < n && distance > 0) {
                        E = exp(distance * minus_inverse) * (entries[a][c] - (share[i] + share[j]));
                    }
                    sum += E;
                    moment += E * distance;
                    tile[at] = E;
                }
                sum = lanes_sum<SIDE>(sum);
                moment = lanes_sum<SIDE>(moment);
                if (tile_column(0) == 0) {
                    sums[tile_row(a)] += sum;
                    moments[tile_row(a)] += moment;
                }
            }
            add_products<T>(walks, c0, wanted, n, j0, tile, columns, totals);
        }
        for (int a = 0; a < PER_THREAD; ++a) {
            const Index i = i0 + tile_row(a);
            if (tile_column(0) == 0 && i < n && c0 == 0) {
                row_sums[i] = sums[tile_row(a)] * minus_inverse;
                slopes[i] = moments[tile_row(a)];
            }
            for (int c = 0; c < PER_THREAD; ++c) {
                const Index column = c0 + tile_column(c);
                if (i < n && column < wanted) BX[column * n + i] = totals[a][c] * minus_inverse;
            }
        }
    }
}
