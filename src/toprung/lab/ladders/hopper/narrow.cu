// to[r][k] = fp16(x[r][k]), row-major, rows of `depth` elements:
// what lies behind x's rows or its K arrives as zeros.
//
//      K along memory: element (r, k) at r * ld + k
//      K across memory: element (r, k) at k * ld + r
//
// A block owns 64 rows and 64 of K at a time.
// Wants: depth a multiple of 64; any size, stride and alignment of x.
//
// Idea: matrix units read both operands along K, so whichever lies across is turned on the way,
// through shared memory.

inline unsigned short half_of(float x) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

extern "C" __global__ __launch_bounds__(256)
void narrow(int rows, int K, const float *x, int ld, int across, int all, int depth,
            unsigned short *to) {
    // a row is an odd number of words: neighbours lie in different banks
    __shared__ unsigned short tile[64][66];
    int chunks = depth / 64, i0 = threadIdx.x % 64, j0 = threadIdx.x / 64;
    for (int block = blockIdx.x; block < chunks * ((all + 63) / 64); block += gridDim.x) {
        int r0 = block / chunks * 64, k0 = block % chunks * 64;
#pragma unroll
        for (int j = j0; j < 64; j += 4) { // i runs along memory
            int r = r0 + (across ? i0 : j), k = k0 + (across ? j : i0);
            float v =
                r < rows && k < K ? x[across ? (size_t)k * ld + r : (size_t)r * ld + k] : 0.0f;
            tile[across ? i0 : j][across ? j : i0] = half_of(v);
        }
        __syncthreads();
#pragma unroll
        for (int i = threadIdx.x; i < 64 * 32; i += 256) {
            int r = i / 32, pair = i % 32;
            if (r0 + r >= all) continue;
            *(unsigned int *)(to + (size_t)(r0 + r) * depth + k0 + 2 * pair) =
                *(unsigned int *)&tile[r][2 * pair];
        }
        __syncthreads();
    }
}
