// C = alpha * A * B + beta * C (A MxK, B KxN, C MxN, all fp32, row-major, any leading dimension),
// as accurate as plain fp32.
//
//   rungs 6 to 9:   A, B --> terms --> memory --> terms --> matrix units
//                   12 bytes for each element before a product
//   rung 10:        A, B --> terms --> matrix units
//                    4, and every block splits what it uses
//
// One launch: a warpgroup copies, one splits B in shared memory, the others split A in registers.
// Wants: SM 9.0; any sizes from K = 64 on, any alignment.
//
// Idea: an operand that is read once or twice should not be written to
// memory as terms first. A power of two for each row, each column and
// each 32 of K stands in for what the splitting pass knew of whole rows.

#undef BM // the library's headers count consumers
#include "../../../kernels/hopper_fp32x/parts.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
inflight(const float *A, const float *B, float *C, float alpha, float beta, ulong *count,
         int M, int N, int K, int batch, long long lda, long long stride_a, long long ldb,
         long long stride_b, int ldc, long long stride_c) {
    extern __shared__ char memory[];
    Ring ring(memory);
    int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) ring.init();
    __syncthreads(); // the barriers are ready
    let_next_start();
    wait_for_previous();

    Walk walk((M + BM - 1) / BM, (N + BN - 1) / BN);
    int tiles = (int)walk.matrix.by * batch, worker = blockIdx.x, workers = gridDim.x;
    int k_blocks = alpha == 0.0f ? 0 : (K + 31) / 32;

    if (warpgroup >= CONSUMERS) {
        if (warpgroup == CONSUMERS) { // the copier of A and B, 32 of K at a time
            fewer_registers<COPIER_REGISTERS>();
            for (int tile = worker; tile < tiles; tile += workers) {
                Place of = walk.place(tile);
                CopiesOfA a(A + of.matrix * stride_a, lda, of.m, M, 0);
                CopiesOfB b(B + of.matrix * stride_b, ldb, of.n, N, 0);
#pragma unroll 1
                for (int j = 0; j < k_blocks; ++j) {
                    ring.wait_until_free();
                    a.fetch(ring.a(), 32 * j, K);
                    b.fetch(ring.b(), 32 * j, K);
                    barrier_arrive_copied(ring.filled());
                    ring.advance();
                }
            }
        } else { // splits B's columns where they are
            fewer_registers<SPLITTER_REGISTERS>();
            for (int tile = worker; tile < tiles; tile += workers)
                split_tile(ring, k_blocks, K, tile + workers < tiles);
        }
        return;
    }

    more_registers<CONSUMER_REGISTERS>();
    Fragments a; // terms of A's rows, a stage ahead
    if (k_blocks && worker < tiles) {
        ring.wait_until_filled();
        fetch_terms(a, ring.a());
    }
    for (int tile = worker; tile < tiles; tile += workers) {
        float sum[BN / 2];
        RowStatistics of_rows;
        multiply_tile(sum, a, of_rows, ring, k_blocks, tile + workers < tiles);

        Place of = walk.place(tile);
        int top = of.m + 64 * warpgroup + threadIdx.x / 32 % 4 * 16;
        uint spare = ring.spare(threadIdx.x / 32);
        auto operands = [&](int col) {
            return operands_of(A + of.matrix * stride_a, lda, top,
                               B + of.matrix * stride_b, ldb, of.n + col, K);
        };
        // sums in which a loss of small elements may be seen are computed again in plain fp32
        uint columns = ring.statistics();
        if (k_blocks) refuse_doubts(sum, of_rows, M - top, columns, spare, count, operands);
        float *c = C + of.matrix * stride_c + (long long)top * ldc + of.n;
        Out out{c, ldc, M - top, N - of.n, alpha, beta, width_of(c, ldc), Added{}};
        Left left = {};
        store_sums(out, sum, left, spare);
        store_left(out, left, count, spare, operands); // those that are Inf or NaN, too
        if (tile + workers >= tiles) bulk_wait();
    }
}
