// What the texts of the hopper ladder's fp32x kernels need, for a CPU: a cluster at a time, a thread for each of its threads. Shared
// memory is static; the copy engine copies at once and does not swizzle; a matrix instruction is a loop over 16 of K, for
// the elements that its thread holds. Barriers and the order of memory are those of the host's threads.

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <vector>

using std::max;
using std::min;
typedef unsigned int uint;
typedef unsigned long long word;
#define ulong word

#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __shared__ static
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

struct Index {
    int x, y, z;
};
static thread_local Index threadIdx, blockIdx;
static Index gridDim, blockDim;

struct float2 {
    float x, y;
};
struct __align__(16) float4 {
    float x, y, z, w;
};
struct uint2 {
    uint x, y;
};
struct __align__(16) uint4 {
    uint x, y, z, w;
};
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint4 make_uint4(uint x, uint y, uint z, uint w) { return {x, y, z, w}; }

template <class To, class From> static To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static uint __float_as_uint(float x) { return bits_as<uint>(x); }
static float __uint_as_float(uint x) { return bits_as<float>(x); }
static float __int_as_float(int x) { return bits_as<float>(x); }
static double __hiloint2double(int high, int low) { return bits_as<double>((word)(uint)high << 32 | (uint)low); }
static int __clz(int x) { return x ? __builtin_clz((uint)x) : 32; }
template <class T> static T __ldcg(const T *p) { return *p; }
static word atomicAdd(word *p, word more) { return __atomic_fetch_add(p, more, __ATOMIC_SEQ_CST); }

// fp16
static float wide(unsigned short half) { return (float)bits_as<_Float16>(half); }
static uint pair_of(float low, float high) {
    return bits_as<unsigned short>((_Float16)low) | (uint)bits_as<unsigned short>((_Float16)high) << 16;
}
static float from_half(uint half) { return wide((unsigned short)half); }
static uint size_bits(float x) { return bits_as<uint>(x) & 0x7fffffff; }

// --- threads of a block that meet ----------------------------------------------------------------------------------------------

typedef std::unique_ptr<std::barrier<>> Meeting;
struct Barrier { // a phase ends when nobody is missing and no bytes are
    int arrivals, missing, phase;
    long long bytes;
};
struct Block {
    Meeting all;
    std::vector<Meeting> warps, warpgroups;
    uint exchanged[1024];
    std::map<uint, Barrier> barriers;
    __align__(1024) char memory[1 << 18];
};
static Block blocks[16]; // of a cluster
static Meeting of_cluster;
static thread_local int rank;
static thread_local Block *mine = blocks;
#define dynamic_shared (mine->memory)

static void __syncthreads() { mine->all->arrive_and_wait(); }
static void __syncwarp() { mine->warps[threadIdx.x / 32]->arrive_and_wait(); }
static void group_sync() { mine->warpgroups[threadIdx.x / 128]->arrive_and_wait(); }
static void cluster_sync() { of_cluster->arrive_and_wait(); }
static void together(int) { group_sync(); }

template <class F> static uint over(Meeting &who, int first, int threads, uint own, F f) {
    uint *exchanged = mine->exchanged;
    exchanged[threadIdx.x] = own;
    who->arrive_and_wait();
    uint found = exchanged[first];
    for (int i = 1; i < threads; ++i) found = f(found, exchanged[first + i]);
    who->arrive_and_wait();
    return found;
}
template <class F> static uint over_warp(uint own, F f) { return over(mine->warps[threadIdx.x / 32], threadIdx.x / 32 * 32, 32, own, f); }
static int threads_of_block;
static int __syncthreads_or(int own) {
    return over(mine->all, 0, threads_of_block, own, [](uint x, uint y) { return x | y; });
}
static int __reduce_max_sync(uint, int x) {
    return over_warp(x, [](uint x, uint y) { return (uint)max((int)x, (int)y); });
}
static uint __reduce_max_sync(uint, uint x) {
    return over_warp(x, [](uint x, uint y) { return max(x, y); });
}
static uint __reduce_or_sync(uint, uint x) {
    return over_warp(x, [](uint x, uint y) { return x | y; });
}
static uint __reduce_add_sync(uint, uint x) {
    return over_warp(x, [](uint x, uint y) { return x + y; });
}

// --- hopper.cuh ----------------------------------------------------------------------------------------------------------------

static uint shared_address(const void *p) { return (uint)((const char *)p - dynamic_shared); }

static std::mutex guard;
static std::condition_variable passed;

static void changed(uint bar, int arrived, long long bytes) {
    std::lock_guard<std::mutex> lock(guard);
    Barrier &b = mine->barriers[bar];
    b.missing -= arrived, b.bytes += bytes;
    if (b.missing || b.bytes) return;
    b.phase ^= 1, b.missing = b.arrivals;
    passed.notify_all();
}
static void barrier_init(uint bar, uint arrivals) {
    std::lock_guard<std::mutex> lock(guard);
    mine->barriers[bar] = Barrier{(int)arrivals, (int)arrivals, 0, 0};
}
static void barrier_init_fence() {}
static void barrier_expect(uint bar, uint bytes) { changed(bar, 1, bytes); }
static void barrier_arrive(uint bar) { changed(bar, 1, 0); }
static void barrier_wait(uint bar, uint parity) {
    std::unique_lock<std::mutex> lock(guard);
    bool came = passed.wait_for(lock, std::chrono::minutes(3), [&] { return mine->barriers[bar].phase != (int)parity; });
    if (!came) fprintf(stderr, "thread %d of block %d waits at %u for ever\n", threadIdx.x, blockIdx.x, bar), abort();
}

struct TensorMap {
    const unsigned short *from;
    long long rows, cols, box;
};
static void tma_prefetch(const TensorMap *) {}
static void tma_load(uint to, const TensorMap *map, int x, int y, uint bar) {
    for (int r = 0; r < map->box; ++r)
        for (int c = 0; c < 64; ++c) {
            bool inside = y + r < map->rows && x + c < map->cols;
            ((unsigned short *)(dynamic_shared + to))[64 * r + c] = inside ? map->from[(y + r) * map->cols + x + c] : 0;
        }
    changed(bar, 0, -128 * map->box);
}

static word tile_at(uint address) { return address >> 4; }
static void wgmma_fence() {}
static void wgmma_commit() {}
template <int LEFT> static void wgmma_wait() { group_sync(); } // all have read what may be overwritten behind this
template <int N> static void pin(float (&)[N]) {}
template <int REGISTERS> static void more_registers() {}
template <int REGISTERS> static void fewer_registers() {}
template <int N> static void wgmma(float (&d)[N / 2], word a, word b, int accumulate) {
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    for (int i = 0; i < N / 2; ++i) {
        const unsigned short *x = (unsigned short *)(dynamic_shared + (a << 4)) + 64 * (row + (i & 2) * 4);
        const unsigned short *y = (unsigned short *)(dynamic_shared + (b << 4)) + 64 * (i / 4 * 8 + lane % 4 * 2 + (i & 1));
        double total = accumulate ? d[i] : 0;
        for (int k = 0; k < 16; ++k) total += (double)wide(x[k]) * wide(y[k]);
        d[i] = (float)total;
    }
}
static void wait_for_previous() {}
static void let_next_start() {}

struct Thread {
    std::function<void()> body;
    pthread_t id;
};
static void *begin_thread(void *one) { return ((Thread *)one)->body(), nullptr; }

// Threads are made once a launch, for all of its clusters, and with stacks so small that the library keeps them for the next launch:
// making them took longer than what they do.
template <class F> static void each_cluster(int size, int groups, int threads, F kernel) {
    gridDim.x = groups, threads_of_block = threads;
    auto prepare = [&]() noexcept {
        of_cluster = std::make_unique<std::barrier<>>(size * threads);
        for (int r = 0; r < size; ++r) {
            Block &b = blocks[r];
            b.all = std::make_unique<std::barrier<>>(threads);
            b.warps.clear(), b.warpgroups.clear(), b.barriers.clear();
            for (int i = 0; i < threads; i += 32) b.warps.push_back(std::make_unique<std::barrier<>>(32));
            for (int i = 0; i < threads; i += 128) b.warpgroups.push_back(std::make_unique<std::barrier<>>(128));
        }
    };
    prepare();
    std::barrier between(size * threads, prepare);
    std::vector<Thread> running(size * threads);
    pthread_attr_t small;
    pthread_attr_init(&small), pthread_attr_setstacksize(&small, 1 << 17);
    for (int i = 0; i < size * threads; ++i) {
        running[i].body = [&, i] {
            rank = i / threads, mine = &blocks[rank];
            for (int first = 0; first < groups; first += size) {
                threadIdx = {i % threads, 0, 0}, blockIdx = {first + rank, 0, 0};
                kernel();
                between.arrive_and_wait();
            }
        };
        if (pthread_create(&running[i].id, &small, begin_thread, &running[i])) fprintf(stderr, "no more threads\n"), abort();
    }
    for (auto &thread : running) pthread_join(thread.id, nullptr);
    pthread_attr_destroy(&small);
}
template <class F> static void each_block(int groups, int threads, F kernel) { each_cluster(1, groups, threads, kernel); }
