// What consumer warpgroups do with a stage whose B the splitter has split: three products of terms from zero, promoted to fp32.
//
//      partial = lo.hi + hi.lo + hi.hi of a k-block of 32;  sum += partial * scale of the column * scale of the row
//
// A runs one stage ahead of B, from tile to tile too: its next rows are split while the Tensor Cores multiply.

// The products of a stage's terms: ``b``, the descriptor of its B. The next k-block of 16 is 32 bytes further, 2 in a descriptor; lo 64 bytes.
inline void start_products(float (&partial)[BN / 2], const Fragments &a, ulong b) {
    pin(partial);
    wgmma_fence();
    if (!A_TYPE) {
        wgmma_rs<BN>(partial, a.lo[0], b, 0);
        wgmma_rs<BN>(partial, a.lo[1], b + 2/*!second-sixteen*/, 1);
    }
    if (!B_IS_HALF) { // hi.lo; a lo that was split beforehand was multiplied by 2^11
        /*!hi-lo*/wgmma_rs<BN>(partial, B_IS_SPLIT ? a.low[0] : a.hi[0], b + 4, !A_TYPE);
        wgmma_rs<BN>(partial, B_IS_SPLIT ? a.low[1] : a.hi[1], b + 6, 1);
    }
    wgmma_rs<BN>(partial, a.hi[0], b, !(A_TYPE && B_IS_HALF));
    wgmma_rs<BN>(partial, a.hi[1], b + 2, 1);
    wgmma_commit();
}

// The next stage's rows of A. After the last stage of all there is nothing to wait for, and no copy is under way: what is read then, of a
// stage long multiplied or never filled, is split for nothing.
inline void fetch_next(RowsOfA &rows, Ahead ahead, Ring &at) {
    at.advance();
    /*!filled*/if (ahead.any()) at.wait_until_filled();
    rows.fetch(at.a());
}

// This warp has read a stage.
inline void release(uint free) {
    /*!stage-is-read*/__syncwarp();
    barrier_arrive(free);
}

// A stage: what ``a`` has of A, times the stage's B; then ``a`` gets the next stage's. While the Tensor Cores work for this warpgroup,
// others have the schedulers; then two streams of instructions, promoting and splitting, fill each other's gaps.
inline void step(float (&sum)[BN / 2], Fragments &a, RowStatistics &of_rows, Ahead &ahead, Ring &at) {
    ulong b = tile_at(at.b());
    uint free = at.free(), scales = at.scales();
    float partial[BN / 2], times[2] = {a.back[0], a.back[1]};
    of_rows.add(a);
    ahead.next();
    /*!split*/at.wait_until_split();
    start_products(partial, a, b);
    RowsOfA rows;
    fetch_next(rows, ahead, at);
    if (A_SCALED_EARLY) rows.weigh();
    if (A_TYPE) pin(rows.v[0]), pin(rows.v[1]); // rounded after the wait: registers that Tensor Cores read are not written while they work
    wgmma_wait<0>();
    pin(partial);
    if (!A_SCALED_EARLY) rows.weigh();
    a.split(rows);
#pragma unroll
    for (int i = 0; i < BN / 8; i += 2) {
        float2 one, two;
        if (B_TYPE == 1) {
            one = two = make_float2(1.0f, 1.0f);
        } else if (FOUR_COLUMNS) {
            float4 both = shared_four(scales + 4 * column_of(i));
            one = make_float2(both.x, both.y), two = make_float2(both.z, both.w);
        } else {
            one = shared_two(scales + 4 * column_of(i)), two = shared_two(scales + 4 * column_of(i + 1));
        }
#pragma unroll
        for (int x = 0; x < 8; ++x) {
            float back = x / 4 ? x % 2 ? two.y : two.x : x % 2 ? one.y : one.x;
            sum[4 * i + x] = fmaf(partial[4 * i + x] * back, times[x / 2 % 2], sum[4 * i + x]);
        }
    }
    release(free);
}

// All stages of a tile.
inline void multiply_tile(float (&sum)[BN / 2], Fragments &a, RowStatistics &of_rows, Ring &ring, int k_blocks, bool follows) {
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = 0.0f;
#pragma unroll 1
    for (Ahead ahead(k_blocks, follows); ahead.of_tile();) step(sum, a, of_rows, ahead, ring);
}
