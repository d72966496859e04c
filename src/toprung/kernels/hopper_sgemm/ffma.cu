// The library's kernel, and that of rungs 3 to 5: C = alpha * A * B + beta * C, see ffma.cuh for how everything lies.
//
//     stage s      | k = 0 1 2 ... WAIT_AT ............ BK - 1 |        the wait for stage s + 1 stands in the middle of stage s,
//     fragments of |     1 2 3 ...    ^ wait        ... 0 of s + 1      where nothing needs it yet; the loop's edge is like any k
//
// Wants: SM 9.0; K from 1 on; map_a, map_b: tensor maps of KxM and KxN in boxes of BK rows, not read of an operand that is copied
// (copies.cuh); flags: 0. Leaves flags 0.
//
// Idea: the loop has no edge. The fragments of the next stage's first k are fetched during this one's last, and the next piece's
// while this one's sums are written: the producer adds a stage of nothing behind the last.

#if COPIED
#define COPIED_PARAMETERS , const float *A, const float *B, long long lda, long long ldb
#else
#define COPIED_PARAMETERS
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
ffma(float *C, float alpha, float beta ADDED_PARAMETERS, const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b
     COPIED_PARAMETERS, int ldc, int M, int N, int K, float *parts, uint *flags, int shared, int each, int extra) {
    extern __shared__ char memory[];
    Ring ring(memory);
    if (threadIdx.x == 0) ring.init();
    if (IN_ORDER && threadIdx.x == 0) sts(ring.zeros(), 0.0f, 0.0f, 0.0f, 0.0f);
    __syncthreads();
    wait_for_previous();
    let_next_start();
    if (alpha == 0.0f) {
        scale(C, ldc, M, N, beta, ADDED(0, 0, 0));
        return;
    }
    Walk walk(M, N, K, shared, each, extra);
    if (threadIdx.x >= 32 * WARPS) {
        fewer_registers<PRODUCER_REGISTERS>();
#if COPIED
        copy_all(ring, walk, &map_a, &map_b, A, B, lda, ldb, M, N, K);
#else
        if (threadIdx.x == 32 * WARPS) {
            while (walk.step())
                for (int j = walk.from; j < walk.to; ++j) ring.fetch(&map_a, &map_b, walk.m, walk.n, j * BK);
            ring.wait_empty(); // one more, read beyond the end and not used
            barrier_arrive(ring.full());
            if (TURN_A) barrier_arrive(ring.came());
        }
        if (TURN_A && threadIdx.x >= 32 * WARPS + 32) turn_all(ring, walk.stages());
#endif
        return;
    }
    more_registers<CONSUMER_REGISTERS>();
#pragma unroll
    for (int i = 0; i < PAD; ++i) pad();
    Place at;
    Fragments f;
    float4 own[HELD || !LINK ? 1 : TM * TN / 4];
    ring.wait_full();
    f.fetch(ring.base(), at, 0);
    while (walk.step()) {
        Sums sums;
        sums.clear(ring.zeros());
        int left = walk.to - walk.from;
        do {
            uint base = ring.base(), was = ring.empty(), next;
#pragma unroll
            for (int k = 0; k < BK; ++k) {
                if (k == WAIT_AT) {
                    ring.advance();
                    next = ring.base();
                    ring.wait_full();
                }
                f.fetch(k + 1 < BK ? base : next, at, (k + 1) % BK);
                sums.add(f, k);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0) barrier_arrive(was);
        } while (--left > 0);
#if LINK
        if (walk.to < walk.stop) {
            if (walk.from == walk.first) add_link<true, false>(sums, memory, own, K);
            else add_link<false, false>(sums, memory, own, K);
            continue;
        }
        if (walk.from > walk.first) add_link<false, true>(sums, memory, own, K);
#endif
        if (walk.first > 0) {
            leave(sums, parts, flags, walk.share);
            continue;
        }
        if (walk.stop < walk.chunks) gather(sums, parts, flags, walk);
#if NARROW_C
        store_rows(sums, memory, at, C, ldc, walk.m, walk.n, M, N, alpha, beta, ADDED(0, 0, 0));
#else
        sums.store(C, ldc, walk.m + at.m, walk.n + at.n, M, N, alpha, beta, ADDED(0, 0, 0));
#endif
    }
}
