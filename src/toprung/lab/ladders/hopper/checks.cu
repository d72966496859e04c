// The smallest use of each helper, for a GPU machine:
// what comes out is compared with what NumPy says.

// one box of 64 fp16 x 128 rows as it lies in shared memory
extern "C" __global__
void check_load(const __grid_constant__ TensorMap map, int x, int y, uint4 *out) {
    extern __shared__ char memory[];
    __shared__ __align__(8) ulong bar;
    char *tile = memory + ((1024 - shared_address(memory) % 1024) % 1024);
    if (threadIdx.x == 0) {
        barrier_init(shared_address(&bar), 1);
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_expect(shared_address(&bar), 128 * 128);
        tma_load(shared_address(tile), &map, x, y, shared_address(&bar));
    }
    barrier_wait(shared_address(&bar), 0);
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) out[i] = ((uint4 *)tile)[i];
}

// one matrix instruction on tiles that threads laid out:
// out = A (64 x 64) * B^T (CHECK_N x 64), for the 16 of K from 16*step on
extern "C" __global__ __launch_bounds__(128)
void check_wgmma(const unsigned short *A, const unsigned short *B, int step, float *out) {
    extern __shared__ char memory[];
    char *a = memory + ((1024 - shared_address(memory) % 1024) % 1024), *b = a + 64 * 128;
    // 16 bytes each: chunk c of row r lies at chunk c ^ (r % 8)
    for (int i = threadIdx.x; i < (64 + CHECK_N) * 8; i += 128) {
        int r = i / 8, c = i % 8;
        uint4 v = r < 64 ? ((const uint4 *)A)[i] : ((const uint4 *)B)[i - 64 * 8];
        *(uint4 *)(a + 128 * r + 16 * (c ^ (r % 8))) = v;
    }
    proxy_fence();
    __syncthreads();
    float d[CHECK_N / 2];
#pragma unroll
    for (int i = 0; i < CHECK_N / 2; ++i)
        d[i] = -77.0f; // overwritten: the first product does not accumulate
    pin(d);
    wgmma_fence();
    wgmma<CHECK_N>(d, tile_at(shared_address(a)) + 2 * step,
                   tile_at(shared_address(b)) + 2 * step, 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(d);
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < CHECK_N / 2; ++i)
        out[(row + (i & 2) * 4) * CHECK_N + i / 4 * 8 + lane % 4 * 2 + (i & 1)] = d[i];
}

// each block of a pair fetches half a box for both: out[block] is what arrived there
extern "C" __global__ __cluster_dims__(2, 1, 1)
void check_multicast(const __grid_constant__ TensorMap map, uint4 *out) {
    extern __shared__ char memory[];
    __shared__ __align__(8) ulong bar;
    char *tile = memory + ((1024 - shared_address(memory) % 1024) % 1024);
    uint rank = cluster_rank();
    if (threadIdx.x == 0) {
        barrier_init(shared_address(&bar), 1);
        barrier_init_fence();
    }
    cluster_sync();
    if (threadIdx.x == 0) {
        barrier_expect(shared_address(&bar), 2 * 64 * 128);
        tma_load_all(shared_address(tile) + rank * 64 * 128, &map, 0, rank * 64,
                     shared_address(&bar), 3);
    }
    barrier_wait(shared_address(&bar), 0);
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) out[1024 * rank + i] = ((uint4 *)tile)[i];
    cluster_sync();
}

// what the unit keeps of small terms beside a large one:
// out[i] = 1 + 2^-i as one product each, and 2^-i added to an accumulator of 1
extern "C" __global__ __launch_bounds__(128)
void check_bits(const unsigned short *A, const unsigned short *B, const float *start, float *out) {
    extern __shared__ char memory[];
    char *a = memory + ((1024 - shared_address(memory) % 1024) % 1024), *b = a + 64 * 128;
    for (int i = threadIdx.x; i < 128 * 8; i += 128) {
        int r = i / 8, c = i % 8;
        uint4 v = r < 64 ? ((const uint4 *)A)[i] : ((const uint4 *)B)[i - 64 * 8];
        *(uint4 *)(a + 128 * r + 16 * (c ^ (r % 8))) = v;
    }
    proxy_fence();
    __syncthreads();
    float d[32];
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 32; ++i)
        d[i] = start[(row + (i & 2) * 4) * 64 + i / 4 * 8 + lane % 4 * 2 + (i & 1)];
    pin(d);
    wgmma_fence();
    wgmma<64>(d, tile_at(shared_address(a)), tile_at(shared_address(b)), 1);
    wgmma_commit();
    wgmma_wait<0>();
    pin(d);
#pragma unroll
    for (int i = 0; i < 32; ++i)
        out[(row + (i & 2) * 4) * 64 + i / 4 * 8 + lane % 4 * 2 + (i & 1)] = d[i];
}
