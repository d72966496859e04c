// Sums in plain fp32, for elements that fp16 terms cannot carry: chains of CHAIN fused multiply-adds, each from zero, that are added in
// their order of K, as include/block.cl adds long sums (blocks.LONG_CHAIN). Errors grow with CHAIN + K / CHAIN, not with K. An element has
// the same bits whichever kernel computes it again, alone or with its neighbours.

constexpr int CHAIN = /*!chain-length*/32;

// Several elements of each thread, a step of K at a time: before the products of k0 are added to ``acc``, where chains begin there. The last
// chain is left in ``acc``.
template <int N> inline void next_chain(int k0, float (&sum)[N], float (&acc)[N]) {
    if (k0 % CHAIN == 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += acc[i], acc[i] = 0.0f;
    }
}

// One element by a warp, a chain for each lane: the lane's, of the operands ``of(j)``, j = 0 to depth - 1. The lanes' chains are added in
// their order.
template <class Of> inline float chain(int depth, Of of) {
    float acc = 0.0f;
#pragma unroll 8
    for (int j = 0; j < CHAIN; ++j)
        if (j < depth) {
            float2 both = of(j);
            acc = fmaf(both.x, both.y, acc);
        }
    return acc;
}
