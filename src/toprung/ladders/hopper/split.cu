// Rows of A (MxK) and columns of B (KxN) as two fp16 terms: x * 2^(14-e) = hi + lo/2048, e the exponent of the row's largest element.
//
//      for every row, for every 32 of K:   | 32 hi | 32 lo |   zeros behind K        exponents[row] = e - 14
//
// A block has 1024 threads and 32 rows: the first blocks those of A, the rest those of B. Where K runs along memory a warp has a row;
// where it runs across, a lane has one, and 128 of K at a time are turned through shared memory. The one idea: one launch, two sweeps
// over the rows, the first for e, the second for the terms and for what the guard must know. Wants: any sizes, strides and alignment.

#define SPAN 128 // of K, in a sweep's step

// times 2^s, -113 <= s <= 163, rounded at most where the result is below 2^-126
inline float scaled(float x, int s) { return x * power_of_two(s >> 1) * power_of_two(s - (s >> 1)); }

inline int exponent_of(uint bits) { // of a finite |x|
    return bits >> 23 ? (int)(bits >> 23) - 127 : bits ? 31 - __clz(bits) - 149 : ZERO_ROW;
}

struct Terms {
    uint hi[2], lo[2]; // four of each
};

struct Four {
    float x[4];
};

inline uint pack(ushort2 v) { return v.x | (uint)v.y << 16; }

inline unsigned short half_of(float x) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

inline float from_half(unsigned short h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

// the terms of four elements; counts those that are lost and those that are not the row's bulk
inline Terms terms_of(Four v, int s, int valid, int &lost, int &thin) {
    unsigned short h[4], l[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float y = scaled(v.x[i], s);
        h[i] = half_of(y);
        l[i] = half_of((y - from_half(h[i])) * (float)RESIDUAL);
        if (i < valid) {
            lost |= fabsf(y) < 0x1p-14f && v.x[i] != 0.0f;
            thin += fabsf(y) < 2.0f;
        }
    }
    return Terms{{pack(make_ushort2(h[0], h[1])), pack(make_ushort2(h[2], h[3]))}, {pack(make_ushort2(l[0], l[1])), pack(make_ushort2(l[2], l[3]))}};
}

inline uint warp_max(uint v) { return __reduce_max_sync(0xffffffffu, v); }

// K along memory: element (row, k) at row * ld + k
inline void along(const float *x, int first, int rows, int K, int ld, unsigned short *out, int *exponents, Rows *summary, Rows *shared) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = first + warp, whole = (K + 31) / 32 * 32;
    bool mine = row < rows, wide = ld % 4 == 0 && (ulong)x % 16 == 0;
    const float *from = x + (ulong)row * ld;
    Rows seen = {ZERO_ROW, 0, 0, 0};
    if (mine) {
        uint largest = 0;
        if (wide) {
#pragma unroll 4
            for (int k = 4 * lane; k + 3 < K; k += SPAN) {
                uint4 v = *(const uint4 *)(from + k);
                largest = max(largest, max(max(v.x & 0x7fffffff, v.y & 0x7fffffff), max(v.z & 0x7fffffff, v.w & 0x7fffffff)));
            }
            if (K / 4 * 4 + lane < K) largest = max(largest, __float_as_uint(from[K / 4 * 4 + lane]) & 0x7fffffff);
        } else {
#pragma unroll 4
            for (int k = lane; k < K; k += 32) largest = max(largest, __float_as_uint(from[k]) & 0x7fffffff);
        }
        largest = warp_max(largest);
        bool special = largest >= 0x7f800000;
        int e = special ? 0 : exponent_of(largest), shift = TOP - (e == ZERO_ROW ? 0 : e), lost = 0, thin = 0;
        if (lane == 0) exponents[row] = -shift;
        unsigned short *to = out + (ulong)row * 2 * whole;
#pragma unroll 2
        for (int k = 4 * lane; k < whole; k += SPAN) {
            Four v;
            if (wide && k + 3 < K) *(float4 *)&v = *(const float4 *)(from + k);
            else
#pragma unroll
                for (int i = 0; i < 4; ++i) v.x[i] = k + i < K ? from[k + i] : 0.0f;
            Terms t = terms_of(v, shift, K - k, lost, thin);
            unsigned short *at = to + k / 32 * 64 + k % 32;
            *(uint2 *)at = make_uint2(t.hi[0], t.hi[1]);
            *(uint2 *)(at + 32) = make_uint2(t.lo[0], t.lo[1]);
        }
        seen = Rows{special ? 0 : e, (__any_sync(0xffffffffu, lost) ? LOST : 0) | (special ? SPECIAL : 0), e == ZERO_ROW ? 0 : (int)__reduce_add_sync(0xffffffffu, thin), 0};
    }
    if (lane == 0) shared[warp] = seen;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < 32; ++i) seen = worst(seen, shared[i]);
        *summary = seen;
    }
}

// K across memory: element (row, k) at k * ld + row
inline void across(const float *x, int first, int rows, int K, int ld, unsigned short *out, int *exponents, Rows *summary, char *memory) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = first + lane, whole = (K + 31) / 32 * 32;
    bool mine = row < rows;
    const float *from = x + row;
    uint *most = (uint *)memory; // [32 warps][32 rows]
    uint largest = 0;
    if (mine) {
#pragma unroll 8
        for (int k = warp; k < K; k += 32) largest = max(largest, __float_as_uint(from[(ulong)k * ld]) & 0x7fffffff);
    }
    most[32 * warp + lane] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < 32; ++w) largest = max(largest, most[32 * w + lane]);
    bool special = largest >= 0x7f800000;
    int e = special ? 0 : exponent_of(largest), shift = TOP - (e == ZERO_ROW ? 0 : e), lost = 0, thin = 0;
    if (warp == 0 && mine) exponents[row] = -shift;
    __syncthreads();
    // a row of the turned tile: four times 64 bytes of hi and 64 of lo, and 16 against bank conflicts
    char *mine_in = memory + lane * (4 * SPAN + 16) + warp / 8 * 128 + warp % 8 * 8;
    const char *theirs = memory + warp * (4 * SPAN + 16) + 16 * lane;
    for (int k0 = 0; k0 < whole; k0 += SPAN) {
        int k = k0 + 4 * warp;
        Four v;
#pragma unroll
        for (int i = 0; i < 4; ++i) v.x[i] = mine && k + i < K ? from[(ulong)(k + i) * ld] : 0.0f;
        Terms t = terms_of(v, shift, K - k, lost, thin);
        *(uint2 *)mine_in = make_uint2(t.hi[0], t.hi[1]);
        *(uint2 *)(mine_in + 64) = make_uint2(t.lo[0], t.lo[1]);
        __syncthreads();
        if (first + warp < rows && k0 + lane / 8 * 32 < whole)
            *(uint4 *)(out + (ulong)(first + warp) * 2 * whole + 2 * k0 + 8 * lane) = *(const uint4 *)theirs;
        __syncthreads();
    }
    int *sums = (int *)memory;
    sums[32 * warp + lane] = thin | (lost ? 1 << 30 : 0);
    __syncthreads();
    if (warp == 0) {
        thin = 0;
        for (int w = 0; w < 32; ++w) thin += sums[32 * w + lane] & ~(1 << 30), lost |= sums[32 * w + lane] >> 30;
        Rows seen = mine ? Rows{special ? 0 : e, (lost ? LOST : 0) | (special ? SPECIAL : 0), e == ZERO_ROW ? 0 : thin, 0} : Rows{ZERO_ROW, 0, 0, 0};
        seen.exponent = __reduce_max_sync(0xffffffffu, seen.exponent);
        seen.flags = __reduce_or_sync(0xffffffffu, (uint)seen.flags);
        seen.thin = __reduce_max_sync(0xffffffffu, seen.thin);
        if (lane == 0) *summary = seen;
    }
}

extern "C" __global__ __launch_bounds__(1024) void split(int M, int N, int K, const float *A, int lda, int across_a, unsigned short *split_a,
                                                         int *exponents_a, Rows *summary_a, const float *B, int ldb, int across_b,
                                                         unsigned short *split_b, int *exponents_b, Rows *summary_b) {
    __shared__ __align__(16) char memory[32 * (4 * SPAN + 16)];
    int blocks_a = (M + 31) / 32, block = blockIdx.x;
    if (block < blocks_a) {
        if (across_a) across(A, 32 * block, M, K, lda, split_a, exponents_a, summary_a + block, memory);
        else along(A, 32 * block, M, K, lda, split_a, exponents_a, summary_a + block, (Rows *)memory);
    } else {
        block -= blocks_a;
        if (across_b) across(B, 32 * block, N, K, ldb, split_b, exponents_b, summary_b + block, memory);
        else along(B, 32 * block, N, K, ldb, split_b, exponents_b, summary_b + block, (Rows *)memory);
    }
}
