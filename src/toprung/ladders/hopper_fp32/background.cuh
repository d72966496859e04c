// Operands laid out while they are multiplied: by the three warps of the producer's warpgroup that would idle, of all blocks.
//
//     a unit, of a warp:   64 rows x 32 k      a panel: 1024 rows      a chunk: 32 k of a panel, with a count of its units that are done
//
//     order of units:      sections of wide_a panels of A and wide_b of B, from first_a and first_b on and around; in a section the chunks
//                          along K; in a chunk the units of A, then those of B
//
// Warps claim units in this order from one counter. A claimed unit waits for nothing, and what nobody has claimed the waiting block's own
// warps will, so that blocks need not all run at once. The producer's thread waits for the chunk that its next box is in.
//
// Who ends last puts the counters back to 0, so that the next launch finds them so. state: claimed | warps that are done | counts of A,
// [panel][chunk] | of B.
//
// Idea: a product reads one k of its operands while it multiplies for a long time; laying out one takes a fraction of that. Only the first
// chunk is waited for.

#define UNIT_ROWS 64
#define CHUNK 32
#define PANEL 1024 // a multiple of BM and of BN
#define BACKGROUND_WARPS 3
#define AHEAD 8 // chunks that the producer's thread looks at beyond what it needs
#ifndef AT_ONCE
#define AT_ONCE 1 // times 16 bytes in flight for each of a thread's four rows
#endif

struct Operand {
    const float *from; // rows x K, which is turned, or K x rows, which is copied (across); to: K x pitch, to[k * pitch + r]
    float *to;
    int ld, pitch, rows, across;
    int panels, wide, first, counts; // wide: 0: it lies well; counts: where its counts begin in ``state``
};

struct Order {
    Operand of[2]; // A, B
    uint *state;
    int units_a, units, chunks, total; // units of A in a chunk of a section, and all; chunks along K; units of all sections
};

inline uint claim(uint *counter) { // one more; not an addition, which the compiler makes one of the whole warp and waits for
    uint was;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], 0x7fffffff;" : "=r"(was) : "l"(counter) : "memory");
    return was;
}
inline uint arrive(uint *counter, uint as) {
    uint was;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(was) : "l"(counter), "r"(as) : "memory");
    return was;
}
inline void count(uint *counter) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory"); }
inline uint seen(const uint *count) {
    uint v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(count) : "memory");
    return v;
}
inline void all_seen() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); } // what was written before what was seen is now, too
inline float4 read_four(const float *from) {
    float4 v;
    asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
    return v;
}
inline void write_four(float *to, float x, float y, float z, float w) {
    asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
// between what threads write to global memory and what the copy engine reads of it, on both sides
inline void copy_fence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// a unit: each row 128 bytes of what is read; four rows of four k in a thread's registers, turned there
inline void turn_unit(const float *from, float *to, int ld, int pitch) {
    int lane = threadIdx.x % 32;
    from += (long long)(lane / 8 * 4) * ld + lane % 8 * 4, to += (long long)(lane % 8 * 4) * pitch + lane / 8 * 4;
#pragma unroll 1
    for (int i = 0; i < UNIT_ROWS; i += 16 * AT_ONCE, from += 16ll * AT_ONCE * ld, to += 16 * AT_ONCE) {
        float4 v[AT_ONCE][4];
#pragma unroll
        for (int s = 0; s < AT_ONCE; ++s)
#pragma unroll
            for (int j = 0; j < 4; ++j) v[s][j] = read_four(from + (long long)(16 * s + j) * ld);
#pragma unroll
        for (int s = 0; s < AT_ONCE; ++s) {
            write_four(to + 16 * s, v[s][0].x, v[s][1].x, v[s][2].x, v[s][3].x);
            write_four(to + 16 * s + 1ll * pitch, v[s][0].y, v[s][1].y, v[s][2].y, v[s][3].y);
            write_four(to + 16 * s + 2ll * pitch, v[s][0].z, v[s][1].z, v[s][2].z, v[s][3].z);
            write_four(to + 16 * s + 3ll * pitch, v[s][0].w, v[s][1].w, v[s][2].w, v[s][3].w);
        }
    }
}

// a unit at an edge, off 16 bytes, or of what is copied: four rows of one k. Behind the last row is padding, which nothing reads.
inline void lay_unit(const Operand &x, int k, int r, int K) {
    int lane = threadIdx.x % 32;
    k += x.across ? lane / 16 : lane, r += x.across ? lane % 16 * 4 : 0;
    int down = x.across ? 1 : x.ld, right = x.across ? x.ld : 1;
#pragma unroll 1
    for (int i = 0; i < UNIT_ROWS / 4; ++i, k += x.across ? 2 : 0, r += x.across ? 0 : 4) {
        if (k >= K || r >= x.rows) continue;
        const float *from = x.from + (long long)k * right + (long long)r * down;
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = r + j < x.rows ? from[(long long)j * down] : 0.0f;
        *(float4 *)(x.to + (long long)k * x.pitch + r) = make_float4(v[0], v[1], v[2], v[3]);
    }
}

// what a producer's warp of three does first
inline void lay_all(const Order &o, int K) {
    int lane = threadIdx.x % 32;
    uint next = 0;
    if (lane == 0) next = claim(o.state);
#pragma unroll 1
    for (;;) {
        uint unit = __shfl_sync(~0u, next, 0);
        if (unit >= (uint)o.total) return;
        if (lane == 0) next = claim(o.state); // it comes while this one is laid out
        uint at = unit / (uint)o.units, section = at / (uint)o.chunks;
        int in = unit % (uint)o.units, k = at % (uint)o.chunks * CHUNK;
        const Operand &x = o.of[in >= o.units_a];
        if (in >= o.units_a) in -= o.units_a;
        int panel = section * x.wide + in / (PANEL / UNIT_ROWS);
        if (panel >= x.panels) continue;
        panel += x.first;
        if (panel >= x.panels) panel -= x.panels;
        int r = panel * PANEL + in % (PANEL / UNIT_ROWS) * UNIT_ROWS;
        if (r >= x.rows) continue;
        bool wide = !x.across && x.ld % 4 == 0 && ((ulong)x.from & 15) == 0;
        if (wide && r + UNIT_ROWS <= x.rows && k + CHUNK <= K) turn_unit(x.from + (long long)r * x.ld + k, x.to + (long long)k * x.pitch + r, x.ld, x.pitch);
        else lay_unit(x, k, r, K);
        copy_fence();
        __syncwarp();
        if (lane == 0) count(o.state + x.counts + panel * o.chunks + k / CHUNK);
    }
}

// what all four warps do last; the lower half of the word counts those that lay out
inline void finish(const Order &o) {
    int lane = threadIdx.x % 32;
    uint before = 0, mine = threadIdx.x >= 32 * WARPS + 32 ? 1 : 1 << 16;
    __syncwarp();
    if (lane == 0) before = arrive(o.state + 1, mine);
    before = __shfl_sync(~0u, before, 0);
    if (before + mine != (BACKGROUND_WARPS + (1 << 16)) * gridDim.x) return;
#pragma unroll 1
    for (int i = lane; i < o.of[1].counts + o.of[1].panels * o.chunks; i += 32) o.state[i] = 0;
}

// The producer's thread, before it fetches k to end - 1 of rows from r on, which lie in one panel. It asks seldom and far ahead, since
// the order it then wants of memory costs the whole multiprocessor time; and never again when all is laid out.
struct Known {
    int panel, from, to; // chunks of a panel that are laid out
    inline Known() : panel(-1) {}
    inline void wait(const Order &o, const Operand &x, int r, int k, int end, bool &all) {
        if (all || !x.wide) return;
        int at = r / PANEL, first = k / CHUNK, last = (end - 1) / CHUNK;
        if (at == panel && first >= from && last < to) return;
        const uint *counts = o.state + x.counts + at * o.chunks;
        uint want = (min(x.rows - at * PANEL, PANEL) + UNIT_ROWS - 1) / UNIT_ROWS;
        all = (seen(o.state + 1) & 0xffff) == BACKGROUND_WARPS * gridDim.x;
        for (uint tries = 0; !all && (seen(counts + first) < want || seen(counts + last) < want); ++tries)
            if (SPIN_LIMIT && tries > SPIN_LIMIT) __trap();
        panel = at, from = first, to = last + 1;
        uint laid = 0;
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) laid |= (uint)(last + 1 + i < o.chunks && seen(counts + last + 1 + i) >= want) << i;
        for (; laid & 1; laid >>= 1) ++to;
        all_seen();
        copy_fence();
    }
};
