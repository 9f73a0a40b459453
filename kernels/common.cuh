// Types and block-wide operations that all CUDA kernels share.
//
// Kernels are templates over the element type, float or double. All index arithmetic is 64-bit (Index): n * n exceeds
// 32 bits from n = 46,341 on. Loops over work are strided by the grid, so that any grid gives the same result. Sums are
// taken in double and always in the same order: there are no floating-point atomics.
//
// Global<T> is a pointer to global memory and SHARED(T, name, count) an array in shared memory. Where the kernels run
// on a CPU (tests), both are replaced by types that check every index.

#ifndef KERNELS_ON_CPU
template <class T>
using Global = T*;
#define SHARED(T, name, count) __shared__ T name[count]
#endif

typedef long long Index;
typedef unsigned long long Word64;

constexpr int THREADS = 256;  // of every block
constexpr int RESIDENT = 2;   // blocks that a multiprocessor must be able to hold; told, the compiler uses the registers
constexpr int WARP = 32;
constexpr int WARPS = THREADS / WARP;
constexpr int DIGIT = 8;  // bits that one pass of the selection decides
constexpr int DIGITS = 1 << DIGIT;
constexpr unsigned ALL_LANES = 0xffffffffu;

static_assert(THREADS == DIGITS, "one thread for each value of a digit");

// The order of non-negative floating-point numbers is that of their bits.
template <class T>
struct Bits;

template <>
struct Bits<float> {
    typedef unsigned type;
    static __device__ unsigned of(float value) { return __float_as_uint(value); }
    static __device__ float value(unsigned bits) { return __uint_as_float(bits); }
};

template <>
struct Bits<double> {
    typedef Word64 type;
    static __device__ Word64 of(double value) { return (Word64)__double_as_longlong(value); }
    static __device__ double value(Word64 bits) { return __longlong_as_double((long long)bits); }
};

// The sum of `value` over the lanes that differ in the lowest bits of their number, below `width`.
template <int width, class T>
__device__ T lanes_sum(T value) {
    for (int offset = width / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}

// The sum over the block, on every thread.
__device__ inline double block_sum(double value) {
    SHARED(double, sums, WARPS);
    value = lanes_sum<WARP>(value);
    __syncthreads();  // an earlier result may still be being read
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = value;
    __syncthreads();
    double total = 0;
    for (int warp = 0; warp < WARPS; ++warp) total += sums[warp];
    return total;
}

// The largest value over the block, on every thread.
template <class T>
__device__ T block_max(T value) {
    SHARED(T, tops, WARPS);
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const T other = __shfl_xor_sync(ALL_LANES, value, offset);
        value = other > value ? other : value;
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) tops[threadIdx.x / WARP] = value;
    __syncthreads();
    T top = tops[0];
    for (int warp = 1; warp < WARPS; ++warp) top = tops[warp] > top ? tops[warp] : top;
    return top;
}

// The position of the smallest value over the block, the lowest position where values tie; `value` becomes that value.
template <class T>
__device__ Index block_argmin(T& value, Index position) {
    SHARED(T, values, WARPS);
    SHARED(Index, positions, WARPS);
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const T other = __shfl_xor_sync(ALL_LANES, value, offset);
        const Index where = __shfl_xor_sync(ALL_LANES, position, offset);
        if (other < value || (other == value && where < position)) {
            value = other;
            position = where;
        }
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) {
        values[threadIdx.x / WARP] = value;
        positions[threadIdx.x / WARP] = position;
    }
    __syncthreads();
    value = values[0];
    position = positions[0];
    for (int warp = 1; warp < WARPS; ++warp) {
        if (values[warp] < value || (values[warp] == value && positions[warp] < position)) {
            value = values[warp];
            position = positions[warp];
        }
    }
    return position;
}

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
// agree with the digits found so far are counted by their next one, until one entry is left or all digits are found.
template <class T>
__device__ T select(Global<const T> values, Index base, Index n, Index skip, Index& rank) {
    typedef typename Bits<T>::type Word;
    SHARED(unsigned, counts, DIGITS);
    SHARED(Index, found, 3);
    SHARED(Word, last, 1);
    Word prefix = 0;
    for (int shift = 8 * (int)sizeof(T) - DIGIT; shift >= 0; shift -= DIGIT) {
        counts[threadIdx.x] = 0;
        __syncthreads();
        for (Index j = threadIdx.x; j < n; j += THREADS) {
            const Word word = Bits<T>::of(values[base + j]);
            if (j != skip && ((word ^ prefix) >> shift >> DIGIT) == 0) {
                atomicAdd(&counts[(int)((word >> shift) & (DIGITS - 1))], 1u);
            }
        }
        __syncthreads();
        const Index mine = counts[threadIdx.x], before = block_sum_before(mine);
        if (before <= rank && rank < before + mine) {
            found[0] = threadIdx.x;
            found[1] = before;
            found[2] = mine;
        }
        __syncthreads();
        prefix |= (Word)found[0] << shift;
        rank -= found[1];
        const bool alone = found[2] == 1;
        __syncthreads();  // found is read before the next digit's is written
        if (alone && shift > 0) {
            for (Index j = threadIdx.x; j < n; j += THREADS) {
                const Word word = Bits<T>::of(values[base + j]);
                if (j != skip && ((word ^ prefix) >> shift) == 0) last[0] = word;
            }
            __syncthreads();
            prefix = last[0];
            __syncthreads();
            break;
        }
    }
    return Bits<T>::value(prefix);
}
