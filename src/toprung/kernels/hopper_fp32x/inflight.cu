// C = alpha*A*B + beta*C in fp32, row-major (A MxK, B KxN, C MxN), a batch of them, in one launch: A and B are split into two fp16
// terms on their way to the Tensor Cores. A block owns 64*CONSUMERS x BN of C at a time, a consumer warpgroup 64 x BN; the ring
// has a k-block of 32 in a stage:
//
//      copier warpgroup --> ring, fp32 --> splitter warpgroup: B's columns split in place, hi | lo, with a scale each --> Tensor Cores
//                                     \--> consumer warpgroups: A's rows from shared memory into registers, split there --> (A in registers)
//
// The one idea: a power of two for each row of A, each column of B and each k-block of 32 brings the largest to 2^14, and is taken back as
// partial sums are promoted to fp32, so that nothing has to be known of an operand beforehand. Elements far below the largest of their 32
// lose bits in two terms; where they are noticed, sums in which that may be seen are found at a tile's end. Those elements of C, those that are
// Inf or NaN, and no others, are computed again in plain fp32, short chains of fused multiply-adds. An element's bits depend on its row
// of A and its column of B alone. ``count`` grows by one for each 16 x 32 of C that has such elements, by
// one more if some are in doubt and others Inf or NaN, and in a cluster for each block that stores some of them.
//
// SLICES > 1: a cluster has a tile, each block a slice of K; the blocks' sums meet in their shared memory, in the order of slices.
// IN_PARTS: K is cut into ``batch`` parts of whole 32, of which the last may be shorter; each is a product with a C of its own, ``stride_a``
// and ``stride_b`` lead from part to part, and reduce.cu adds the results up.
// Wants: operands aligned to ALIGN_A and ALIGN_B words of 4 bytes, with leading dimensions and strides. alpha = 0: A and B are not read.

#include "parts.cuh"

extern "C" __global__ void
#if SLICES > 1
__cluster_dims__(SLICES, 1, 1)
#endif
__launch_bounds__(THREADS, RESIDENT)
inflight(const ElementA *A, const ElementB *B, float *C, float alpha, float beta ADDED_PARAMETERS, ulong *count, int M, int N, int K, int batch,
         long long lda, long long stride_a, long long ldb, long long stride_b, int ldc, long long stride_c TERMS_PARAMETERS) {
    extern __shared__ char memory[];
    Ring ring(memory);
    int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) ring.init();
    __syncthreads(); // the barriers are ready
    let_next_start();
    wait_for_previous();

    Walk walk((M + BM - 1) / BM, (N + BN - 1) / BN);
    int tiles = (int)walk.matrix.by * batch, slice = blockIdx.x % SLICES, worker = blockIdx.x / SLICES, workers = gridDim.x / SLICES;
    // k-blocks of a tile, a stage each: of all of K, of a slice from stage ``begin`` on, or of a part.
    int all = alpha == 0.0f ? 0 : (K + 31) / 32, each = (all + SLICES - 1) / SLICES, begin = min(slice * each, all);
    int k_blocks = IN_PARTS ? (all + batch - 1/*!parts-of-k*/) / batch : min(each, all - begin);
    auto depth = [=](int matrix) { return IN_PARTS ? min(32 * k_blocks, K - 32 * k_blocks * /*!last-part*/matrix) : K; };

    Terms terms = TERMS;
    int rows_b = N * (terms.apart ? batch : 1);
    if (B_IS_SPLIT && TRANS_B) {
        if (alpha == 0.0f) terms.claims = 0; // B is not read
        if (terms.claims) { // in the ring's memory for scales of B, which is free here
            uint *meeting = (uint *)(memory + (ring.first - shared_address(memory)) + RING_BYTES);
            split_claimed((const float *)B, ldb, stride_b, N, rows_b, K, terms.terms, terms.info, terms.claims, THREADS / 128, meeting);
        }
    }

    if (warpgroup >= CONSUMERS) {
        if (warpgroup == CONSUMERS) { // the copier
            fewer_registers<COPIER_REGISTERS>();
            // the other threads of the warpgroup go on with A; who reads terms.info does so behind a stage's barrier
            if (B_IS_SPLIT && TRANS_B && terms.claims && threadIdx.x % 128 == 0) wait_for_claimed(terms.claims, pieces_of(rows_b, K), THREADS / 128);
            for (int tile = worker; tile < tiles; tile += workers) {
                Place of = walk.place(tile);
                CopiesOfA a(A + of.matrix * stride_a/*!a-of-matrix*/, lda, of.m, M, 32 * begin);
                CopiesOfB b(B + of.matrix * stride_b/*!b-of-matrix*/, ldb, of.n, N, 32 * begin);
#pragma unroll 1
                for (int j = 0; j < k_blocks; ++j) {
                    /*!free*/ring.wait_until_free();
                    if (B_IS_SPLIT && threadIdx.x % 128 == 0) {
                        barrier_expect(ring.filled(), B_BYTES);
                        tma_load(ring.b(), terms.map, 64 * (/*!slice-of-terms*/begin + j), /*!terms-of-matrix*/of.matrix * terms.apart + of.n, ring.filled());
                    }
                    a.fetch(ring.a(), 32 * (begin + j), depth(of.matrix));
                    if (!B_IS_SPLIT) b.fetch(ring.b(), 32 * (begin + j), depth(of.matrix));
                    barrier_arrive_copied(ring.filled());
                    ring.advance();
                }
            }
        } else if constexpr (!B_IS_SPLIT) { // the splitter
            fewer_registers<SPLITTER_REGISTERS>();
            for (int tile = worker; tile < tiles; tile += workers) {
                int left = depth(IN_PARTS ? walk.place(tile).matrix : 0) - 32 * begin;
                split_tile(ring, k_blocks, left, tile + workers < tiles);
            }
        }
        if (SLICES > 1) { // as often as consumers do: a cluster has one tile, for which the host launches as many clusters as tiles
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
        RowStatistics of_rows;
        if constexpr (B_IS_SPLIT) {
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) sum[i] = 0.0f;
            Ahead ahead(k_blocks, tile + workers < tiles);
            Fragments next;
#pragma unroll 1
            while (ahead.of_tile()) {
                step(sum, a, next, of_rows, ahead, ring);
                if (ahead.of_tile()) step(sum, next, a, of_rows, ahead, ring);
            }
            /*!odd-stages*/if (k_blocks % 2) a = next;
        } else multiply_tile(sum, a, of_rows, ring, k_blocks, tile + workers < tiles);

        Place of = walk.place(tile);
        if (B_IS_SPLIT && k_blocks) scale_columns(sum, of_rows, terms.info + of.matrix * terms.apart/*!info-of-matrix*/ + of.n, N - of.n, 32 * k_blocks);
        int top = of.m + 64 * warpgroup + threadIdx.x / 32 % 4 * 16;
        uint spare = ring.spare(threadIdx.x / 32);
        auto operands = [&](int col) {
            return operands_of(A + of.matrix * stride_a/*!row-of-matrix*/, lda, top,
                               B + of.matrix * stride_b/*!column-of-matrix*/, ldb, of.n + col, depth(of.matrix));
        };
        if (!B_IS_SPLIT && k_blocks) refuse_doubts(sum, of_rows, M - top, ring.statistics(), spare, count, operands);
        float *c = C + of.matrix * stride_c + (long long)top * ldc + of.n;
        Out out{c, ldc, M - top, N - of.n, alpha, beta, width_of(c, ldc), ADDED(of.matrix, top, /*!d-of-tile*/of.n)};
        Left left = {};
        if (SLICES > 1) store_cluster_sums(out, sum, left, ring.first, slice);
        else store_sums(out, sum, left, spare);
        store_left(out, left, count, spare, operands);
        if (tile + workers >= tiles) bulk_wait(); // in the loop: after it the compiler would give consumers the launch's registers only
        if (SLICES > 1) cluster_sync(); // a block may leave once no other reads its shared memory
    }
}
