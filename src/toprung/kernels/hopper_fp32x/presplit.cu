// C = alpha*A*B + beta*C in fp32, as inflight.cu computes it, with a B that was split beforehand, as split.cu leaves it: a scale for
// all of a column. The TMA fetches its terms, there is no splitter, and partial sums are promoted by the scale of the row alone, while
// the next stage of A is split:
//
//      copier warpgroup --> ring, A in fp32, B in terms --> consumer warpgroups: A split in registers, a stage ahead --> Tensor Cores
//
// B's lo is multiplied by 2^11, so A has a third term, hi * 2^-11. Sums in which losses of two terms may be seen become NaN, and are
// computed again like all that are not finite. With ``claims``, not 0, and K along memory, the launch splits B itself before it
// multiplies (claimed.cuh).

#include "../include/hopper.cuh"
#include "../include/hopper_rs.cuh"
#include "../include/halves.cuh"
#include "instructions.cuh"
#include "../include/epilogue.cuh"
#include "../include/truncation.cuh"
#include "../include/group.cuh"
#include "../include/chains.cuh"
#include "terms.cuh"
#include "rows.cuh"
#include "claimed.cuh"
#include "shape.cuh"
#include "pipeline.cuh"
#include "copies.cuh"
#include "split.cuh"
#include "multiply.cuh"
#include "store.cuh"
#include "exact.cuh"

static_assert(B_IS_SPLIT && !IN_PARTS, "B has terms, and a tile all of K or a slice of it");

// A stage: what ``a`` has of A, times the stage's B; meanwhile ``next`` gets the next stage's.
inline void step(float (&sum)[BN / 2], const Fragments &a, Fragments &next, RowStatistics &of_rows, Ahead &ahead, Ring &at) {
    ahead.next();
    ulong b = tile_at(at.b());
    uint free = at.free();
    float partial[BN / 2];
    start_products(partial, a, b);
    RowsOfA rows;
    fetch_next(rows, ahead, at);
    rows.weigh();
    next.split(rows);
    wgmma_wait<0>();
    pin(partial);
    release(free);
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = fmaf(partial[i], a.back[i / 2 % 2/*!scale-back*/], sum[i]);
    of_rows.add(a);
}

// Sums as B's columns scale them. Those become NaN in which something may be seen that two terms cannot carry. Of a column an element is off by
// 2^-36 at most, where a largest one has 2^15; of a row half as much again is lost as ``LineStatistics`` has, by its third term.
inline void scale_columns(float (&sum)[BN / 2], const RowStatistics &of_rows, const Row *columns, int cols, int K) {
    float least[2], if_lost[2]; // what sums must have, also of a column that has lost something
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        LineStatistics row = of_rows.row(h);
        least[h] = least_of(/*!lost-of-row*/1.5f * row.lost * 0x1p15f);
        if_lost[h] = least[h] + least_of(/*!lost-column*/(float)K * 0x1p-36f * row.largest);
    }
    // A lane fetches each 32nd column for all of its warp: fetched where they are used, they would be waited for one after the other.
    int known[BN / 32]; // 2 * exponent, and 1 where the column has lost something
#pragma unroll
    for (int g = 0; g < BN / 32; ++g) {
        int col = /*!columns-known*/32 * g + threadIdx.x % 32;
        Row its{0, 0};
        if (col < cols) its = columns[col];
        known[g] = 2 * its.exponent + (its.losses & LOST ? 1 : 0);
    }
#pragma unroll
    for (int i = 0; i < BN / 4; ++i) { // the thread's column i % 2 of eight columns i / 2
        int its = __shfl_sync(0xffffffffu, known[i / 8], /*!known-lane*/8 * (i / 2 % 4) + 2 * (threadIdx.x % 4) + i % 2), exponent = its >> 1;
        float first = power_of_two(exponent >> 1), second = power_of_two(/*!odd-exponent*/exponent - (exponent >> 1)); // both together may be no float
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float &x = sum[4 * (i / 2) + 2 * h + i % 2];
            x = fabsf(x) < (/*!known-lost*/its & 1 ? if_lost[h] : least[h]) ? __int_as_float(0x7fffffff) : x * first * second;
        }
    }
}

extern "C" __global__ void
#if SLICES > 1
__cluster_dims__(SLICES, 1, 1)
#endif
__launch_bounds__(THREADS, RESIDENT)
inflight(const ElementA *A, const ElementB *B, float *C, float alpha, float beta ADDED_PARAMETERS, ulong *count, int M, int N, int K, int batch,
         long long lda, long long stride_a, long long ldb, long long stride_b, int ldc, long long stride_c, Row *info_b, int apart_b,
         unsigned short *terms_b, uint *claims, const __grid_constant__ TensorMap map_b) {
    extern __shared__ char memory[];
    Ring ring(memory);
    int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) ring.init();
    __syncthreads(); // the barriers are ready
    let_next_start();
    wait_for_previous();

    Walk walk((M + BM - 1) / BM, (N + BN - 1) / BN);
    int tiles = (int)walk.matrix.by * batch, slice = blockIdx.x % SLICES, worker = blockIdx.x / SLICES, workers = gridDim.x / SLICES;
    // k-blocks of a tile, a stage each: of all of K, or of a slice from stage ``begin`` on.
    int all = alpha == 0.0f ? 0 : (K + 31) / 32, each = (all + SLICES - 1) / SLICES, begin = min(slice * each, all);
    int k_blocks = min(each, all - begin);
    int rows_b = N * (apart_b ? batch : 1);
    if (TRANS_B) {
        if (alpha == 0.0f) claims = 0; // B is not read
        if (claims) { // in the ring's memory for scales of B, which is free here
            uint *meeting = (uint *)(memory + (ring.first - shared_address(memory)) + RING_BYTES);
            split_claimed(B, ldb, stride_b, N, rows_b, K, terms_b, info_b, claims, THREADS / 128, meeting);
        }
    }

    if (warpgroup >= CONSUMERS) {
        if (warpgroup == CONSUMERS) { // the copier
            fewer_registers<COPIER_REGISTERS>();
            // the other threads of the warpgroup go on with A; who reads info_b does so behind a stage's barrier
            if (TRANS_B && claims && threadIdx.x % 128 == 0) wait_for_claimed(claims, pieces_of(rows_b, K), THREADS / 128);
            for (int tile = worker; tile < tiles; tile += workers) {
                Place of = walk.place(tile);
                CopiesOfA a(A + of.matrix * stride_a/*!a-of-matrix*/, lda, of.m, M, 32 * begin);
#pragma unroll 1
                for (int j = 0; j < k_blocks; ++j) {
                    /*!free*/ring.wait_until_free();
                    if (threadIdx.x % 128 == 0) {
                        barrier_expect(ring.filled(), B_BYTES);
                        tma_load(ring.b(), &map_b, 64 * (/*!slice-of-terms*/begin + j), /*!terms-of-matrix*/of.matrix * apart_b + of.n, ring.filled());
                    }
                    a.fetch(ring.a(), 32 * (begin + j), K);
                    barrier_arrive_copied(ring.filled());
                    ring.advance();
                }
            }
        }
        if (SLICES > 1) { // as often as consumers do
            cluster_sync();
            cluster_sync();
        }
        return;
    }

    more_registers<CONSUMER_REGISTERS>();
    Fragments a; // of the stage that is next
    if (k_blocks && worker < tiles) {
        ring.wait_until_filled();
        fetch_terms(a, ring.a());
    }
    for (int tile = worker; tile < tiles; tile += workers) {
        float sum[BN / 2];
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) sum[i] = 0.0f;
        Ahead ahead(k_blocks, tile + workers < tiles);
        RowStatistics of_rows;
        Fragments next;
#pragma unroll 1
        while (ahead.of_tile()) {
            step(sum, a, next, of_rows, ahead, ring);
            if (ahead.of_tile()) step(sum, next, a, of_rows, ahead, ring);
        }
        /*!odd-stages*/if (k_blocks % 2) a = next;

        Place of = walk.place(tile);
        if (k_blocks) scale_columns(sum, of_rows, info_b + of.matrix * apart_b/*!info-of-matrix*/ + of.n, N - of.n, 32 * k_blocks);
        int top = of.m + 64 * warpgroup + threadIdx.x / 32 % 4 * 16;
        uint spare = ring.spare(threadIdx.x / 32);
        float *c = C + of.matrix * stride_c + (long long)top * ldc + of.n;
        Out out{c, ldc, M - top, N - of.n, alpha, beta, width_of(c, ldc), ADDED(of.matrix, top, /*!d-of-tile*/of.n)};
        Left left = {};
        if (SLICES > 1) store_cluster_sums(out, sum, left, ring.first, slice);
        else store_sums(out, sum, left, spare);
        store_left(out, left, count, spare, [&](auto &to, int col) {
            set_row(to, A + of.matrix * stride_a/*!row-of-matrix*/, lda, top), set_column(to, B + of.matrix * stride_b/*!column-of-matrix*/, ldb, of.n + col), to.K = K;
        });
        if (tile + workers >= tiles) bulk_wait(); // in the loop: after it the compiler would give consumers the launch's registers only
        if (SLICES > 1) cluster_sync(); // a block may leave once no other reads its shared memory
    }
}
