// From Gram matrices to their distances and kernels, and from the distances of the neighbours to the bandwidth. A kernel
// that works by rows takes any rows of the matrices of all draws: the first of them is row `first` of R n, and vectors
// (R, n) are whole. A block works on one row.

#include "common.cuh"

// D_ij = max(g_i + g_j - 2 G_ij, 0), D_ii = 0.
template <class T>
__device__ T distance(T G, T gi, T gj, bool diagonal) {
    const T value = gi + gj - 2 * G;
    return value > 0 && !diagonal ? value : T(0);
}

// g_i = G_ii.      G (R, n, n).
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) diagonal(Global<const T> G, Index R, Index n, Global<T> g) {
    for (Index row = (Index)blockIdx.x * THREADS + threadIdx.x; row < R * n; row += (Index)gridDim.x * THREADS) {
        g[row] = G[row * n + row % n];
    }
}

// D; kth_i, the k-th smallest D_ij over j != i; neighbour_i, the first such j; largest_i = max_j D_ij. D may be G.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) distances(
    Global<const T> G, Global<const T> g, Index first, Index rows, Index n, Index k, Global<T> D, Global<T> kth,
    Global<Index> neighbour, Global<T> largest) {
    for (Index row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index at = first + row, i = at % n, others = at - i, base = row * n;
        T top = 0;
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            const T value = distance<T>(G[base + j], g[at], g[others + j], i == j);
            D[base + j] = value;
            top = Larger::of(top, value);
        }
        top = block_reduce<Larger>(top);  // its barriers also make the row of D visible to the whole block
        Index rank = k - 1, where = n;
        const T value = select<T>(D, base, n, i, rank);
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            if (j != i && j < where && D[base + j] == value) where = j;
        }
        where = block_reduce<Smaller>(where);
        if (threadIdx.x == 0) {
            kth[at] = value;
            neighbour[at] = where;
            largest[at] = top;
        }
    }
}

// K_ij = exp(-D_ij / b), K_ii = self_weight; deg_i = sum_j K_ij, and where q is not null q_i = deg_i^(-1/2) and
// r_i = 1 / q_i (not sqrt(deg): the rounding of q then cancels). K may be G.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) affinity(
    Global<const T> G, Global<const T> g, Global<const double> b, double self_weight, Index first, Index rows, Index n,
    Global<T> K, Global<double> deg, Global<T> q, Global<T> r) {
    const bool with_roots = q != nullptr;
    for (Index row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index at = first + row, i = at % n, others = at - i, base = row * n;
        const T minus_inverse = T(-1 / b[at / n]);
        double total = 0;
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            const T D = distance<T>(G[base + j], g[at], g[others + j], i == j);
            const T value = i == j ? T(self_weight) : affinity_of(D * minus_inverse);
            K[base + j] = value;
            total += value;
        }
        total = block_sum(total);
        if (threadIdx.x == 0) {
            deg[at] = total;
            if (with_roots) {
                q[at] = T(1 / sqrt(total));
                r[at] = 1 / q[at];
            }
        }
    }
}

// The streaming form's last pass over some rows of one draw's G: it becomes C = -(E + E') / b, where E_ij = K_ij dS/dK_ij
// and (E + E')_ij = K_ij (dots_ij - rho_i - rho_j); row_sums_i = sum_j C_ij, slopes_i = sum_j (E + E')_ij D_ij.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) grad_distances(
    Global<T> G, Global<const T> dots, Global<const T> g, Global<const double> b, Global<const T> rho, Index first,
    Index rows, Index n, Global<double> row_sums, Global<double> slopes) {
    const T minus_inverse = T(-1 / b[0]);
    for (Index row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = first + row, base = row * n;
        double sum = 0, slope = 0;
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            const T D = distance<T>(G[base + j], g[i], g[j], i == j);
            const T E = D > 0 ? slope_of(affinity_of(D * minus_inverse)) * (dots[base + j] - (rho[i] + rho[j])) : T(0);
            G[base + j] = E * minus_inverse;
            sum += E;
            slope += E * D;
        }
        sum = block_sum(sum);
        slope = block_sum(slope);
        if (threadIdx.x == 0) {
            row_sums[i] = sum * minus_inverse;
            slopes[i] = slope;
        }
    }
}

// The position of the entry equal to `value` that has `nth` such entries before it.
template <class T>
__device__ Index nth_equal(Global<const T> values, Index base, Index n, T value, Index nth) {
    SHARED(Index, found, 1);
    const Index count_each = (n + THREADS - 1) / THREADS, start = threadIdx.x * count_each;
    const Index stop = start + count_each < n ? start + count_each : n;
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
    bool degenerate_is_one, double relative, double absolute, Global<double> b, Global<double> degenerate,
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
        for (Index i = threadIdx.x; i < n; i += THREADS) top = Larger::of(top, largest[base + i]);
        top = block_reduce<Larger>(top);

        double first = 1 - between, second = between;
        double s = low_value * first + high_value * second;
        bool replaced;
        if (degenerate_is_one) {
            replaced = s < AUTHORS_ZERO;
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
                    if (kth[base + i] > tiny && kth[base + i] < smallest) {
                        smallest = kth[base + i];
                        where = i;
                    }
                }
                const double own = smallest;
                smallest = block_reduce<Smaller>(smallest);
                where = block_reduce<Smaller>(own == smallest ? where : n);
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
            weights[2 * draw] = first * factor;
            weights[2 * draw + 1] = second * factor;
        }
    }
}
