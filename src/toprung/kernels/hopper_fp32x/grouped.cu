// Products of a group, GROUPED of them at most in one launch, each of sizes of its own: C = f(A*B + D), as inflight.cu computes one. All
// have the same layouts and alignments. A block takes every ``workers``-th tile of all products, and finds its product.

#include "parts.cuh"

static_assert(SLICES == 1 && !IN_PARTS, "products of a group have all of K");

// Tiles of a product, one column of C after the other: those that run at once share B's columns.
inline Place place_in(const Group &group, uint member, uint tile) {
    uint in = tile - (/*!begin-of-product*/member ? group.ends[member - 1] : 0);
    Divisor down = group.of[member].by_tiles();
    uint column = down.of(in);
    return Place{0, (int)(in - column * /*!down-of-product*/down.by) * BM, (int)column * BN};
}

// Stages of a product, never none: K is 64 at least
inline int k_blocks_of(const Group &group, uint member) { return (group.of[member].K + /*!stages-of-product*/31) / 32; }

#if EPILOGUE
inline Added added_of(const Member &one, int row, int col) { return Added{one.d + row * one./*!d-of-row*/down + col * one.on, one.down, one.on}; }
inline float beta_of(const Member &one) { return one.d ? /*!d-of-product*/1.0f : 0.0f; }
#else
inline Added added_of(const Member &, int, int) { return Added{}; }
inline constexpr float beta_of(const Member &) { return 0.0f; }
#endif

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
inflight(ulong *count, const __grid_constant__ Group group) {
    extern __shared__ char memory[];
    Ring ring(memory);
    int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) ring.init();
    __syncthreads(); // the barriers are ready
    let_next_start();
    wait_for_previous();

    int tiles = group.tiles, worker = blockIdx.x, workers = gridDim.x;
    uint member = 0; // the product of a tile; none behind it belongs to an earlier one

    if (warpgroup >= CONSUMERS) {
        if (warpgroup == CONSUMERS) { // the copier
            fewer_registers<COPIER_REGISTERS>();
            for (int tile = worker; tile < tiles; tile += workers) {
                member = group.member(tile, member);
                const int k_blocks = k_blocks_of(group, member);
                forget(member);
                const Member now = group.of[member];
                Place of = place_in(group, member, tile);
                CopiesOfA a(now.a, now.lda, of.m, now.M, 0);
                CopiesOfB b(now.b, now.ldb, of.n, now.N, 0);
#pragma unroll 1
                for (int j = 0; j < k_blocks; ++j) {
                    /*!free*/ring.wait_until_free();
                    a.fetch(ring.a(), 32 * j, now.K/*!k-of-product*/);
                    b.fetch(ring.b(), 32 * j, now.K/*!k-of-product*/);
                    barrier_arrive_copied(ring.filled());
                    ring.advance();
                }
            }
        } else { // the splitter
            fewer_registers<SPLITTER_REGISTERS>();
            for (int tile = worker; tile < tiles; tile += workers) {
                member = group.member(tile, member);
                split_tile(ring, k_blocks_of(group, member), group.of[member].K, tile + workers < tiles);
            }
        }
        return;
    }

    more_registers<CONSUMER_REGISTERS>();
    Fragments a; // of the stage that is next
    if (worker < tiles) {
        ring.wait_until_filled();
        fetch_terms(a, ring.a());
    }
    for (int tile = worker; tile < tiles; tile += workers) {
        member = group.member(tile, member);
        const int k_blocks = k_blocks_of(group, member);
        float sum[BN / 2];
        RowStatistics of_rows;
        multiply_tile(sum, a, of_rows, ring, k_blocks, tile + workers < tiles);

        // The compiler must not know that ``member`` is what it was: it would rather keep all of the product in registers, while sums
        // are made, than read it again.
        forget(member);
        const Member now = group.of[member];
        Place of = place_in(group, member, tile);
        int top = of.m + 64 * warpgroup + threadIdx.x / 32 % 4 * 16;
        uint spare = ring.spare(threadIdx.x / 32);
        auto operands = [&](int col) { return operands_of(now.a, now.lda, top, now.b, now.ldb, of.n + col, now.K); };
        refuse_doubts(sum, of_rows, now.M - top, ring.statistics(), spare, count, operands);
        float *c = now.c + (long long)top * now.ldc + of.n;
        Out out{c, now.ldc, now.M - top, now.N/*!n-of-product*/ - of.n, 1.0f, beta_of(now), width_of(c, now.ldc), added_of(now, top, of.n)};
        Left left = {};
        store_sums(out, sum, left, spare);
        store_left(out, left, count, spare, [&](int col) {
            forget(member);
            const Member again = group.of[member];
            return operands_of(again.a, again.lda, top, again.b, again.ldb, of.n + col, again.K);
        });
        if (tile + workers >= tiles) bulk_wait(); // in the loop: after it the compiler would give consumers the launch's registers only
    }
}
