// C = alpha*A*B + beta*C, row-major (A MxK, B KxN, C MxN), A and B split beforehand: row r of A (column of B) is, for every 32 of K,
// 32 hi then 32 lo in fp16, x * 2^(14-e) = hi + lo/2048. A block owns 64*CONSUMERS x BN of C at a time; every consumer warpgroup 64xBN:
//
//      producer: copy engine --> ring of STAGES x 32 of K --> matrix units: partial = hi.hi      (promoted to fp32 every INTERVAL)
//                                                                          cross  += hi.lo + lo.hi (stays in the unit)
//
// The one idea: the partial sums are added to registers while the unit works on the cross terms, which are 2^-11 of the result and
// may stay in its truncating accumulator for all of K. Wants: M, N, K > 0; rows of the split operands padded with zeros to 32 of K.

#define THREADS (128 * (CONSUMERS + 1))
#define BM (64 * CONSUMERS)
#define A_BYTES (BM * 128)
#define B_BYTES (BN * 128)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define B_PART (BN / CLUSTER) // rows of B that this block fetches for the whole cluster
#define GRANULES ((BN + 63) / 64)

struct Place {
    int m, n;
};

// tiles in an order that keeps what runs at once close together: GROUP tiles down, then one to the right
inline Place place(int tile, int tiles_m, int tiles_n) {
    int band = tile / (GROUP * tiles_n), first = band * GROUP, high = min(GROUP, tiles_m - first), in = tile % (GROUP * tiles_n);
    return Place{first + in % high, in / high};
}

// this warp has read a stage: every block that fetches into it is told
inline void release(uint empty) {
    if (threadIdx.x % 32 < CLUSTER) {
        if (CLUSTER == 1) barrier_arrive(empty);
        else barrier_arrive_at(empty, threadIdx.x % 32);
    }
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, 1)
fp32x(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int M, int N, int K, float alpha,
      const int *exponents_a, const int *exponents_b, const Rows *summary_a, const Rows *summary_b, float beta, float *C, int ldc) {
    extern __shared__ char memory[];
    uint ring = (shared_address(memory) + 1023) & ~1023u, full = ring + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    uint rank = CLUSTER > 1 ? cluster_rank() : 0;
    int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 4 * CONSUMERS * CLUSTER);
        }
        barrier_init_fence();
    }
    if (CLUSTER > 1) cluster_sync();
    else __syncthreads();

    int tiles_m = (M + BM * CLUSTER - 1) / (BM * CLUSTER), tiles_n = (N + BN - 1) / BN, tiles = tiles_m * tiles_n;
    // what lies behind K arrives as zeros
    int chunks = TOGETHER ? (K + 32 * INTERVAL - 1) / (32 * INTERVAL) * INTERVAL : (K + 31) / 32, stage = 0;
    uint phase = 0;

    if (warpgroup == 0) { // the producer: one thread of it
#if CONSUMER_REGISTERS
        fewer_registers<PRODUCER_REGISTERS>();
#endif
        if (threadIdx.x == 0) {
            for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER) {
                Place at = place(tile, tiles_m, tiles_n);
                int row = (at.m * CLUSTER + rank) * BM, col = at.n * BN + rank * B_PART;
                for (int j = 0; j < chunks; ++j) {
                    uint a = ring + stage * STAGE_BYTES, b = a + A_BYTES + rank * B_PART * 128;
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    barrier_expect(full + 8 * stage, STAGE_BYTES);
                    tma_load(a, &map_a, 64 * j, row, full + 8 * stage);
                    if (CLUSTER == 1) tma_load(b, &map_b, 64 * j, col, full + 8 * stage);
                    else tma_load_all(b, &map_b, 64 * j, col, full + 8 * stage, (1 << CLUSTER) - 1);
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
            }
        }
    } else {
#if CONSUMER_REGISTERS
        more_registers<CONSUMER_REGISTERS>();
#endif
        int consumer = warpgroup - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER) {
            Place at = place(tile, tiles_m, tiles_n);
            int top = (at.m * CLUSTER + rank) * BM + 64 * consumer, left = at.n * BN;
            float sum[BN / 2], partial[BN / 2];
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) sum[i] = 0.0f;
#if TOGETHER
            // one accumulator for both in turn: the cross terms of INTERVAL stages, promoted with their weight, then their hi.hi
            for (int j0 = 0; j0 < chunks; j0 += INTERVAL) {
                int s = stage;
                uint p = phase;
#pragma unroll
                for (int i = 0; i < INTERVAL; ++i) {
                    uint a = ring + s * STAGE_BYTES + consumer * 64 * 128, b = ring + s * STAGE_BYTES + A_BYTES;
                    ulong a_hi = tile_at(a), b_hi = tile_at(b);
                    barrier_wait(full + 8 * s, p);
                    pin(partial);
                    wgmma_fence();
                    wgmma<BN>(partial, a_hi, b_hi + 4, i);
                    wgmma<BN>(partial, a_hi + 2, b_hi + 6, 1);
                    wgmma<BN>(partial, a_hi + 4, b_hi, 1);
                    wgmma<BN>(partial, a_hi + 6, b_hi + 2, 1);
                    wgmma_commit();
                    if (++s == STAGES) s = 0, p ^= 1;
                }
                wgmma_wait<0>();
                pin(partial);
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) sum[i] = fmaf(partial[i], 1.0f / RESIDUAL, sum[i]);
                s = stage;
#pragma unroll
                for (int i = 0; i < INTERVAL; ++i) {
                    uint a = ring + s * STAGE_BYTES + consumer * 64 * 128, b = ring + s * STAGE_BYTES + A_BYTES;
                    ulong a_hi = tile_at(a), b_hi = tile_at(b);
                    pin(partial);
                    wgmma_fence();
                    wgmma<BN>(partial, a_hi, b_hi, i);
                    wgmma<BN>(partial, a_hi + 2, b_hi + 2, 1);
                    wgmma_commit();
                    if (++s == STAGES) s = 0;
                }
                wgmma_wait<0>();
                pin(partial);
#pragma unroll
                for (int i = 0; i < INTERVAL; ++i) {
                    release(empty + 8 * stage);
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) sum[i] += partial[i];
            }
#else
            float cross[BN / 2];
            uint before = 0; // the stage that the cross terms in flight read
            for (int j = 0; j < chunks; ++j) {
                uint a = ring + stage * STAGE_BYTES + consumer * 64 * 128, b = ring + stage * STAGE_BYTES + A_BYTES;
                ulong a_hi = tile_at(a), b_hi = tile_at(b); // 16 of K further: 32 bytes, 2 in a descriptor; lo: 64 bytes
                barrier_wait(full + 8 * stage, phase);
                pin(partial);
                wgmma_fence();
                wgmma<BN>(partial, a_hi, b_hi, INTERVAL > 1 ? j % INTERVAL : 0);
                wgmma<BN>(partial, a_hi + 2, b_hi + 2, 1);
                wgmma_commit();
                wgmma_wait<1>(); // the cross terms of the stage before
                if (j) release(empty + 8 * before);
                pin(cross);
                wgmma_fence();
                wgmma<BN>(cross, a_hi, b_hi + 4, j);
                wgmma<BN>(cross, a_hi + 2, b_hi + 6, 1);
                wgmma<BN>(cross, a_hi + 4, b_hi, 1);
                wgmma<BN>(cross, a_hi + 6, b_hi + 2, 1);
                wgmma_commit();
                wgmma_wait<1>(); // hi.hi
                pin(partial);
                if (INTERVAL == 1 || j % INTERVAL == INTERVAL - 1 || j == chunks - 1) {
#pragma unroll
                    for (int i = 0; i < BN / 2; ++i) sum[i] += partial[i];
                }
                before = stage;
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
            wgmma_wait<0>();
            pin(cross);
            release(empty + 8 * before);
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) sum[i] = fmaf(cross[i], 1.0f / RESIDUAL, sum[i]);
#endif

            if (top < M) {
                uint skip = 0; // bit i: columns left + 64 i … are the guard's
                Rows mine = rows_of(summary_a, top / 64, M);
#pragma unroll
                for (int i = 0; i < GRANULES; ++i)
                    if (left + 64 * i < N) skip |= refused(mine, rows_of(summary_b, left / 64 + i, N), K) << i;
                int row = top + 16 * warp + lane / 4;
                int ea[2] = {row < M ? exponents_a[row] : 0, row + 8 < M ? exponents_a[row + 8] : 0};
                bool pairs = ldc % 2 == 0 && (ulong)C % 8 == 0;
#pragma unroll
                for (int i = 0; i < BN / 8; ++i) {
                    int col = left + 8 * i + 2 * (lane % 4);
                    if (skip >> (8 * i / 64) & 1 || col >= N) continue;
                    int eb[2] = {exponents_b[col], col + 1 < N ? exponents_b[col + 1] : 0};
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        if (row + 8 * h >= M) continue;
                        float *to = C + (ulong)(row + 8 * h) * ldc + col, v[2];
#pragma unroll
                        for (int w = 0; w < 2; ++w) {
                            float x = sum[4 * i + 2 * h + w];
                            if (abs(ea[h]) <= 60 && abs(eb[w]) <= 60) x = x * power_of_two(ea[h]) * power_of_two(eb[w]);
                            else x = (float)((double)x * __hiloint2double((ea[h] + eb[w] + 1023) << 20, 0)); // rounded once
                            v[w] = alpha * x;
                        }
                        if (pairs && col + 1 < N) {
                            float2 old = beta != 0 ? *(float2 *)to : make_float2(0, 0);
                            if (beta != 0) v[0] = fmaf(beta, old.x, v[0]), v[1] = fmaf(beta, old.y, v[1]);
                            *(float2 *)to = make_float2(v[0], v[1]);
                        } else {
                            to[0] = beta != 0 ? fmaf(beta, to[0], v[0]) : v[0];
                            if (col + 1 < N) to[1] = beta != 0 ? fmaf(beta, to[1], v[1]) : v[1];
                        }
                    }
                }
            }
        }
    }
    if (CLUSTER > 1) cluster_sync(); // nobody leaves while others may still arrive at its barriers
}
