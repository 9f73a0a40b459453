// The streaming form for many columns: a library product forms some rows of a matrix over all pairs, the kernels here
// turn them in place into what the next product takes, and the rows are gone before the next ones are formed.
// Equations and names as in streaming.cu. Tiles are (rows, n): row r of a tile belongs to sample first + r.

#include "common.cuh"

// g_i = sum_k Xt_ki^2.      Xt (m, n).
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) norms(Global<const T> Xt, Index m, Index n, Global<T> g) {
    for (Index i = (Index)blockIdx.x * THREADS + threadIdx.x; i < n; i += (Index)gridDim.x * THREADS) {
        double sum = 0;
        for (Index k = 0; k < m; ++k) sum += (double)Xt[k * n + i] * (double)Xt[k * n + i];
        g[i] = T(sum);
    }
}

// D_ij = max(g_i + g_j - 2 G_ij, 0), D_ii = 0.
template <class T>
__device__ T tile_distance(T G, T gi, T gj, bool diagonal) {
    const T value = gi + gj - 2 * G;
    return value > 0 && !diagonal ? value : T(0);
}

// The tile of G becomes that of D; kth_i, the k-th smallest D_ij over j != i; neighbour_i, the first such j; largest_i.
// One block for each row.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) tile_nearest(
    Global<T> G, Global<const T> g, Index first, Index rows, Index n, Index k, Global<T> kth, Global<Index> neighbour,
    Global<T> largest) {
    for (Index row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = first + row, base = row * n;
        const T gi = g[i];
        T top = 0;
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            const T value = tile_distance<T>(G[base + j], gi, g[j], i == j);
            G[base + j] = value;
            top = value > top ? value : top;
        }
        top = block_max(top);  // its barriers also make the row of D visible to the whole block
        Index rank = k - 1;
        const T value = select<T>(G, base, n, i, rank);
        Index where = n;
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            if (j != i && j < where && G[base + j] == value) where = j;
        }
        T none = where == n;
        where = block_argmin(none, where);
        if (threadIdx.x == 0) {
            kth[i] = value;
            neighbour[i] = where;
            largest[i] = top;
        }
    }
}

// The tile of G becomes that of K = exp(-D / b), K_ii = own; deg_i = sum_j K_ij. One block for each row.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) tile_affinity(
    Global<T> G, Global<const T> g, Global<const double> b, double own, Index first, Index rows, Index n,
    Global<double> deg) {
    const T minus_inverse = T(-1 / b[0]);
    for (Index row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = first + row, base = row * n;
        const T gi = g[i];
        double total = 0;
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            const T distance = tile_distance<T>(G[base + j], gi, g[j], i == j);
            const T value = i == j ? T(own) : exp(distance * minus_inverse);
            G[base + j] = value;
            total += value;
        }
        total = block_sum(total);
        if (threadIdx.x == 0) deg[i] = total;
    }
}

// The tile of G becomes that of B = -(E + E') / b, from the tile of dots_ij = sum_a (C_ai . F_(t-1-a)j + F_(t-1-a)i .
// C_aj); row_sums_i = sum_j B_ij, slopes_i = sum_j (E + E')_ij D_ij. One block for each row.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) tile_pull(
    Global<T> G, Global<const T> dots, Global<const T> g, Global<const double> b, Global<const T> share, Index first,
    Index rows, Index n, Global<double> row_sums, Global<double> slopes) {
    const T minus_inverse = T(-1 / b[0]);
    for (Index row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = first + row, base = row * n;
        const T gi = g[i], share_i = share[i];
        double sum = 0, moment = 0;
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            const T distance = tile_distance<T>(G[base + j], gi, g[j], i == j);
            T E = 0;
            if (distance > 0) E = exp(distance * minus_inverse) * (dots[base + j] - (share_i + share[j]));
            G[base + j] = E * minus_inverse;
            sum += E;
            moment += E * distance;
        }
        sum = block_sum(sum);
        moment = block_sum(moment);
        if (threadIdx.x == 0) {
            row_sums[i] = sum * minus_inverse;
            slopes[i] = moment;
        }
    }
}
