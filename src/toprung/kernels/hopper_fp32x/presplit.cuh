// A B that was split beforehand, as split.cu leaves it, with a scale for all of a column: the TMA fetches its terms, there is no
// splitter, and partial sums are promoted by the scale of the row alone, while the next stage of A is split:
//
//      copier warpgroup --> ring, A in fp32, B in terms --> consumer warpgroups: A split in registers, a stage ahead --> Tensor Cores
//
// B's lo is multiplied by 2^11, so A has a third term, hi * 2^-11. Sums in which losses of two terms may be seen become NaN, and are
// computed again like all that are not finite. With ``claims``, not 0, and K along memory, the launch splits B itself before it
// multiplies (claimed.cuh).

#if B_TYPE == 3
#define TERMS_PARAMETERS , Row *info_b, int apart_b, unsigned short *terms_b, uint *claims, const __grid_constant__ TensorMap map_b
#define TERMS Terms{info_b, apart_b, terms_b, claims, &map_b}
#else
#define TERMS_PARAMETERS
#define TERMS Terms{}
#endif

static_assert(!B_IS_SPLIT || !IN_PARTS, "a tile has all of K or a slice of it");

struct Terms { // apart: rows from the terms of one matrix to the next, 0 where there is one
    Row *info;
    int apart;
    unsigned short *terms;
    uint *claims;
    const TensorMap *map;
};

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
// 2^-36 at most, where a largest one has 2^15; of a row half as much again is lost as ``LineStatistics`` has, by its third term. A single small
// element of a row is seen in columns that have small ones or zeros, in a sum that is not 0.
inline void scale_columns(float (&sum)[BN / 2], const RowStatistics &of_rows, const Row *columns, int cols, int K) {
    float least[2], if_lost[2], if_small[2]; // what sums must have, also of a column that has lost something, or has small elements
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        LineStatistics row = of_rows.row(h);
        least[h] = least_of(/*!lost-of-row*/1.5f * row.lost * 0x1p15f);
        if_small[h] = least_of(lost_by_single(row.largest, /*!largest-column*/0x1p15f));
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
        uint small = __ballot_sync(0xffffffffu, /*!column-small*/(its.losses & SMALL) != 0) >> 2 * (threadIdx.x % 4); // from the thread's first column on
        if (!small) continue;
#pragma unroll
        for (int i = 0; i < 16; ++i) { // of the thread's sums in these columns
            float &x = sum[16 * g + i];
            if (small >> (i / 4 * 8 + i % 2) & 1 && /*!small-zeros*/x != 0.0f && fabsf(x) < if_small[i / 2 % 2]) x = __int_as_float(0x7fffffff);
        }
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
