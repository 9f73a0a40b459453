// Types and block-wide operations that all CUDA kernels share.
//
// Kernels are templates over the element type, float or double. All index arithmetic is 64-bit (Index): n * n exceeds
// 32 bits from n = 46,341 on. Loops over work are strided by the grid, so that any grid gives the same result. Sums are
// taken in double and always in the same order: there are no floating-point atomics.
//
// Global<T> is a pointer to global memory and SHARED(T, name, count) an array in shared memory. Where the kernels run
// on a CPU (tests), both are replaced by types that check every index. THREADS, the tiles, the constants of the
// optimisers and the layout of a record come from Python: dufs_core.kernels.cuda.constants.

#ifndef KERNELS_ON_CPU
template <class T>
using Global = T*;
#define SHARED(T, name, count) __shared__ __align__(16) T name[count]
#endif

typedef long long Index;
typedef unsigned long long Word64;

constexpr int RESIDENT = 2;  // blocks that a multiprocessor must be able to hold; told, the compiler uses the registers
constexpr int WARP = 32;
constexpr int WARPS = THREADS / WARP;
constexpr int DIGIT = 8;  // bits that one pass of the selection decides
constexpr int DIGITS = 1 << DIGIT;
constexpr unsigned ALL_LANES = 0xffffffffu;

static_assert(THREADS == DIGITS, "one thread for each value of a digit");

// The order of non-negative floating-point numbers is that of their bits.
__device__ inline unsigned bits_of(float value) { return __float_as_uint(value); }
__device__ inline Word64 bits_of(double value) { return (Word64)__double_as_longlong(value); }
__device__ inline float value_of(unsigned bits) { return __uint_as_float(bits); }
__device__ inline double value_of(Word64 bits) { return __longlong_as_double((long long)bits); }

// The kernel: K_ij from x = -D_ij / b, and its slope dK/dx.
template <class T>
__device__ T affinity_of(T x) {
    return exp(x);
}
template <class T>
__device__ T slope_of(T K) {
    return K;
}

struct Add {
    template <class T>
    static __device__ T of(T a, T b) { return a + b; }
};

struct Larger {
    template <class T>
    static __device__ T of(T a, T b) { return b > a ? b : a; }
};

struct Smaller {
    template <class T>
    static __device__ T of(T a, T b) { return b < a ? b : a; }
};

// Combine `value` over the warp, on every lane.
template <class Operation, class T>
__device__ T warp_reduce(T value) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        value = Operation::of(value, __shfl_xor_sync(ALL_LANES, value, offset));
    }
    return value;
}

// Combine `value` over the block, on every thread.
template <class Operation, class T>
__device__ T block_reduce(T value) {
    SHARED(T, parts, WARPS);
    value = warp_reduce<Operation>(value);
    __syncthreads();  // an earlier result may still be being read
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
    __syncthreads();
    value = parts[0];
    for (int warp = 1; warp < WARPS; ++warp) value = Operation::of(value, parts[warp]);
    return value;
}

__device__ inline double block_sum(double value) { return block_reduce<Add>(value); }

// The sum over the threads before this one.
__device__ inline Index block_sum_before(Index count) {
    SHARED(Index, sums, WARPS);
    const int lane = threadIdx.x % WARP;
    Index inclusive = count;
    for (int offset = 1; offset < WARP; offset *= 2) {
        const Index other = __shfl_up_sync(ALL_LANES, inclusive, offset);
        if (lane >= offset) inclusive += other;
    }
    __syncthreads();
    if (lane == WARP - 1) sums[threadIdx.x / WARP] = inclusive;
    __syncthreads();
    Index before = inclusive - count;
    for (int warp = 0; warp < (int)(threadIdx.x / WARP); ++warp) before += sums[warp];
    return before;
}

// The value of rank `rank` (0: the smallest) among values[base .. base + n - 1], all at least 0, entry `skip` left out
// (-1: none). `rank` becomes its rank among the entries equal to it. Digit by digit, from the highest: the entries that
// agree with the digits found so far are counted by their next one.
template <class T>
__device__ T select(Global<const T> values, Index base, Index n, Index skip, Index& rank) {
    typedef decltype(bits_of(T())) Word;
    SHARED(unsigned, counts, DIGITS);
    SHARED(Index, found, 2);
    Word prefix = 0;
    for (int shift = 8 * (int)sizeof(T) - DIGIT; shift >= 0; shift -= DIGIT) {
        counts[threadIdx.x] = 0;
        __syncthreads();
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            const Word word = bits_of(values[base + j]);
            if (j != skip && ((word ^ prefix) >> shift >> DIGIT) == 0) {
                atomicAdd(&counts[(int)((word >> shift) & (DIGITS - 1))], 1u);
            }
        }
        __syncthreads();
        const Index mine = counts[threadIdx.x], before = block_sum_before(mine);
        if (before <= rank && rank < before + mine) {
            found[0] = threadIdx.x;
            found[1] = before;
        }
        __syncthreads();
        prefix |= (Word)found[0] << shift;
        rank -= found[1];
        __syncthreads();  // found is read before the next digit's is written
    }
    return value_of(prefix);
}

// The four words of random numbers of a counter (Philox-4x32-10), as dufs_core.backend.random.philox.
__device__ inline void noise_words(
    unsigned (&w)[4], Word64 column, Index step, Index stream, Index group, Word64 seed) {
    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
    w[0] = (unsigned)column;
    w[1] = 0;
    w[2] = (unsigned)step;
    w[3] = (unsigned)(stream << 28 | group);
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

// The c-th of the four standard normals of a counter's words (Box-Muller in double).
__device__ inline double normal_of(const unsigned (&w)[4], int c) {
    const double scale = 1.0 / 4294967296.0;
    const double radius = sqrt(-2.0 * log(((double)(c < 2 ? w[0] : w[2]) + 0.5) * scale));
    const double half_turns = (double)(c < 2 ? w[1] : w[3]) * (2 * scale);
    return radius * (c % 2 ? sinpi(half_turns) : cospi(half_turns));
}

// u = mu_k + sigma eps: the gate before it is clipped. mu (fits, d), per_fit draws for each; eps (R, d), of the draws
// from number `first` on.
template <class T>
__device__ T unclipped(
    Global<const T> mu, Global<const T> eps, T sigma, Index draw, Index first, Index per_fit, Index d, Index k) {
    return mu[(first + draw) / per_fit * d + k] + sigma * eps[draw * d + k];
}

// z: a gate that is clipped.
template <class T>
__device__ T clipped(T u) {
    return u <= 0 ? T(0) : u >= 1 ? T(1) : u;
}
