// Tiles of pairs for the streaming form: 64 x 64 entries of an n x n matrix that is never stored, 4 x 4 of them in the
// registers of each thread. Operands are (rows, n): a row holds one column of the data for all samples.

#include "tiles.cuh"

constexpr int PITCH = TILE + 1;  // of a tile in shared memory: its columns fall into different banks

template <class T>
constexpr int DEPTH = STEP * (int)sizeof(float) / (int)sizeof(T);  // of a slab of an operand: 4 kB for either type

// The row and the column of the tile that this thread's entry (a, c) is.
__device__ inline int tile_row(int a) { return (int)threadIdx.x / SIDE * PER_THREAD + a; }
__device__ inline int tile_column(int c) { return (int)threadIdx.x % SIDE + c * SIDE; }

// slab[k][i] = matrix[first + k, i0 + i] for k < depth, i < TILE; 0 from n on. The whole block loads it.
template <class T, class Slab>
__device__ void load_slab(Global<const T> matrix, Index first, int depth, Index n, Index i0, Slab& slab) {
    for (int l = threadIdx.x; l < depth * TILE; l += THREADS) {
        const int k = l / TILE, column = l % TILE;
        slab[k * PITCH + column] = i0 + column < n ? matrix[(first + k) * n + i0 + column] : T(0);
    }
}

// entries_ij += sum_k (l_ki - r_kj)^2 (gaps) or l_ki r_kj, over `count` rows of the data: l from row `left` on, r from
// row `right` on. Exactly 0 for i = j where left = right and gaps are taken.
template <class T, bool gaps, class Slab>
__device__ void add_pairs(
    Global<const T> data, Index left, Index right, Index count, Index n, Index i0, Index j0, Slab& rows, Slab& columns,
    T (&entries)[PER_THREAD][PER_THREAD]) {
    for (Index k0 = 0; k0 < count; k0 += DEPTH<T>) {
        const int depth = count - k0 < DEPTH<T> ? (int)(count - k0) : DEPTH<T>;
        __syncthreads();  // the slabs before are still being read
        load_slab<T>(data, left + k0, depth, n, i0, rows);
        load_slab<T>(data, right + k0, depth, n, j0, columns);
        __syncthreads();
        for (int k = 0; k < depth; ++k) {
            T l[PER_THREAD], r[PER_THREAD];
            for (int a = 0; a < PER_THREAD; ++a) {
                l[a] = rows[k * PITCH + tile_row(a)];
                r[a] = columns[k * PITCH + tile_column(a)];
            }
            for (int a = 0; a < PER_THREAD; ++a) {
                for (int c = 0; c < PER_THREAD; ++c) {
                    const T gap = l[a] - r[c];
                    entries[a][c] += gaps ? gap * gap : l[a] * r[c];
                }
            }
        }
    }
}

// totals_ic += sum_j tile_ij operand[c0 + c, j0 + j], j < TILE, c < TILE and c0 + c < width; the tile lies transposed
// in shared memory, tile[j][i]. The sum over the tile is formed first: rounding then grows with n / 64, not with n.
template <class T, class Slab, class Tile>
__device__ void add_products(
    Global<const T> operand, Index c0, Index width, Index n, Index j0, Tile& tile, Slab& columns,
    T (&totals)[PER_THREAD][PER_THREAD]) {
    T sums[PER_THREAD][PER_THREAD] = {};
    for (int first = 0; first < TILE; first += DEPTH<T>) {
        __syncthreads();  // the tile is complete; the slab before is still being read
        for (int l = threadIdx.x; l < DEPTH<T> * TILE; l += THREADS) {
            const int c = l / DEPTH<T>, depth = l % DEPTH<T>;
            const Index j = j0 + first + depth;
            columns[depth * PITCH + c] = c0 + c < width && j < n ? operand[(c0 + c) * n + j] : T(0);
        }
        __syncthreads();
#pragma unroll 4  // the whole loop, in double, would take more registers than there are
        for (int depth = 0; depth < DEPTH<T>; ++depth) {
            T l[PER_THREAD], r[PER_THREAD];
            for (int a = 0; a < PER_THREAD; ++a) {
                l[a] = tile[(first + depth) * PITCH + tile_row(a)];
                r[a] = columns[depth * PITCH + tile_column(a)];
            }
            for (int a = 0; a < PER_THREAD; ++a) {
                for (int c = 0; c < PER_THREAD; ++c) sums[a][c] += l[a] * r[c];
            }
        }
    }
    for (int a = 0; a < PER_THREAD; ++a) {
        for (int c = 0; c < PER_THREAD; ++c) totals[a][c] += sums[a][c];
    }
}
