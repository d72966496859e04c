// What the texts of Hopper's plain fp32 kernels need beyond hopper_on_cpu.h: the copy engine on fp32, and blocks that leave each other
// flags. Blocks run one after the other, in their order: whoever waits for a block of a higher number waits for ever, and is told.

#define TensorMap HalfMap
#define tma_load half_load
#include "hopper_on_cpu.h"
#undef TensorMap
#undef tma_load

struct TensorMap {
    const float *from;
    long long rows, cols, ld, box_rows, box_cols;
};
static void tma_load(uint to, const TensorMap *of, int x, int y, uint bar) {
    later([=, map = *of] {
        for (int r = 0; r < map.box_rows; ++r)
            for (int c = 0; c < map.box_cols; ++c) {
                bool inside = y + r < map.rows && x + c < map.cols;
                ((float *)(dynamic_shared + to))[map.box_cols * r + c] = inside ? map.from[(y + r) * map.ld + x + c] : 0.0f;
            }
        changed(bar, 0, -4 * map.box_rows * map.box_cols);
    });
}

static float4 lds(uint at) { return *(const float4 *)(dynamic_shared + at); }
static void sts(uint at, float x, float y, float z, float w) { *(float4 *)(dynamic_shared + at) = make_float4(x, y, z, w); }
static void pad() {}
template <int BYTES> static void copy_async_if(uint to, const float *from, bool there) {
    later([=] {
        if (there) memcpy(dynamic_shared + to, from, BYTES);
        else memset(dynamic_shared + to, 0, BYTES);
    });
}
template <int BYTES> static void copy_async(uint to, const float *from, int) { copy_async_if<BYTES>(to, from, true); }
static uint peek(const uint *flag) {
    if (uint v = __atomic_load_n(flag, __ATOMIC_SEQ_CST)) return v;
    fprintf(stderr, "block %d waits for one that has not begun\n", blockIdx.x);
    abort();
}
static void poke(uint *flag, uint v) { published(0, 256), __atomic_store_n(flag, v, __ATOMIC_SEQ_CST); }
static Meeting consumers{256, 256};
static void consumers_meet() { consumers.arrive_and_wait(); }
static void __threadfence() { self->unknown = false; }
static void __trap() { abort(); }
static void __stcg(float *to, float v) { *to = v, self->unknown = true; }

#define ffma ffma_kernel // the C library has another one
