// Runs CUDA kernels on a CPU: enough of the language for the kernels of this project, and checks that a GPU has not.
//
// The threads of a block are fibers of one thread (ucontext). A fiber runs until it waits at a barrier or a shuffle;
// which one runs next is the launch's choice, so that a kernel whose result depends on the order of its threads gives
// different results for different orders. Blocks run one after another. Every index into a global or shared array is
// checked; shared memory starts every block filled with ones (NaN); a barrier that some thread does not reach, or
// reaches elsewhere, is an error. Put this file before a kernel's source.

#define KERNELS_ON_CPU

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#define __global__ static
#define __device__
#define __launch_bounds__(...)
#define __syncthreads() emulator::block_barrier(__LINE__)
#define __shfl_xor_sync(mask, value, offset) emulator::shuffle(value, (int)(threadIdx.x % 32) ^ (offset), __LINE__)
#define __shfl_up_sync(mask, value, offset) emulator::shuffle(value, (int)(threadIdx.x % 32) - (offset), __LINE__)
#define SHARED(T, name, count) static emulator::Shared<T, count> name(#name)

using std::cos;
using std::erf;
using std::exp;
using std::log;
using std::pow;
using std::sin;
using std::sqrt;

struct Position {
    unsigned x;
};
static Position threadIdx, blockIdx, gridDim;

namespace emulator {

enum Order { ROUNDS, LOWEST_FIRST, HIGHEST_FIRST, SHUFFLED };

struct Fiber {
    ucontext_t context;
    jmp_buf place;
    bool started, finished;
    const long long* clock;  // what it waits for: *clock > seen
    long long seen;
};

struct Group {  // threads that wait for one another
    long long clock;
    int arrived, line;
};

static const int MOST_THREADS = 1024;
static const size_t STACK = 1 << 16;
static Fiber fibers[MOST_THREADS];
static char* stacks = nullptr;
static jmp_buf scheduler;
static int threads = 0, running = 0;
static Group block, warps[MOST_THREADS / 32];
static long long lanes[2][MOST_THREADS];  // what shuffles exchange, in turns
static int turn[MOST_THREADS];
static std::function<void()> body;
static bool released = false;  // whether a barrier has let threads go since the choice of the one running
static std::string failure;
static const char* kernel_name = "";
static std::vector<std::pair<void*, size_t>> shared_arrays;

inline void resume_scheduler() {
    if (!_setjmp(fibers[running].place)) _longjmp(scheduler, 1);
}

[[noreturn]] inline void fail(const std::string& what) {
    failure = std::string(kernel_name) + ": " + what + ", block " + std::to_string(blockIdx.x) + ", thread " +
              std::to_string(threadIdx.x);
    _longjmp(scheduler, 2);
}

inline void wait_for(Group& group, int members, int line) {
    if (group.arrived == 0) group.line = line;
    if (group.line != line) {
        fail("threads wait at different places, lines " + std::to_string(group.line) + " and " + std::to_string(line));
    }
    if (++group.arrived == members) {
        group.arrived = 0;
        ++group.clock;
        released = true;
        return;
    }
    fibers[running].clock = &group.clock;
    fibers[running].seen = group.clock;
    resume_scheduler();
}

inline void block_barrier(int line) { wait_for(block, threads, line); }

template <class T>
T shuffle(T value, int from, int line) {
    static_assert(sizeof(T) <= sizeof(long long), "shuffles move at most 8 bytes");
    const int base = running / 32 * 32, slot = turn[running] ^= 1;
    std::memcpy(&lanes[slot][running], &value, sizeof(T));
    wait_for(warps[running / 32], 32, line);
    if (from >= 0 && from < 32) std::memcpy(&value, &lanes[slot][base + from], sizeof(T));
    return value;
}

static void trampoline() {
    for (;;) {
        body();
        fibers[running].finished = true;
        resume_scheduler();
    }
}

inline void prepare_fibers() {
    if (!stacks) stacks = (char*)std::malloc(STACK * MOST_THREADS);
    for (int i = 0; i < MOST_THREADS; ++i) {
        getcontext(&fibers[i].context);
        fibers[i].context.uc_stack.ss_sp = stacks + STACK * i;
        fibers[i].context.uc_stack.ss_size = STACK;
        fibers[i].context.uc_link = nullptr;
        makecontext(&fibers[i].context, trampoline, 0);
        fibers[i].started = false;
    }
}

__attribute__((noinline)) inline int run_fiber(int index) {  // 0, or 2 after a failure
    running = index;
    threadIdx.x = (unsigned)index;
    const int outcome = _setjmp(scheduler);
    if (outcome == 0) {
        if (fibers[index].started) _longjmp(fibers[index].place, 1);
        fibers[index].started = true;
        setcontext(&fibers[index].context);
    }
    return outcome == 2 ? 2 : 0;
}

inline bool runnable(int i) {
    return !fibers[i].finished && (!fibers[i].clock || *fibers[i].clock > fibers[i].seen);
}

inline bool run_block(Order order, unsigned seed) {
    for (auto& array : shared_arrays) std::memset(array.first, 0xff, array.second);
    block = Group{0, 0, 0};
    for (auto& warp : warps) warp = Group{0, 0, 0};
    for (int i = 0; i < threads; ++i) {
        fibers[i].finished = false;
        fibers[i].clock = nullptr;
        turn[i] = 0;
    }
    int last = threads - 1, left = threads;
    released = true;
    unsigned state = seed * 2654435761u + 12345u;
    while (left) {
        int next = -1, start = 0, step = 1;
        if (order == ROUNDS) start = last + 1;
        if (order == LOWEST_FIRST) start = released ? 0 : last + 1;  // those before it still wait
        if (order == HIGHEST_FIRST) start = released ? threads - 1 : last + threads - 1, step = threads - 1;
        if (order == SHUFFLED) start = (int)((state = state * 1664525u + 1013904223u) >> 8) % threads;
        for (int tried = 0, i = start % threads; tried < threads; ++tried, i = (i + step) % threads) {
            if (runnable(i)) {
                next = i;
                break;
            }
        }
        if (next < 0) {
            failure = std::string(kernel_name) + ": a barrier (line " + std::to_string(block.line) +
                      ") is not reached by every thread, block " + std::to_string(blockIdx.x);
            return false;
        }
        last = next;
        released = false;
        fibers[next].clock = nullptr;
        if (run_fiber(next)) return false;
        left -= fibers[next].finished;
    }
    return true;
}

template <class T, int N>
struct Shared {
    T data[N];
    const char* name;
    explicit Shared(const char* name) : name(name) {
        shared_arrays.push_back({data, sizeof(data)});
        std::memset((void*)data, 0xff, sizeof(data));
    }
    T& operator[](long long i) {
        if (i < 0 || i >= N) {
            fail("shared " + std::string(name) + "[" + std::to_string(i) + "], valid 0 to " + std::to_string(N - 1));
        }
        return data[i];
    }
};

}  // namespace emulator

template <class T>
struct Global {  // as the caller packs it: address, number of elements, name
    T* data;
    long long size;
    const char* name;
    T& operator[](long long i) const {
        if (i < 0 || i >= size) {
            emulator::fail(
                std::string(name) + "[" + std::to_string(i) + "], valid 0 to " + std::to_string(size - 1));
        }
        return data[i];
    }
    operator Global<const T>() const { return {data, size, name}; }
    bool operator==(std::nullptr_t) const { return data == nullptr; }
    bool operator!=(std::nullptr_t) const { return data != nullptr; }
};

inline unsigned atomicAdd(unsigned* where, unsigned value) {
    const unsigned before = *where;
    *where += value;
    return before;
}

template <class To, class From>
To same_bits(From value) {
    To bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}
inline unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
inline long long __double_as_longlong(double value) { return same_bits<long long>(value); }
inline double __longlong_as_double(long long bits) { return same_bits<double>(bits); }
inline double cospi(double x) { return std::cos(M_PI * x); }
inline double sinpi(double x) { return std::sin(M_PI * x); }

namespace emulator {

template <class T>
struct Code {};
template <class T>
struct Code<Global<T>> {
    static std::string text() { return "*" + Code<std::remove_const_t<T>>::text(); }
};
#define CODE(type, letter)                                   \
    template <>                                              \
    struct Code<type> {                                      \
        static std::string text() { return #letter; }        \
    };
CODE(float, f) CODE(double, d) CODE(int, i) CODE(bool, ?) CODE(long long, q) CODE(unsigned long long, Q)

struct Kernel {
    const char* name;
    std::string types;  // of the parameters, as the letters of NumPy dtypes, * before those of arrays
    std::function<void(void**)> call;
};

template <class... A, size_t... I>
void unpack(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*(A*)arguments[I]...);
}

template <class... A>
Kernel kernel(const char* name, void (*function)(A...)) {
    std::string types;
    ((types += Code<A>::text()), ...);
    return {name, types, [function](void** arguments) {
                unpack(function, arguments, std::index_sequence_for<A...>());
            }};
}

}  // namespace emulator

extern std::vector<emulator::Kernel> kernels;

extern "C" const char* parameter_types(int index) { return kernels[(size_t)index].types.c_str(); }

// Runs the blocks first .. stop - 1 of a grid; nullptr, or what went wrong.
extern "C" const char* launch(
    int index, unsigned grid, unsigned threads, void** arguments, unsigned first, unsigned stop, int order,
    unsigned seed) {
    if (threads % 32 || threads > (unsigned)emulator::MOST_THREADS) return "blocks are whole warps, 1024 threads at most";
    static bool ready = false;
    if (!ready) emulator::prepare_fibers();
    ready = true;
    emulator::kernel_name = kernels[(size_t)index].name;
    emulator::threads = (int)threads;
    emulator::body = [&] { kernels[(size_t)index].call(arguments); };
    gridDim.x = grid;
    for (blockIdx.x = first; blockIdx.x < stop; ++blockIdx.x) {
        if (!emulator::run_block((emulator::Order)order, seed + blockIdx.x)) {
            ready = false;  // fibers were left in the middle
            return emulator::failure.c_str();
        }
    }
    return nullptr;
}
