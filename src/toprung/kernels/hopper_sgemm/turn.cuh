// A stage of A that is stored MxK, as the TMA left it (rows of BK), turned into As[BK][BM] by three warps of the producer's
// warpgroup, a thread four rows and four k at a time:
//
//     rows q, q + 8, q + 16, q + 24 of 32         As[k]:  q | q + 8 | q + 16 | q + 24   in four neighbouring places, 4 q to 4 q + 3
//     each k, k + 1, k + 2, k + 3
//
// Rows 8 apart, because the rows of eight neighbouring threads are then neighbours: 16 bytes at a stride of 4 BK, which for BK = 12 meet
// no bank twice. Rows of C are not where they would be: ``Sums::store`` knows. Wants BK = 12, and BM a multiple of 128.

inline void turn(uint from, uint to, int warp) {
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int unit = warp; unit < BM / 128 * (BK / 4); unit += TURNERS) {
        int k = unit % (BK / 4) * 4, m = unit / (BK / 4) * 128 + lane / 8 * 32, q = lane % 8; // 128 rows, four k
        uint in = from + 4 * ((m + q) * BK + k), out = to + 4 * (m / PANEL_M * (BK * PANEL_M) + k * PANEL_M + m % PANEL_M + 4 * q);
        float4 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = lds(in + 4 * 8 * i * BK);
        sts(out, v[0].x, v[1].x, v[2].x, v[3].x);
        sts(out + 4 * PANEL_M, v[0].y, v[1].y, v[2].y, v[3].y);
        sts(out + 8 * PANEL_M, v[0].z, v[1].z, v[2].z, v[3].z);
        sts(out + 12 * PANEL_M, v[0].w, v[1].w, v[2].w, v[3].w);
    }
}

// what the three warps do all along: ``stages`` stages, and the one of nothing behind them
inline void turn_all(Ring &ring, int stages) {
    int warp = threadIdx.x / 32 - WARPS - 1;
    for (; stages >= 0; --stages) {
        barrier_wait(ring.came(), ring.phase);
        turn(ring.arrived(), ring.base(), warp);
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(ring.full());
        ring.advance();
    }
}
