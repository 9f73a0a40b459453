// The two ends of the Gram form for wide, short data, n <= SHORT_ROWS: from the noise to the Gram matrices, and from M to
// the dots that carry the derivative back, each in one pass over X (d, n). A block holds all rows of some columns in
// shared memory; a thread computes 8 rows of a product by one vector of columns, in registers.

#include "common.cuh"

constexpr int HIGH = 8;  // rows of a thread
constexpr int DOWN = 4, ACROSS = WARP / DOWN;  // threads of a warp along rows and columns
constexpr int WARP_ROWS = DOWN * HIGH;
constexpr int TALL = SHORT_ROWS / WARP_ROWS, BESIDE = WARPS / TALL;  // warps along rows and columns

template <class T>
constexpr int WIDE = 16 / (int)sizeof(T);  // columns of a thread: what one access to shared memory takes
template <class T>
constexpr int DEPTH = 64 / (int)sizeof(T);  // terms of a product that are in shared memory at once

// sums_uv += sum_k left_k,row+u right_k,v over DEPTH terms; right begins at `at` and has `pitch` entries a term.
template <class T, class Left, class Right>
__device__ void add_terms(T (&sums)[HIGH][WIDE<T>], Left& left, int row, Right& right, int at, int pitch) {
    for (int k = 0; k < DEPTH<T>; ++k) {
        T a[HIGH], c[WIDE<T>];
        for (int u = 0; u < HIGH; ++u) a[u] = left[k * SHORT_ROWS + row + u];
        for (int v = 0; v < WIDE<T>; ++v) c[v] = right[at + k * pitch + v];
        for (int u = 0; u < HIGH; ++u) {
            for (int v = 0; v < WIDE<T>; ++v) sums[u][v] += a[u] * c[v];
        }
    }
}

// The noise of a draw and a column in step clock[fit] + 1 of its fit, as the kernel `normals` makes it in mirrored pairs.
template <class T>
__device__ T noise(
    Global<const Word64> column, Global<const Word64> seed, Global<const Index> clock, Index stream, int draw,
    int per_fit, int k) {
    const int fit = draw / per_fit, within = draw - fit * per_fit, half = per_fit > 1 ? per_fit / 2 : 1;
    const int drawn = within < half ? within : within - half;
    unsigned w[4];
    noise_words(w, column[k], clock[fit] + 1, stream, drawn / 4, seed[fit]);
    const T value = T(normal_of(w, drawn % 4));
    return within < half ? value : -value;
}

// How many threads of the block want their column k; these with their gates, in the order of the threads.
template <class T, class Gates, class Listed, class Found>
__device__ int list_wanted(bool wanted, int k, T gate, Gates& gates, Listed& listed, Found& found) {
    const int place = (int)block_sum_before(wanted);
    if (wanted) {
        gates[place] = gate;
        listed[place] = k;
    }
    if (threadIdx.x == THREADS - 1) found[0] = place + wanted;
    __syncthreads();  // the columns are listed
    return found[0];
}

// The lower triangles of sum_k (z_k x_k) (z_k x_k)' over the open columns of each of `parts` parts, z = clip(u, 0, 1), as
// sums (regions, R, n, n): a region is the sum of parts / regions parts, one after the other. eps (R, d) is the noise of
// step clock[f] + 1 of every fit, and is written; where seed is null it is given. A part has at most THREADS columns. A
// block for each region and draw and some columns of G.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) short_gram(
    Global<const T> X, Global<const T> mu, Global<const Word64> column, Global<const Word64> seed,
    Global<const Index> clock, Index stream, double sigma, Index R, Index per_fit, Index d, Index n, Index parts,
    Index regions, Global<T> eps, Global<T> sums) {
    constexpr int WARP_COLUMNS = ACROSS * WIDE<T>, TURNS = SHORT_ROWS / (BESIDE * WARP_COLUMNS);
    SHARED(T, gates, THREADS);  // of the open columns, which are listed
    SHARED(int, listed, THREADS);
    SHARED(int, found, 1);
    SHARED(T, tile, DEPTH<T> * SHORT_ROWS);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warp_row = warp % TALL * WARP_ROWS;
    const int row = warp_row + lane / ACROSS * HIGH;
    const int terms = (int)((d + parts - 1) / parts + DEPTH<T> - 1) / DEPTH<T> * DEPTH<T>, each = (int)(parts / regions);
    for (Index task = blockIdx.x; task < regions * R * TURNS; task += gridDim.x) {
        const int turn = (int)(task % TURNS), draw = (int)(task / TURNS % R), region = (int)(task / TURNS / R);
        if (turn * BESIDE * WARP_COLUMNS >= n) continue;
        const int warp_column = (turn * BESIDE + warp / TALL) * WARP_COLUMNS;
        const int my_column = warp_column + lane % ACROSS * WIDE<T>;
        const bool below = warp_row < n && warp_column < warp_row + WARP_ROWS;  // the same for the whole warp
        for (int part = region * each; part < (region + 1) * each; ++part) {
            const int first = part * terms, last = (int)(first + terms < d ? first + terms : d);
            const int mine = first + threadIdx.x;
            T z = 0;
            if (mine < last) {
                const Index at = draw * d + mine;
                const T e = seed == nullptr ? eps[at] : noise<T>(column, seed, clock, stream, draw, (int)per_fit, mine);
                if (seed != nullptr && turn == 0) eps[at] = e;
                z = clipped(mu[draw / per_fit * d + mine] + T(sigma) * e);
            }
            const int count = list_wanted(!(z == 0), mine, z, gates, listed, found);  // NaN is not lost
            T part_sums[HIGH][WIDE<T>] = {};
            for (int l0 = 0; l0 < count; l0 += DEPTH<T>) {
                for (int l = threadIdx.x; l < DEPTH<T> * SHORT_ROWS; l += THREADS) {
                    const int c = l0 + l / SHORT_ROWS, i = l % SHORT_ROWS;
                    tile[l] = c < count && i < n ? X[listed[c] * n + i] * gates[c] : T(0);
                }
                __syncthreads();  // the tile is complete
                if (below) add_terms(part_sums, tile, row, tile, my_column, SHORT_ROWS);
                __syncthreads();  // the tile has been read
            }
            for (int u = 0; below && u < HIGH; ++u) {
                const Index i = row + u, base = ((region * R + draw) * n + i) * n;
                for (int v = 0; v < WIDE<T>; ++v) {
                    const int j = my_column + v;
                    if (i >= n || j > i) continue;
                    sums[base + j] = part == region * each ? part_sums[u][v] : sums[base + j] + part_sums[u][v];
                }
            }
        }
    }
}

// G (R, n, n) and its diagonal g from the sums of short_gram: regions are added in WARPS sums, and these in turn, so that
// G is the same whether a region is one part or all parts of such a sum. A warp for each of the sums, of 32 entries.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) short_sum(
    Global<const T> sums, Index regions, Index R, Index n, Global<T> G, Global<T> g) {
    SHARED(T, shares, THREADS);
    const Index count = R * n * n, each = regions / WARPS;
    const int lane = threadIdx.x % WARP, share = threadIdx.x / WARP;
    for (Index l0 = (Index)blockIdx.x * WARP; l0 < count; l0 += (Index)gridDim.x * WARP) {
        const Index l = l0 + lane, row = l / n, j = l - row * n, i = row % n;
        const bool below = l < count && j <= i;
        const Index first = share * each, last = below ? first + each : first;
        T sum = 0;
#pragma unroll 4  // so many loads at a time
        for (Index region = first; region < last; ++region) sum += sums[region * count + l];
        __syncthreads();  // the shares before are still being read
        shares[threadIdx.x] = sum;
        __syncthreads();
        if (share == 0 && below) {
            for (int other = 1; other < WARPS; ++other) sum += shares[other * WARP + lane];
            G[l] = G[(row - i + j) * n + i] = sum;
            if (i == j) g[row] = sum;
        }
    }
}

// As column_dots, from M (R, n, n), symmetric: x' M x = sum_i x_i (sum_j<i 2 M_ij x_j + M_ii x_i). A block for each draw
// and `span` columns, at most THREADS, of which it takes the undecided ones.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) short_dots(
    Global<const T> X, Global<const T> M, Global<const T> mu, Global<const T> eps, double sigma, Index R, Index per_fit,
    Index d, Index n, Index span, Global<double> dots) {
    constexpr int COLUMNS = BESIDE * ACROSS * WIDE<T>, PITCH = COLUMNS + WIDE<T>;
    SHARED(T, gates, THREADS);
    SHARED(int, listed, THREADS);
    SHARED(int, found, 1);
    SHARED(T, left, DEPTH<T> * SHORT_ROWS);
    SHARED(T, x, SHORT_ROWS * PITCH);
    SHARED(double, parts, TALL * COLUMNS);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warp_row = warp % TALL * WARP_ROWS;
    const int row = warp_row + lane / ACROSS * HIGH;
    const int my_column = (warp / TALL * ACROSS + lane % ACROSS) * WIDE<T>;
    const Index spans = (d + span - 1) / span;
    for (Index task = blockIdx.x; task < R * spans; task += gridDim.x) {
        const Index draw = task / spans, mine = (task - draw * spans) * span + threadIdx.x;
        const bool has_column = threadIdx.x < span && mine < d;
        const T gate = has_column ? unclipped<T>(mu, eps, T(sigma), draw, 0, per_fit, d, mine) : T(0);
        const bool undecided = gate > 0 && gate < 1;
        if (has_column && !undecided) dots[draw * d + mine] = 0;
        const int count = list_wanted(undecided, (int)mine, gate, gates, listed, found);
        for (int l0 = 0; l0 < count; l0 += COLUMNS) {
            for (int l = threadIdx.x; l < COLUMNS * SHORT_ROWS; l += THREADS) {
                const int c = l / SHORT_ROWS, i = l % SHORT_ROWS;
                x[i * PITCH + c] = l0 + c < count && i < n ? X[listed[l0 + c] * n + i] : T(0);
            }
            T sums[HIGH][WIDE<T>] = {};
            for (int j0 = 0; j0 < n; j0 += DEPTH<T>) {
                __syncthreads();  // the rows of M before have been read
                for (int l = threadIdx.x; l < DEPTH<T> * SHORT_ROWS; l += THREADS) {
                    const Index j = j0 + l / SHORT_ROWS, i = l % SHORT_ROWS;
                    left[l] = j <= i && i < n ? M[(draw * n + j) * n + i] * (j < i ? 2 : 1) : T(0);
                }
                __syncthreads();
                if (warp_row < n && j0 < warp_row + WARP_ROWS) {
                    add_terms(sums, left, row, x, j0 * PITCH + my_column, PITCH);
                }
            }
            for (int v = 0; v < WIDE<T>; ++v) {
                const int c = my_column + v;
                double sum = 0;
                for (int u = 0; u < HIGH; ++u) sum += (double)x[(row + u) * PITCH + c] * (double)sums[u][v];
                for (int other = ACROSS; other < WARP; other *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, other);
                if (lane < ACROSS) parts[warp % TALL * COLUMNS + c] = sum;
            }
            __syncthreads();  // the sums are there, and x has been read
            const int at = l0 + threadIdx.x;
            if (threadIdx.x < COLUMNS && at < count) {
                double sum = 0;
                for (int tall = 0; tall < TALL; ++tall) sum += parts[tall * COLUMNS + threadIdx.x];
                dots[draw * d + listed[at]] = 2 * (double)gates[at] * sum;
            }
        }
    }
}
