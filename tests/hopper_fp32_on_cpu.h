// What the texts of Hopper's plain fp32 kernels need beyond hopper_on_cpu.h: the copy engine on fp32, and blocks that leave each other
// flags. Blocks run one after the other, in their order: whoever waits for a block of a higher number waits for ever, and is told.
// With BLOCKS=together in the environment they run at once, with BLOCKS=alone one after the other, a process each: a block's shared
// memory is its own, and memory that is to be seen by all must be mapped so. ``failed`` counts those that did not end well.

#define TensorMap HalfMap
#define tma_load half_load
#include "hopper_on_cpu.h"
#undef TensorMap
#undef tma_load

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

struct TensorMap {
    const float *from;
    long long rows, cols, ld, box_rows, box_cols;
};
static void tma_load(uint to, const TensorMap *map, int x, int y, uint bar) {
    for (int r = 0; r < map->box_rows; ++r)
        for (int c = 0; c < map->box_cols; ++c) {
            bool inside = y + r < map->rows && x + c < map->cols;
            ((float *)(dynamic_shared + to))[map->box_cols * r + c] = inside ? map->from[(y + r) * map->ld + x + c] : 0.0f;
        }
    changed(bar, 0, -4 * map->box_rows * map->box_cols);
}

static float4 lds(uint at) { return *(const float4 *)(dynamic_shared + at); }
static uint peek(const uint *flag) {
    if (uint v = __atomic_load_n(flag, __ATOMIC_SEQ_CST)) return v;
    if (const char *how = getenv("BLOCKS"); how && *how == 't') return std::this_thread::yield(), 0;
    fprintf(stderr, "block %d waits for one that has not begun\n", blockIdx.x);
    abort();
}
static void poke(uint *flag, uint v) { __atomic_store_n(flag, v, __ATOMIC_SEQ_CST); }
static std::barrier<> consumers(256);
static void consumers_meet() { consumers.arrive_and_wait(); }
static void __threadfence() {}
static void __trap() { abort(); }
static void __stcg(float *to, float v) { *to = v; }

static uint claim(uint *counter) { // what is laid out comes late, the later the further along K
    uint was = __atomic_fetch_add(counter, 1u, __ATOMIC_SEQ_CST);
    std::this_thread::sleep_for(std::chrono::milliseconds(min(was, 20u)));
    return was;
}
static uint arrive(uint *counter, uint as) { return __atomic_fetch_add(counter, as, __ATOMIC_SEQ_CST); }
static void all_seen() {}
static void count(uint *counter) { __atomic_fetch_add(counter, 1u, __ATOMIC_SEQ_CST); }
static uint seen(const uint *count) {
    std::this_thread::yield();
    return __atomic_load_n(count, __ATOMIC_SEQ_CST);
}
static float4 read_four(const float *from) { return *(const float4 *)from; }
static void write_four(float *to, float x, float y, float z, float w) { *(float4 *)to = make_float4(x, y, z, w); }
static void copy_fence() {}
static uint __shfl_sync(uint, uint mine, int) { // of lane 0
    return over_warp(mine, [](uint first, uint) { return first; });
}

extern "C" int failed;
int failed = 0;
template <class F> static void blocks(int groups, int threads, F kernel) {
    const char *how = getenv("BLOCKS");
    if (!how) return each_block(groups, threads, kernel);
    std::vector<pid_t> running;
    auto end = [&] {
        for (pid_t one : running) {
            int status;
            waitpid(one, &status, 0);
            failed += status != 0;
        }
        running.clear();
    };
    for (int block = 0; block < groups; ++block) {
        running.push_back(fork());
        if (!running.back()) {
            alarm(30); // who waits for ever
            one_block(block, groups, threads, kernel);
            _exit(0);
        }
        if (*how == 'a') end();
    }
    end();
}
#define each_block blocks

#define ffma ffma_kernel // the C library has another one
