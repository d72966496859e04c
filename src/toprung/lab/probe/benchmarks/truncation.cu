// What fp32x keeps in a Tensor Core before it promotes a sum: two steps of 16 products, twice for each pair of tiles of 64×64 fp16
// numbers. out[block][half] = A[block] · B[block]ᵀ over one half of K.
extern "C" __global__ __launch_bounds__(128) void probe(const uint4 *A, const uint4 *B, float *out) {
    extern __shared__ char memory[];
    char *a = memory + ((1024 - shared_address(memory) % 1024) % 1024), *b = a + 64 * 128;
#pragma unroll
    for (int n = 0; n < 4; ++n) { // 16 bytes each: chunk c of row r lies at chunk c ^ (r % 8)
        int i = 128 * n + threadIdx.x, to = 128 * (i / 8) + 16 * (i % 8 ^ i / 8 % 8);
        *(uint4 *)(a + to) = A[512 * blockIdx.x + i];
        *(uint4 *)(b + to) = B[512 * blockIdx.x + i];
    }
    proxy_fence();
    __syncthreads();
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float d[32] = {};
        pin(d);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 2; ++step)
            wgmma<64>(d, tile_at(shared_address(a)) + 4 * half + 2 * step, tile_at(shared_address(b)) + 4 * half + 2 * step, step);
        wgmma_commit();
        wgmma_wait<0>();
        pin(d);
#pragma unroll
        for (int i = 0; i < 32; ++i)
            out[((2 * blockIdx.x + half) * 64 + row + (i & 2) * 4) * 64 + i / 4 * 8 + lane % 4 * 2 + (i & 1)] = d[i];
    }
}
