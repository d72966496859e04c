// C = alpha*A*B + beta*C, row-major (A MxK, B KxN, C MxN), a batch of them; A and B split beforehand: row r of A (column of B) is,
// for each k-block of 32, 32 hi then 32 lo in fp16, x * 2^(14-e) = hi + lo/2048. A block owns 64*CONSUMERS x BN of C at a time, a
// consumer warpgroup 64 x BN:
//
//      producer: TMA --> ring of STAGES k-blocks --> Tensor Cores: three_products.cuh --> guard.cuh, plain.cuh --> C
//
// What two terms cannot carry a consumer computes again in plain fp32, from A and B as they were given. Wants: rows of the split operands
// padded with zeros to whole k-blocks of 32. alpha = 0: A and B are not read.
//
// With slices > 1 a tile has ``depth`` of K (slices.cuh): C is then a result for each slice and product of the batch, which reduce.cu adds
// up, and a slice's rows of terms have their own exponents. ``count`` grows by one for each 64 x min(64, BN) of C that has sums computed
// again, of each slice.
//
// NVRTC gives CONSUMERS, BN, STAGES, GROUP, as shape.cuh has them; PRODUCER_REGISTERS and CONSUMER_REGISTERS of a thread once the kernel
// runs, or 0; ODD_C, 1 where rows of C begin anywhere; EPILOGUE, ACTIVATION. sources.py puts the headers in front.

#ifndef ODD_C
#define ODD_C 0
#endif

constexpr int THREADS = 128 * (CONSUMERS + 1), BM = 64 * CONSUMERS;
constexpr int PITCH = 17; // floats from row to row where a warp turns 16 rows x 16 columns of C
constexpr int A_BYTES = BM * 128, B_BYTES = BN * 128, STAGE_BYTES = A_BYTES + B_BYTES; // a k-block of terms

// setmaxnreg draws on the registers that the launch gave the block: REGISTERS of each thread, whole eights.
constexpr int REGISTERS = 65536 / THREADS / 8 * 8;
static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= (CONSUMERS + 1) * REGISTERS, "registers of the block");
static_assert(2 * 16 * PITCH * 4 == SPARE_BYTES, "a warp turns its rows where operands in plain fp32 are");
static_assert(STAGES >= 2, "one stage is filled while another is multiplied");

struct Place {
    int matrix, m, n; // matrix: of the results, slice after slice
};

// tiles in an order that keeps what runs at once close together: GROUP tiles down, then one to the right
inline Place place(int tile, int tiles_m, int tiles_n) {
    int matrix = tile / (tiles_m * tiles_n);
    tile -= matrix * tiles_m * tiles_n;
    int band = tile / (GROUP * tiles_n), first = band * GROUP, high = min(GROUP, tiles_m - first), in = tile % (GROUP * tiles_n);
    return Place{matrix, first + in % high, in / high};
}

// Barriers of a stage: ``full`` ends a phase when the TMA has filled it, ``empty`` when all consumer warps have read it. The producer and each
// consumer have a ``phase`` of their own, 0 in the first round of the ring and 1 in the next: consumers wait for the end of that phase of
// ``full``; the producer for the phase of ``empty`` before it, which a new barrier takes for ended. Named barriers 1 … CONSUMERS are
// those of consumer warpgroups (``together``), used at a tile's end alone.

// This warp has read a stage. Only the Tensor Cores read it, and ``wgmma_wait`` waits for those of all lanes: no ``__syncwarp()`` is needed.
inline void release(uint empty) {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fp32x(const float *A, const float *B, float *C, float alpha, float beta ADDED_PARAMETERS, const Row *info_a, const Row *info_b, ulong *count,
      const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int M, int N, int K, int batch,
      int slices, int depth, int apart_a, int apart_b, int below_a, int below_b,
      long long lda, long long stride_a, int across_a, long long ldb, long long stride_b, int across_b,
      int ldc, long long stride_c) {
    extern __shared__ char memory[];
    __shared__ __align__(16) float spare[CONSUMERS][4][2][16][PITCH]; // of each consumer warp, SPARE_BYTES
    __shared__ uint words[CONSUMERS][4];
    // Where the compiler knows that all lanes of a warp have the same ring, warpgroup and stage, descriptors stay in uniform registers:
    // 130 instructions for a k-block in place of 162.
    uint ring = __shfl_sync(0xffffffffu, (shared_address(memory) + 1023) & ~1023u, 0);
    uint full = ring + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        tma_prefetch(&map_a);
        tma_prefetch(&map_b);
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 4 * CONSUMERS);
        }
        barrier_init_fence();
    }
    __syncthreads(); // the barriers are ready
    let_next_start();
    wait_for_previous();

    int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN, tiles = tiles_m * tiles_n * batch * slices, stage = 0;
    uint phase = 0;

    if (warpgroup == 0) { // the producer: one thread of it
        if constexpr (CONSUMER_REGISTERS != 0) fewer_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                Place at = place(tile, tiles_m, tiles_n);
                int slice = at.matrix / batch, product = at.matrix % batch;
                Slice of_k = slice_of(slice, depth, K, alpha);
                int row = product * apart_a + /*!slice-of-a*/slice * below_a + at.m * BM, col = product * apart_b + slice * below_b + at.n * BN;
                int along_a = below_a ? 0 : 2 * of_k.first, along_b = below_b ? 0 : 2 * of_k.first; // fp16: hi and lo
                for (int j = 0; j < of_k.k_blocks; ++j) {
                    uint a = ring + stage * STAGE_BYTES;
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    barrier_expect(full + 8 * stage, STAGE_BYTES);
                    tma_load(a, &map_a, along_a + 64 * j, row, full + 8 * stage);
                    tma_load(a + A_BYTES, &map_b, /*!slice-of-b*/along_b + 64 * j, col, full + 8 * stage);
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
            }
        }
    } else {
        if constexpr (CONSUMER_REGISTERS != 0) more_registers<CONSUMER_REGISTERS>();
        int consumer = warpgroup - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            Place at = place(tile, tiles_m, tiles_n);
            int top = at.m * BM + 64 * consumer, left = at.n * BN, slice = at.matrix / batch, product = at.matrix % batch;
            Slice of_k = slice_of(slice, depth, K, alpha);
            int k_blocks = of_k.k_blocks;
            float sum[BN / 2], partial[BN / 2], cross[BN / 2];
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) {
                sum[i] = 0.0f;
#if __CUDACC_VER_MAJOR__ < 13 // without a value from the start they are moved while products run, which then wait for each other
                partial[i] = cross[i] = 0.0f;
#endif
            }
            uint before = 0; // the stage that the cross terms in flight read
            uint first_a = (uint)tile_at(ring + consumer * 64 * 128), first_b = (uint)tile_at(ring + A_BYTES); // of the ring's first stage
            const ulong high = tile_at(0) & ~0xffffffffull;
            for (int j = 0; j < k_blocks; ++j) {
                uint further = __shfl_sync(0xffffffffu, stage * (STAGE_BYTES >> 4), 0);
                ulong a = high | (first_a + further), b = high | (first_b + further);
                barrier_wait(full + 8 * stage, phase);
                start_hi_hi(partial, a, b);
                wgmma_wait<1>(); // the cross terms of the stage before
                if (j) release(empty + 8 * before);
                start_cross(cross, a, b, j);
                wgmma_wait<1>(); // hi.hi
                promote(sum, partial);
                before = stage;
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
            wgmma_wait<0>();
            pin(cross);
            if (k_blocks) {
                release(empty + 8 * before);
                add_cross(sum, cross);
            }

            if (top >= M) continue;
            const Row *rows = info_a + product * apart_a + slice * below_a + top;
            const Row *cols = info_b + product * apart_b + slice * below_b + left;
            float *out = C + at.matrix * stride_c + (long long)top * ldc + left;
            Added added = ADDED(at.matrix, top, left);
            uint skip = 0, doubt = 0; // bit i: columns left + GRANULE * i … are computed again, or perhaps
            if (k_blocks) {
                Rows mine = rows_of(rows, M - top);
#pragma unroll
                for (int i = 0; i < GRANULES; ++i)
                    if (left + GRANULE * i < N) {
                        Rows theirs = rows_of(cols + GRANULE * i, min(GRANULE, N - left - GRANULE * i));
                        skip |= may_overflow(mine, theirs, of_k.depth) << i;
                        doubt |= may_lose(mine, theirs, of_k.depth) << i;
                    }
            }
            int row = 16 * warp + lane / 4;
            uint lost[GRANULES] = {}; // sums that are computed again, by bits: a granule has 32 of them at most
            if (doubt &= ~skip) find_lost(sum, rows, cols, M, N, top, left, of_k.depth, doubt, skip, lost, words[consumer], 1 + consumer, count);
            auto operands = [&](int col) { // from row ``top`` and column ``col`` on
                return Operands{Lines<0>(A + product * stride_a, lda, across_a, top, of_k.first),
                                Lines<0>(B + product * stride_b, ldb, across_b, col, of_k.first), of_k.depth};
            };
            // All that results need is fetched before the first of them is stored: behind a store, which might have changed it, each load would
            // wait for memory.
            int ea[2] = {k_blocks && top + row < M ? rows[row].exponent : 0, k_blocks && top + row + 8 < M ? rows[row + 8].exponent : 0};
            int eb[BN / 4];
            bool far = max(abs(ea[0]), abs(ea[1])) > 60; // a scale may be no float, or a product on the way
#pragma unroll
            for (int i = 0; i < BN / 4; ++i) {
                int col = i / 2 * 8 + 2 * (lane % 4) + i % 2;
                eb[i] = k_blocks && left + col < N ? cols[col].exponent : 0;
                far |= abs(eb[i]) > 60;
            }
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) {
                int a = ea[i / 2 % 2], b = eb[i / 4 * 2 + i % 2];
                if (!far) sum[i] = alpha * (sum[i] * power_of_two(a) * power_of_two(b));
                else sum[i] = alpha * (float)((double)sum[i] * __hiloint2double((a + b + 1023) << 20, 0)); // rounded once
            }
            if (doubt && __any_sync(0xffffffffu, (lost[0] | lost[GRANULES - 1]) != 0)) {
                Again again;
                again.of = operands(left), again.alpha = alpha, again.spare = shared_address(spare[consumer][warp]);
#pragma unroll
                for (int i = 0; i < GRANULES; ++i) again.lost[i] = lost[i];
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) again.sum[i] = sum[i];
                one_by_one(again);
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) sum[i] = again.sum[i];
            }
            float given[EPILOGUE == 2 ? 1 : 2][BN / 4] = {}; // D, of both rows of the thread
            auto column = [lane](int i) { return 8 * i + 2 * (lane % 4); };
#pragma unroll
            for (int h = 0; h < (/*!d-of-both-rows*/EPILOGUE == 2 ? 1 : 2); ++h)
                if (beta != 0 && (EPILOGUE == 2 || top + row + 8 * h < M)) added.fetch(given[h], row + 8 * h, N - left, column);
            if constexpr (ODD_C) {
                // Results go through shared memory, and 16 lanes write 16 neighbours: a thread's own ones, written one by one, would each
                // be half of the 32 bytes that memory takes at a time.
#pragma unroll
                for (int i = 0; i < BN / 16; ++i) { // columns left + 16 * i …; every second time in the same place, so that no lane still reads there
                    float(*turned)[PITCH] = spare[consumer][/*!rows-of-warp*/warp][i % 2];
#pragma unroll
                    for (int x = 0; x < 8; ++x) {
                        int down = lane / 4 + x / 2 % 2 * 8, on = /*!odd-column*/x / 4 * 8 + 2 * (lane % 4) + x % 2, col = 16 * i + on;
                        float result = sum[8 * i + x];
                        if (EPILOGUE) {
                            if (beta != 0) result = fmaf(beta, given[EPILOGUE == 2 ? 0 : x / 2 % 2][4 * i + x / 4 * 2 + x % 2], result);
                        } else if (beta != 0 && top + 16 * warp + down < M && left + col < N) {
                            result = fmaf(beta, out[(long long)(16 * warp + down) * ldc + col], result);
                        }
                        turned[down][on] = activated(result);
                    }
                    __syncwarp();
                    int col = 16 * i + lane % 16, rows = left + col < N && !(skip >> (col / GRANULE) & 1) ? M - top - 16 * warp/*!odd-rows-there*/ : 0;
#pragma unroll
                    for (int down = lane / 16; down < 16; down += 2)
                        if (down < rows) out[(long long)(16 * warp + down) * ldc + col] = turned[down][lane % 16];
                }
            } else {
                bool pairs = ldc % 2 == 0 && (ulong)out % 8 == 0;
#pragma unroll
                for (int i = 0; i < BN / 8; ++i) {
                    int col = 8 * i + 2 * (lane % 4);
                    if (skip >> (8 * i / GRANULE) & 1 || left + col >= N) continue;
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        if (top + row + 8 * h >= M) continue;
                        float *to = out + (long long)(row + 8 * h) * ldc + col, v[2] = {sum[4 * i + 2 * h], sum[4 * i + 2 * h + 1]};
                        bool both = pairs && left + col + 1 < N;
                        if (beta != 0) {
                            float old[2];
                            if (EPILOGUE) {
                                old[0] = given[EPILOGUE == 2 ? 0 : h][2 * i], old[1] = given[EPILOGUE == 2 ? 0 : h][2 * i + 1];
                            } else if (both) {
                                float2 two = *(const float2 *)to;
                                old[0] = two.x, old[1] = two.y;
                            } else {
                                old[0] = to[0], old[1] = left + col + 1 < N ? to[1] : 0.0f;
                            }
                            v[0] = fmaf(beta, old[0], v[0]), v[1] = fmaf(beta, old[1], v[1]);
                        }
                        v[0] = activated(v[0]), v[1] = activated(v[1]);
                        if (both) {
                            *(float2 *)to = make_float2(v[0], v[1]);
                        } else {
                            to[0] = v[0];
                            if (left + col + 1 < N) to[1] = v[1];
                        }
                    }
                }
            }
            for (int i = 0; skip >> i; ++i) {
                if (!(skip >> i & 1)) continue;
                int col = left + GRANULE * i;
                plain(operands(col), M - top, N - col, alpha, beta, added.from(0, /*!d-of-granule*/GRANULE * i), out + GRANULE * i, ldc,
                      shared_address(spare[consumer]));
                if (threadIdx.x % 128 == 0) atomicAdd(count, 1ull);
            }
            together(1 + consumer); // other warps may still read operands in this one's memory
        }
    }
}
