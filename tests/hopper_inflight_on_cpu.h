// What the in-flight kernel's text needs besides hopper_on_cpu.h: copies, loads and stores of shared memory, matrix instructions that
// take A from registers and B swizzled by 128 bytes, and clusters, whose blocks run at once.

#include "hopper_on_cpu.h"

static char *at_byte(uint at) { return dynamic_shared + at; }
template <int BYTES> static void copy_async(uint to, const float *from, int valid) {
    writes(to, BYTES), self->copies.push_back({to, BYTES});
    later([=] {
        memset(at_byte(to), 0, BYTES);
        if (valid) memcpy(at_byte(to), from, valid);
    });
}
template <int BYTES> static void copy_async_if(uint to, const float *from, bool there) { copy_async<BYTES>(to, from, there ? BYTES : 0); }
static void copies_wait() {
    make_own_copies();
    for (auto [to, bytes] : self->copies) writes(to, bytes);
    self->copies.clear();
}
template <class T> static T read_at(uint at) {
    reads(at, sizeof(T));
    return *(T *)at_byte(at);
}
template <class T> static void write_at(uint at, T v) { writes(at, sizeof v), *(T *)at_byte(at) = v; }
static float4 shared_four(uint at) { return read_at<float4>(at); }
static float2 shared_two(uint at) { return read_at<float2>(at); }
static uint shared_half(uint at) { return read_at<unsigned short>(at); }
static float shared_one(uint at) { return read_at<float>(at); }
static void shared_put(uint at, uint a, uint b, uint c, uint d) { write_at(at, make_uint4(a, b, c, d)); }
static void shared_put(uint at, uint a, uint b) { write_at(at, uint2{a, b}); }
static void shared_put(uint at, float4 v) { write_at(at, v); }
static void shared_put_half(uint at, uint v) { write_at(at, (unsigned short)v); }
static void shared_put(uint at, float v) { write_at(at, v); }
static float shared_of(uint at, uint rank) { return *(float *)(blocks[rank].memory + at); }
static void bulk_store(float *to, uint from, uint bytes) {
    asynchronously_read(from, bytes), reads(from, bytes), self->stores.push_back({from, bytes});
    later([=] { memcpy(to, at_byte(from), bytes); });
}
static void bulk_wait() {
    make_own_copies();
    for (auto [from, bytes] : self->stores) reads(from, bytes);
    self->stores.clear();
}
static uint by_residual(uint two) { return pair_of(wide(two & 0xffff) / 2048, wide(two >> 16) / 2048); }
template <class T> static void forget(T &) {}
static uint __vmaxu2(uint x, uint y) { return std::max(x & 0xffff, y & 0xffff) | std::max(x >> 16, y >> 16) << 16; }
static uint __byte_perm(uint x, uint y, uint which) {
    unsigned long long both = x | (unsigned long long)y << 32;
    uint found = 0;
    for (int i = 0; i < 4; ++i) found |= (uint)(both >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    return found;
}
static uint __umulhi(uint x, uint y) { return (uint)((unsigned long long)x * y >> 32); }
static Meeting all_consumers[16];
static void consumers_meet() { lets_go(), all_consumers[rank].arrive_and_wait(), ++self->epoch; }

static uint fragments[16][1024][4];
template <int N> static void wgmma_rs(float (&d)[N / 2], const uint (&a)[4], word b, int accumulate) {
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 32;
    for (int i = 0; i < 4; ++i) fragments[rank][threadIdx.x][i] = a[i];
    multiplies(), warp_meets();
    const char *tile = at_byte((uint)(b << 4) & ~1023u);
    uint piece = (uint)b % 64; // 16 bytes each, from the tile's begin on
    for (int col = threadIdx.x % 128; col < N; col += 128)
        for (uint k = 0; k < 2; ++k) asynchronously_read((uint)(tile - dynamic_shared) + col * 128 + ((piece + k) ^ col % 8) * 16, 16);
    for (int i = 0; i < N / 2; ++i) {
        int col = i / 4 * 8 + lane % 4 * 2 + (i & 1);
        UnitSum sum;
        if (accumulate) sum.add(d[i]);
        for (int k = 0; k < 16; ++k) {
            uint x = fragments[rank][first + lane / 4 * 4 + k % 8 / 2][(i & 2) / 2 + k / 8 * 2];
            const unsigned short *y = (const unsigned short *)(tile + col * 128 + ((piece + k / 8) ^ col % 8) * 16);
            sum.add((double)wide(k % 2 ? x >> 16 : x & 0xffff) * wide(y[k % 8]));
        }
        d[i] = sum.total();
    }
    warp_meets();
}

#define each_block(groups, threads, kernel)                                                                                        \
    for (Meeting &one : all_consumers) one.begin(128 * CONSUMERS);                                                                 \
    each_cluster(SLICES, groups, threads, kernel)
