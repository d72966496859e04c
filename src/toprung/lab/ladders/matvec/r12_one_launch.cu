// y = alpha * A^T * x + beta * y
// row-major: A is stored N x M (lda); x has N elements, incx apart, y has M, incy apart
//
//     slice 0   slice 1   slice 2          each leaves its sums in global memory,
//       s0        s1        s2             then counts itself
//        \         |         \
//         1        3          2            the one that finds all others counted
//                  |                       adds what they left, always in this order
//                  y
//
// Block: DM x DN threads, DN a power of two, for BM = DM * TM elements of y. Any M, N, lda, incx,
// incy, any number of slices. With more than one, sums has room for M floats a slice and counts for
// one number a block of y, zero before the first call and left zero. CUDA only: that what one block
// wrote is seen by another needs a fence over the whole device, which OpenCL C 1.2 has not.
// Idea: one launch. The second pass of rung 11 is a launch of its own, which costs more than the
// little it adds. A is read past the cache, which it would fill for nothing: what the slices leave
// for each other stays there.

#define READ_ONCE(p) __ldcs((const float4 *)(p))

__device__ __forceinline__ void add(float4 &acc, float4 a, float x)
{
    acc.x += a.x * x, acc.y += a.y * x, acc.z += a.z * x, acc.w += a.w * x;
}

// Row 0 of partial becomes the sum of its `rows` rows, a power of two.
// All of the block must call it.
__device__ __forceinline__ void tree(float (*partial)[BM], unsigned rows)
{
    for (unsigned stride = rows / 2; stride > 0; stride /= 2) {
        for (unsigned i = threadIdx.x; i < stride * BM; i += DM * DN)
            partial[i / BM][i % BM] += partial[i / BM + stride][i % BM];
        __syncthreads(); // this level of the tree is complete
    }
}

extern "C" __global__ void __launch_bounds__(DM *DN)
gemv(unsigned M, unsigned N, float alpha, const float *__restrict__ A, int lda,
     const float *__restrict__ x, int incx, float beta,
     float *__restrict__ y, int incy, float *sums, unsigned *counts)
{
    __shared__ __align__(16) float partial[DN][BM]; // partial[dn][m]
    __shared__ unsigned before;                     // how many slices were there before this one
    const unsigned dm = threadIdx.x % DM, dn = threadIdx.x / DM;
    const unsigned m = blockIdx.x * BM + dm * 4;
    const unsigned slices = gridDim.y;
    // of a slice: whole turns of the loop
    const unsigned length = ((N - 1) / (slices * BN) + 1) * BN;
    const unsigned end = min(blockIdx.y * length + length, N);
    unsigned n = blockIdx.y * length + dn;

    A += (size_t)n * lda + m;
    x += (size_t)n * incx;
    const size_t down = (size_t)DN * lda; // to this thread's next row
    const size_t on = (size_t)DN * incx;

    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (m + 4 <= M && lda % 4 == 0) {
        for (; n + (KU - 1) * DN < end; n += BN) {
            float4 a[KU];
#pragma unroll
            for (int u = 0; u < KU; ++u) a[u] = READ_ONCE(&A[u * down]);
#pragma unroll
            for (int u = 0; u < KU; ++u) add(acc, a[u], x[u * on]);
            A += KU * down;
            x += KU * on;
        }
        for (; n < end; n += DN) {
            add(acc, READ_ONCE(A), *x);
            A += down;
            x += on;
        }
    } else {
        for (; n < end; n += DN) {
            if (m < M) acc.x += A[0] * *x;
            if (m + 1 < M) acc.y += A[1] * *x;
            if (m + 2 < M) acc.z += A[2] * *x;
            if (m + 3 < M) acc.w += A[3] * *x;
            A += down;
            x += on;
        }
    }
    *(float4 *)&partial[dn][dm * 4] = acc;
    __syncthreads(); // the partial sums are complete
    tree(partial, DN);

    if (slices > 1) {
        for (unsigned i = threadIdx.x; i < BM; i += DM * DN)
            if (blockIdx.x * BM + i < M)
                sums[(size_t)blockIdx.y * M + blockIdx.x * BM + i] = partial[0][i];
        __threadfence();  // what this thread left is seen by the whole device
        __syncthreads();  // and what the others of this block left
        if (threadIdx.x == 0) before = atomicAdd(&counts[blockIdx.x], 1u);
        __syncthreads();
        if (before != slices - 1) return;
        if (threadIdx.x == 0) counts[blockIdx.x] = 0; // for the next call
        __threadfence();
        // threads for each element: a power of two, at most DN
        constexpr unsigned parts = DM * DN / BM;
        const unsigned i = threadIdx.x % BM;
        const unsigned mine = blockIdx.x * BM + i;
        float sum = 0.0f;
        if (mine < M)
#pragma unroll 8
            for (unsigned s = threadIdx.x / BM; s < slices; s += parts)
                sum += __ldcg(&sums[(size_t)s * M + mine]);
        partial[threadIdx.x / BM][i] = sum;
        __syncthreads(); // the parts' sums are complete
        tree(partial, parts);
    }

    for (unsigned i = threadIdx.x; i < BM; i += DM * DN) {
        const unsigned mine = blockIdx.x * BM + i;
        if (mine >= M) continue;
        float result = alpha * partial[0][i];
        if (beta != 0.0f) result += beta * y[(size_t)mine * incy]; // beta = 0 never reads y
        y[(size_t)mine * incy] = result;
    }
}
