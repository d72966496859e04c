// Operands as the product wants them: A as KxM, B as KxN, rows padded to whole 16 bytes.
//
//     from rows x K (it is turned) or K x rows (it is copied: its address or leading dimension is no multiple of 16 bytes)
//     to   K x pitch            to[k * pitch + r]
//
//     a block has 64 x 64, a thread 4 x 4, which it turns in its registers; of a warp, 8 threads read 128 bytes of a row of K and
//     4 write 64 bytes of a row of the result, which the next warp makes 256
//
// The first blocks_a blocks take A, the rest B. What lies behind the last row in the padding is 0 or not written; nothing reads it.
// Wants: any sizes, leading dimensions and alignment; pitch a multiple of 4. 256 threads.
//
// Idea: no shared memory and no barrier: four reads of 16 bytes and four writes of 16 bytes, all in flight at once.

struct Operand {
    const float *from;
    float *to;
    long long ld, pitch;
    int rows, across; // across: K runs across memory, it is copied
};

// four elements along memory, of which ``some`` exist
inline float4 four(const float *from, int some, bool wide) {
    if (wide && some >= 4) return *(const float4 *)from;
    return make_float4(some > 0 ? from[0] : 0.0f, some > 1 ? from[1] : 0.0f, some > 2 ? from[2] : 0.0f, some > 3 ? from[3] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(256)
lay(const float *A, const float *B, float *to_a, float *to_b, int K, int blocks_a, int rows_a, int rows_b, int across_a,
    int across_b, long long lda, long long ldb, long long pitch_a, long long pitch_b) {
    wait_for_previous();
    let_next_start();
    bool is_a = (int)blockIdx.x < blocks_a;
    Operand x = is_a ? Operand{A, to_a, lda, pitch_a, rows_a, across_a} : Operand{B, to_b, ldb, pitch_b, rows_b, across_b};
    int block = is_a ? blockIdx.x : blockIdx.x - blocks_a, chunks = (K + 63) / 64, t = threadIdx.x;
    int k = block % chunks * 64, r = block / chunks * 64;
    if (x.across) k += t / 16 * 4, r += t % 16 * 4;
    else k += (t % 8 + t / 128 * 8) * 4, r += t / 8 % 16 * 4;
    if (k >= K || r >= x.rows) return;
    float4 v[4];
    bool wide = x.ld % 4 == 0 && ((ulong)x.from & 15) == 0;
    float *to = x.to + k * x.pitch + r;
    if (x.across) {
        const float *from = x.from + k * x.ld + r;
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = k + i < K ? four(from + i * x.ld, x.rows - r, wide) : float4{};
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (k + i < K) *(float4 *)(to + i * x.pitch) = v[i];
    } else {
        const float *from = x.from + r * x.ld + k;
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = r + i < x.rows ? four(from + i * x.ld, K - k, wide) : float4{};
        *(float4 *)to = make_float4(v[0].x, v[1].x, v[2].x, v[3].x);
        if (k + 1 < K) *(float4 *)(to + x.pitch) = make_float4(v[0].y, v[1].y, v[2].y, v[3].y);
        if (k + 2 < K) *(float4 *)(to + 2 * x.pitch) = make_float4(v[0].z, v[1].z, v[2].z, v[3].z);
        if (k + 3 < K) *(float4 *)(to + 3 * x.pitch) = make_float4(v[0].w, v[1].w, v[2].w, v[3].w);
    }
}
