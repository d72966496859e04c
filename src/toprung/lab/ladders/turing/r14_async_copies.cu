// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//     global memory     tile t+3    t+4  ...                copies under way, past the registers
//                          |
//     shared memory    [ t+3 ] [ t ] [ t+1 ] [ t+2 ]        STAGES buffers in a ring:
//                                |                          one is computed with,
//     registers               8 x 16                        the others are being filled
//
// Block: DN x DM threads, DM = BM / TM, DN = BN / TN, for a BM x BN block of C,
// in warps of LM x LN lanes with WM x WN each.
// Preconditions: M, N, K are whole tiles;
// A, B, C and their leading dimensions are aligned to 4 floats. SM 8.0 or newer.
// Idea: asynchronous copies. The hardware copies 16 bytes at a time from global into shared memory
// while the threads multiply; no register waits for data, so the depth of the pipeline costs shared
// memory only. Such a copy cannot transpose: A's tile stays as it lies, As[m][k], and a thread
// reads four k of each of its rows at once, which is as many reads as before.

#define LM (WM / TM)
#define LN (WN / TN)
#define A_TILE (BM * (BK + PADA))  // floats of a buffer for A
#define B_TILE (BK * BN)           // and for B

// STAGES times As[BM][BK + PADA], then STAGES times Bs[BK][BN]
extern __shared__ __align__(16) float shared[];

__device__ __forceinline__ void copy16(float *to, const float *from)
{
    const unsigned where = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(where), "l"(from) : "memory");
}

// Start the copies of one tile of A and one of B from where the pointers stand
__device__ __forceinline__ void start(float *As, float *Bs, const float *A, int lda,
                                      const float *B, int ldb, int tid)
{
#pragma unroll
    for (int i = 0; i < LA; ++i) {
        const int l = (tid + i * DM * DN) * 4;
        copy16(&As[l / BK * (BK + PADA) + l % BK], &A[(size_t)(l / BK) * lda + l % BK]);
    }
#pragma unroll
    for (int i = 0; i < LB; ++i) {
        const int l = (tid + i * DM * DN) * 4;
        copy16(&Bs[l], &B[(size_t)(l / BN) * ldb + l % BN]);
    }
}

__device__ __forceinline__ void read4(float *to, const float *from)
{
    const float4 v = *(const float4 *)from;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

extern "C" __global__ void __launch_bounds__(DM *DN)
gemm(int M, int N, int K, float alpha, const float *__restrict__ A, int lda,
     const float *__restrict__ B, int ldb, float beta, float *__restrict__ C, int ldc)
{
    const int tid = threadIdx.y * DN + threadIdx.x;
    const int lane = tid % (LM * LN);
    const int warp = tid / (LM * LN);
    const int tn = warp % (BN / WN) * WN + lane % LN * 4; // columns tn, tn + 4 LN, ...
                                                          // four at a time
    const int tm = warp / (BN / WN) * WM + lane / LN;     // rows tm, tm + LM, ...
    A += (size_t)blockIdx.y * BM * lda;
    B += blockIdx.x * BN;
    C += ((size_t)blockIdx.y * BM + tm) * ldc + blockIdx.x * BN + tn;

    float acc[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;

    // a group of copies is closed for every tile, also where there is none left:
    // so counting groups counts tiles
    int filled = 0;
    for (; filled < STAGES - 1; ++filled) {
        if (filled * BK < K)
            start(shared + filled * A_TILE, shared + STAGES * A_TILE + filled * B_TILE,
                  A, lda, B, ldb, tid);
        A += BK;
        B += (size_t)BK * ldb;
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    int now = 0; // the buffer to compute with; `filled` is the next to fill
    for (int k0 = 0; k0 < K; k0 += BK) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads(); // tile `now` is complete, and nobody reads the one before it any more
        if (k0 + (STAGES - 1) * BK < K)
            start(shared + filled * A_TILE, shared + STAGES * A_TILE + filled * B_TILE,
                  A, lda, B, ldb, tid);
        A += BK;
        B += (size_t)BK * ldb;
        asm volatile("cp.async.commit_group;" ::: "memory");

        const float *As = shared + now * A_TILE + tm * (BK + PADA);
        const float *Bs = shared + STAGES * A_TILE + now * B_TILE + tn;
        float b[2][TN];
#pragma unroll
        for (int j = 0; j < TN / 4; ++j) read4(&b[0][j * 4], &Bs[j * 4 * LN]);
#pragma unroll
        for (int k = 0; k < BK; k += 4) {
            float a[TM][4];
#pragma unroll
            for (int i = 0; i < TM; ++i) read4(a[i], &As[i * LM * (BK + PADA) + k]);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (k + e + 1 < BK)
#pragma unroll
                    for (int j = 0; j < TN / 4; ++j)
                        read4(&b[(e + 1) % 2][j * 4], &Bs[(k + e + 1) * BN + j * 4 * LN]);
#pragma unroll
                for (int i = 0; i < TM; ++i)
#pragma unroll
                    for (int step = 0; step < TN; ++step) {
                        // odd rows run from right to left
                        const int j = i % 2 ? TN - 1 - step : step;
                        acc[i][j] += a[i][e] * b[e % 2][j];
                    }
            }
        }
        now = now + 1 == STAGES ? 0 : now + 1;
        filled = filled + 1 == STAGES ? 0 : filled + 1;
    }

#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; j += 4) {
            float4 *const c = (float4 *)&C[(size_t)i * LM * ldc + j * LN];
            float4 result = make_float4(alpha * acc[i][j], alpha * acc[i][j + 1],
                                        alpha * acc[i][j + 2], alpha * acc[i][j + 3]);
            if (beta != 0.0f) { // beta = 0 never reads C
                const float4 old = *c;
                result.x += beta * old.x, result.y += beta * old.y,
                result.z += beta * old.z, result.w += beta * old.w;
            }
            *c = result;
        }
}
