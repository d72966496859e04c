// What the in-flight kernel's text needs for a B of terms, besides hopper_inflight_on_cpu.h: a copy engine that swizzles by 128 bytes.

#include "hopper_inflight_on_cpu.h"

static void swizzled_load(uint to, const TensorMap *of, int x, int y, uint bar) {
    if (self->stale) lacks(GLOBAL_NOT_FENCED);
    later([=, map = *of] {
        for (int r = 0; r < map.box; ++r)
            for (int c = 0; c < 64; ++c) {
                bool inside = y + r < map.rows && x + c < map.cols;
                unsigned short *row = (unsigned short *)(dynamic_shared + to) + 64 * r;
                row[(c / 8 ^ r % 8) * 8 + c % 8] = inside ? map.from[(y + r) * map.cols + x + c] : 0;
            }
        asynchronously_written(to, 128 * map.box);
        changed(bar, 0, -128 * map.box);
    });
}
#define tma_load swizzled_load

// --- claimed.cuh -----------------------------------------------------------------------------------------------------------------

static void writes_terms() { self->unknown = self->unseen = true; }
static uint atomicAdd(uint *p, uint more) {
    published(threadIdx.x / 128 * 128, 128);
    return __atomic_fetch_add(p, more, __ATOMIC_SEQ_CST);
}
static uint acquired(const uint *word) {
    others_first(), self->stale = true;
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}
static void __trap() { abort(); }
static void __threadfence() { self->unknown = false; }
static void global_proxy_fence() { self->unseen = self->stale = false; }
