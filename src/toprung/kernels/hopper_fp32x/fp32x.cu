// C = alpha*A*B + beta*C, row-major (A MxK, B KxN, C MxN), a batch of them; A and B split beforehand: row r of A (column of B) is,
// for every 32 of K, 32 hi then 32 lo in fp16, x * 2^(14-e) = hi + lo/2048. A block owns 64*CONSUMERS x BN of C at a time; every
// consumer warpgroup 64xBN:
//
//      producer: TMA --> ring of STAGES k-blocks of 32 --> Tensor Cores: partial = hi.hi         (promoted to fp32 each time)
//                                                                        cross  += hi.lo + lo.hi (stays in the unit)
//
// The one idea: the partial sums are added to registers while the unit works on the cross terms, which are 2^-11 of the result and
// may stay in its truncating accumulator for all of K. What two terms cannot carry (see ``is_lost``) a consumer computes again in
// plain fp32, short chains of fused multiply-adds for each element from A and B as they were given; ``count`` grows by one for each
// 64 x min(64, BN) of C that has such elements. Wants: rows of the split operands padded with zeros to 32 of K. With alpha = 0 A and B are not looked at.
//
// With slices > 1 it multiplies ``depth`` of K at a time: C is then a result for each slice and product of the batch, which
// reduce.cu adds up, and a slice's rows of terms have their own exponents. ``count`` counts slices.
//
// ODD_C: for a C whose rows begin anywhere. Results go through shared memory, and 16 lanes write 16 neighbours: a thread's own ones,
// written one by one, would each be half of the 32 bytes that memory takes at a time.

#include "../include/chains.cuh"
#include "meetings.cuh"

#ifndef ODD_C
#define ODD_C 0
#endif

constexpr int THREADS = 128 * (CONSUMERS + 1), BM = 64 * CONSUMERS;
constexpr int A_BYTES = BM * 128, B_BYTES = BN * 128, STAGE_BYTES = A_BYTES + B_BYTES; // a k-block of terms
constexpr int GRANULE = BN < 64 ? BN : 64, GRANULES = BN / GRANULE; // columns that are refused together
constexpr int DEPTH = 16; // of K at a time in plain fp32
constexpr int PITCH = 17; // floats from row to row where a warp turns 16 rows x 16 columns of C
constexpr int FEW = 64;   // elements of a granule, at most, that are computed one after the other, by four warps in turn
constexpr int CHAINS = 8; // of CHAIN elements each of a row and a column, that a warp has room for where it computes one

static_assert(CHAIN % DEPTH == 0, "a chain ends where a step does");
static_assert(CHAINS * (CHAIN + 1) <= DEPTH / 4 * (64 + 4), "four warps share what operands in plain fp32 have");
static_assert(4 * 16 * PITCH <= DEPTH * (64 + 4), "four warps turn their rows where operands in plain fp32 lie");

struct Place {
    int matrix, m, n; // matrix: of the results, slice after slice
};

// of K: where a slice begins, its length, and in chunks of 32 (0: A and B are not looked at)
struct Slice {
    int first, depth, chunks;
};

inline Slice slice_of(int slice, int depth, int K, float alpha) {
    int first = slice * depth, mine = min(depth, K - first);
    return Slice{first, mine, alpha == 0.0f ? 0 : (mine + 31) / 32};
}

// tiles in an order that keeps what runs at once close together: GROUP tiles down, then one to the right
inline Place place(int tile, int tiles_m, int tiles_n) {
    int matrix = tile / (tiles_m * tiles_n);
    tile -= matrix * tiles_m * tiles_n;
    int band = tile / (GROUP * tiles_n), first = band * GROUP, high = min(GROUP, tiles_m - first), in = tile % (GROUP * tiles_n);
    return Place{matrix, first + in % high, in / high};
}

// this warp has read a stage
inline void release(uint empty) {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}


// what the threads of a warpgroup have, added up; ``shared``: four words of its own
inline uint sum_of(uint mine, uint *shared, int group) {
    mine = __reduce_add_sync(0xffffffffu, mine);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32 % 4] = mine;
    together(group);
    mine = shared[0] + shared[1] + shared[2] + shared[3];
    together(group); // the words may be written again
    return mine;
}

// where a thread's sum ``i`` lies in the 64 x BN of its warpgroup
inline int row_of(int i, int thread) { return thread / 32 % 4 * 16 + thread % 32 / 4 + i / 2 % 2 * 8; }
inline int column_of(int i, int thread) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

// A warpgroup's 64 x BN of C of which some sums are computed again; in local memory, for registers belong to the loop over K.
struct Again {
    float sum[BN / 2]; // those of the thread
    ulong lost;        // which of them are computed again, by bits
    const float *a, *b; // the first row and column
    long long down_a, on_a, down_b, on_b;
    int K;
    float alpha, *as, *bs; // the warp's memory, CHAINS * (CHAIN + 1) each
};

// The sums that are lost in plain fp32, each by its warp, a lane for each chain: what ``plain`` gives, to the last bit.
__noinline__ void one_by_one(Again &in) {
    int thread = threadIdx.x, lane = thread % 32;
    float *As = in.as, *Bs = in.bs;
#pragma unroll 1
    for (uint owners = __ballot_sync(0xffffffffu, in.lost != 0); owners; owners &= owners - 1) {
        int owner = __ffs(owners) - 1;
        ulong rest = (ulong)__shfl_sync(0xffffffffu, (uint)(in.lost >> 32), owner) << 32 | __shfl_sync(0xffffffffu, (uint)in.lost, owner);
#pragma unroll 1
        for (; rest; rest &= rest - 1) {
            int i = __ffsll(rest) - 1, of = thread - lane + owner;
            const float *a = in.a + row_of(i, of) * in.down_a, *b = in.b + column_of(i, of) * in.down_b;
            float total = 0.0f;
#pragma unroll 1
            for (int k0 = 0; k0 < in.K; k0 += CHAINS * CHAIN) {
                __syncwarp(); // nobody reads what was there before
                float x[CHAINS], y[CHAINS];
#pragma unroll
                for (int j = 0; j < CHAINS; ++j) {
                    long long k = k0 + CHAIN * j + lane;
                    x[j] = k < in.K ? a[k * in.on_a] : 0.0f, y[j] = k < in.K ? b[k * in.on_b] : 0.0f;
                }
#pragma unroll
                for (int j = 0; j < CHAINS; ++j) As[(CHAIN + 1) * j + lane] = x[j], Bs[(CHAIN + 1) * j + lane] = y[j];
                __syncwarp();
                int depth = lane < CHAINS ? min(CHAIN, in.K - k0 - CHAIN * lane) : 0;
                float acc = chain(depth, [=](int j) { return make_float2(As[(CHAIN + 1) * lane + j], Bs[(CHAIN + 1) * lane + j]); });
                int count = min((in.K - k0 + CHAIN - 1) / CHAIN, CHAINS);
                for (int j = 0; j < count; ++j) total += __shfl_sync(0xffffffffu, acc, j);
            }
            if (lane == owner) in.sum[i] = in.alpha * total;
        }
    }
}

// 64 x GRANULE of C by a warpgroup in plain fp32; a, b and c point to the first row, column and element
inline void plain(const float *a, long long down_a, long long on_a, const float *b, long long down_b, long long on_b, int rows, int cols, int K,
                  float alpha, float beta, const Added &added, float *c, int ldc, float (*As)[64 + 4], float (*Bs)[64 + 4], int group) {
    constexpr int TN = GRANULE / 16; // a thread has 8 rows, 8 apart, and TN columns, 16 apart
    int t = threadIdx.x % 128, tx = t % 16, ty = t / 16;
    float acc[8 * TN] = {}, sum[8 * TN] = {};
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
        next_chain(k0, sum, acc);
#pragma unroll
        for (int e = t; e < 64 * DEPTH; e += 128) { // consecutive threads along memory
            int k = on_a == 1 ? e % DEPTH : e / 64, r = on_a == 1 ? e / DEPTH : e % 64;
            As[k][r] = k0 + k < K && r < rows ? a[r * down_a + (k0 + k) * on_a] : 0.0f;
        }
#pragma unroll
        for (int e = t; e < GRANULE * DEPTH; e += 128) {
            int k = on_b == 1 ? e % DEPTH : e / GRANULE, r = on_b == 1 ? e / DEPTH : e % GRANULE;
            Bs[k][r] = k0 + k < K && r < cols ? b[r * down_b + (k0 + k) * on_b] : 0.0f;
        }
        together(group);
        int depth = min(DEPTH, K - k0); // what is behind K is not multiplied: 0 times Inf is a NaN
#pragma unroll 1
        for (int k = 0; k < depth; ++k) {
            float x[8], y[TN];
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = As[k][ty + 8 * i];
#pragma unroll
            for (int j = 0; j < TN; ++j) y[j] = Bs[k][tx + 16 * j];
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) acc[TN * i + j] = fmaf(x[i], y[j], acc[TN * i + j]);
        }
        together(group);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            int row = ty + 8 * i, col = tx + 16 * j;
            if (row >= rows || col >= cols) continue;
            float *to = c + (long long)row * ldc + col, result = alpha * (sum[TN * i + j] + acc[TN * i + j]);
            *to = activated(beta != 0 ? fmaf(beta, added.one(to, row, col), result) : result);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fp32x(const float *A, const float *B, float *C, float alpha, float beta ADDED_PARAMETERS, const Row *info_a, const Row *info_b, ulong *count,
      const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int M, int N, int K, int batch,
      int slices, int depth, int apart_a, int apart_b, int below_a, int below_b,
      long long lda, long long stride_a, int across_a, long long ldb, long long stride_b, int across_b,
      int ldc, long long stride_c) {
    extern __shared__ char memory[];
    __shared__ float As[CONSUMERS][DEPTH][64 + 4], Bs[CONSUMERS][DEPTH][64 + 4];
    __shared__ uint words[CONSUMERS][4];
    uint ring = (shared_address(memory) + 1023) & ~1023u, full = ring + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        tma_prefetch(&map_a);
        tma_prefetch(&map_b);
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 4 * CONSUMERS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    let_next_start();
    wait_for_previous();

    int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN, tiles = tiles_m * tiles_n * batch * slices, stage = 0;
    uint phase = 0;

    if (warpgroup == 0) { // the producer: one thread of it
#if CONSUMER_REGISTERS
        fewer_registers<PRODUCER_REGISTERS>();
#endif
        if (threadIdx.x == 0) {
            for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                Place at = place(tile, tiles_m, tiles_n);
                int slice = at.matrix / batch, product = at.matrix % batch;
                Slice of_k = slice_of(slice, depth, K, alpha);
                int row = product * apart_a + slice * below_a + at.m * BM, col = product * apart_b + slice * below_b + at.n * BN;
                int along_a = below_a ? 0 : 2 * of_k.first, along_b = below_b ? 0 : 2 * of_k.first; // fp16: hi and lo
                for (int j = 0; j < of_k.chunks; ++j) {
                    uint a = ring + stage * STAGE_BYTES;
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    barrier_expect(full + 8 * stage, STAGE_BYTES);
                    tma_load(a, &map_a, along_a + 64 * j, row, full + 8 * stage);
                    tma_load(a + A_BYTES, &map_b, along_b + 64 * j, col, full + 8 * stage);
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
            }
        }
    } else {
#if CONSUMER_REGISTERS
        more_registers<CONSUMER_REGISTERS>();
#endif
        int consumer = warpgroup - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            Place at = place(tile, tiles_m, tiles_n);
            int top = at.m * BM + 64 * consumer, left = at.n * BN, slice = at.matrix / batch, product = at.matrix % batch;
            Slice of_k = slice_of(slice, depth, K, alpha);
            int chunks = of_k.chunks;
            float sum[BN / 2], partial[BN / 2], cross[BN / 2];
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) {
                sum[i] = 0.0f;
#if __CUDACC_VER_MAJOR__ < 13 // without a value from the start they are moved while products run, which then wait for each other
                partial[i] = cross[i] = 0.0f;
#endif
            }
            uint before = 0; // the stage that the cross terms in flight read
            for (int j = 0; j < chunks; ++j) {
                uint a = ring + stage * STAGE_BYTES + consumer * 64 * 128, b = ring + stage * STAGE_BYTES + A_BYTES;
                ulong a_hi = tile_at(a), b_hi = tile_at(b); // 16 of K further: 32 bytes, 2 in a descriptor; lo: 64 bytes
                barrier_wait(full + 8 * stage, phase);
                pin(partial);
                wgmma_fence();
                wgmma<BN>(partial, a_hi, b_hi, 0);
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
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) sum[i] += partial[i];
                before = stage;
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
            wgmma_wait<0>();
            pin(cross);
            if (chunks) {
                release(empty + 8 * before);
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) sum[i] = fmaf(cross[i], 1.0f / RESIDUAL, sum[i]);
            }

            if (top >= M) continue;
            const Row *rows = info_a + product * apart_a + slice * below_a + top;
            const Row *cols = info_b + product * apart_b + slice * below_b + left;
            float *out = C + at.matrix * stride_c + (long long)top * ldc + left;
            Added added = ADDED(at.matrix, top, left);
            uint skip = 0, doubt = 0; // bit i: columns left + GRANULE * i … are computed again, or perhaps
            if (chunks) {
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
            ulong lost = 0; // sums that are computed again, by bits: a granule has 32 of them at most
            if (doubt &= ~skip) {
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) {
                    int r = row + i / 2 % 2 * 8, col = i / 4 * 8 + 2 * (lane % 4) + i % 2;
                    if (!(doubt >> (col / GRANULE) & 1) || top + r >= M || left + col >= N) continue;
                    lost |= (ulong)is_lost(rows[r], cols[col], sum[i], of_k.depth) << i;
                }
                uint counts = sum_of(__popcll(lost & 0xffffffff) | __popcll(lost >> 32) << 16, words[consumer], 1 + consumer);
#pragma unroll
                for (int i = 0; i < GRANULES; ++i) {
                    uint found = counts >> 16 * i & 0xffff;
                    if (found > FEW) skip |= 1u << i, lost &= ~(0xffffffffull << 32 * i);
                    else if (found && threadIdx.x % 128 == 0) atomicAdd(count, 1ull);
                }
            }
            // all that the results need is fetched before the first of them is stored: behind a store, which might have changed it,
            // each load would wait for memory
            int ea[2] = {chunks && top + row < M ? rows[row].exponent : 0, chunks && top + row + 8 < M ? rows[row + 8].exponent : 0};
            int eb[BN / 4];
            bool far = max(abs(ea[0]), abs(ea[1])) > 60; // a scale may be no float, or a product on the way
#pragma unroll
            for (int i = 0; i < BN / 4; ++i) {
                int col = i / 2 * 8 + 2 * (lane % 4) + i % 2;
                eb[i] = chunks && left + col < N ? cols[col].exponent : 0;
                far |= abs(eb[i]) > 60;
            }
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) {
                int a = ea[i / 2 % 2], b = eb[i / 4 * 2 + i % 2];
                if (!far) sum[i] = alpha * (sum[i] * power_of_two(a) * power_of_two(b));
                else sum[i] = alpha * (float)((double)sum[i] * __hiloint2double((a + b + 1023) << 20, 0)); // rounded once
            }
            if (doubt && __any_sync(0xffffffffu, lost != 0)) {
                Again again;
                again.lost = lost, again.K = of_k.depth, again.alpha = alpha, again.as = As[consumer][4 * warp], again.bs = Bs[consumer][4 * warp];
                again.a = A + product * stride_a + (across_a ? top + of_k.first * lda : top * lda + of_k.first);
                again.b = B + product * stride_b + (across_b ? left + of_k.first * ldb : left * ldb + of_k.first);
                again.down_a = across_a ? 1 : lda, again.on_a = across_a ? lda : 1, again.down_b = across_b ? 1 : ldb, again.on_b = across_b ? ldb : 1;
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) again.sum[i] = sum[i];
                one_by_one(again);
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) sum[i] = again.sum[i];
            }
#if EPILOGUE
            float given[EPILOGUE == 2 ? 1 : 2][BN / 4] = {}; // D, of both rows of the thread
            auto column = [lane](int i) { return 8 * i + 2 * (lane % 4); };
#pragma unroll
            for (int h = 0; h < (EPILOGUE == 2 ? 1 : 2); ++h)
                if (beta != 0 && (EPILOGUE == 2 || top + row + 8 * h < M)) added.fetch(given[h], row + 8 * h, N - left, column);
#endif
#if ODD_C
#pragma unroll
            for (int i = 0; i < BN / 16; ++i) { // columns left + 16 * i …; every second time in the same place, so that nobody still reads there
                float(*turned)[PITCH] = (float(*)[PITCH])(i % 2 ? Bs : As)[consumer] + 16 * warp;
#pragma unroll
                for (int x = 0; x < 8; ++x) {
                    int down = lane / 4 + x / 2 % 2 * 8, on = x / 4 * 8 + 2 * (lane % 4) + x % 2, col = 16 * i + on;
                    float result = sum[8 * i + x];
#if EPILOGUE
                    if (beta != 0) result = fmaf(beta, given[EPILOGUE == 2 ? 0 : x / 2 % 2][4 * i + x / 4 * 2 + x % 2], result);
#else
                    if (beta != 0 && top + 16 * warp + down < M && left + col < N) result = fmaf(beta, out[(long long)(16 * warp + down) * ldc + col], result);
#endif
                    turned[down][on] = activated(result);
                }
                __syncwarp();
                int col = 16 * i + lane % 16, rows = left + col < N && !(skip >> (col / GRANULE) & 1) ? M - top - 16 * warp : 0;
#pragma unroll
                for (int down = lane / 16; down < 16; down += 2)
                    if (down < rows) out[(long long)(16 * warp + down) * ldc + col] = turned[down][lane % 16];
            }
            together(1 + consumer); // others of the warpgroup write there, too
#else
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
#if EPILOGUE
                        const float *old = given[EPILOGUE == 2 ? 0 : h] + 2 * i;
#else
                        float old[2];
                        if (both) {
                            float2 two = *(const float2 *)to;
                            old[0] = two.x, old[1] = two.y;
                        } else {
                            old[0] = to[0], old[1] = left + col + 1 < N ? to[1] : 0.0f;
                        }
#endif
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
#endif
            if (skip) together(1 + consumer); // other warps may still compute elements again, in the same memory
            for (int i = 0; skip >> i; ++i) {
                if (!(skip >> i & 1)) continue;
                long long col = left + GRANULE * i;
                plain(A + product * stride_a + (across_a ? top + of_k.first * lda : top * lda + of_k.first), across_a ? 1 : lda,
                      across_a ? lda : 1,
                      B + product * stride_b + (across_b ? col + of_k.first * ldb : col * ldb + of_k.first), across_b ? 1 : ldb,
                      across_b ? ldb : 1,
                      M - top, (int)(N - col), of_k.depth, alpha, beta, added.from(0, GRANULE * i), out + GRANULE * i, ldc, As[consumer], Bs[consumer], 1 + consumer);
                if (threadIdx.x % 128 == 0) atomicAdd(count, 1ull);
            }
        }
    }
}
