// Sums in doubt: those in which may be seen what two terms lose of small elements (split.cuh). Not for a B that was split beforehand.

// A warp's 16 x BN of C, in local memory, for registers belong to the loop over K.
struct Doubts {
    alignas(16) float sum[BN / 2];
    LineStatistics rows[2];
    uint statistics, spare; // addresses: column statistics, and the warp's memory
    Operands of; // from the warp's first row and the tile's first column on
    ulong *count;
};

// Looks for such sums. A few are computed again at once. Many, or those of a slice of K, become NaN, and are computed again when the sums of
// all slices are stored.
__noinline__ void refuse(Doubts &in) {
    uint thread = threadIdx.x, refused[2] = {}, pieces = 0; // refused: of the row h bit x, of the thread's column x % 2 of eight columns x / 2
    const LineStatistics rows[2] = {in.rows[0], in.rows[1]};
    bool may_be_0[2]; // the sums of a row that has lost all; a row of zeros has the least scale, and nothing to lose
#pragma unroll
    for (int h = 0; h < 2; ++h) may_be_0[h] = rows[h].lost > 0.0f || rows[h].largest > LEAST_LARGEST;
#pragma unroll 4
    for (int x = 0; x < BN / 4; ++x) {
        int col = column_of(x / 2, thread) + x % 2, stored = 8 * (x / 2) + 2 * (thread % 4) + x % 2;
        bool thin = __float_as_uint(shared_one(in.statistics + 4 * (stored / LANES))) >> stored % LANES & 1;
        uint its = shared_half(in.statistics + 32 + 2 * col/*!column-statistics*/);
        LineStatistics column{of_byte(its & 0xff), of_byte(its >> 8/*!lost-of-column*/)};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = in.sum[4 * (x / 2) + 2 * h + x % 2], least = least_of(lost_by(rows[h], column) + lost_by(column, rows[h]));
            float single = thin ? least_of(lost_by_single(rows[h].largest, column.largest)) : 0.0f;
            bool lost = ((fabsf(sum) < least) & (/*!sum-of-zeros*/may_be_0[h] | (sum != 0.0f))) | ((fabsf(sum) < single) & (/*!single-zeros*/sum != 0.0f));
            refused[h] |= (uint)lost << x, pieces |= (uint)lost << /*!granule*/col / GRANULE;
        }
    }
    uint found = __reduce_add_sync(0xffffffffu, __popc(refused[0]) + __popc(refused[1]));
    if (!found) return;
    bool few = /*!few-of-slices*/SLICES == 1 && found <= (BN / GRANULE) * few_of(in.of.K);
    pieces = __popc(__reduce_or_sync(0xffffffffu, pieces));
    if (few && thread % 32 == 0) atomicAdd(in.count, (ulong)pieces);
#pragma unroll 1
    for (int h = 0; h < 2; ++h)
        each_wanted(refused[h], [&](uint owner, int x) {
            float again = __int_as_float(0x7fffffff);
            if (few) again = element_again(in.of, row_of(h/*!row-again*/, owner), column_of(x / 2, owner) + x % 2/*!column-again*/, in.spare);
            if (/*!owner*/thread % 32 == owner) in.sum[4 * (x / 2) + 2 * h + x % 2] = again;
        });
}

// The sums of a tile's 16 x BN, if four small neighbours were noticed in rows or columns, or a thin column has a sum that is small enough; the
// first ``rows`` of them are C's. Nothing is in doubt in the others: their operands lie past A's end. Where A is scaled they are rows of
// zeros, which have lost nothing.
template <class OperandsAt>
inline void refuse_doubts(float (&sum)[BN / 2], const RowStatistics &of_rows, int rows, uint statistics, uint spare, ulong *count, OperandsAt operands) {
    float4 words = shared_four(statistics), largest = shared_four(statistics + 16);
    const uint thin[4] = {__float_as_uint(words.x), __float_as_uint(words.y), __float_as_uint(words.z), __float_as_uint(words.w)};
    const float most[4] = {largest.x, largest.y, largest.z, largest.w};
    bool some = !A_UNSCALED && of_rows.weight[0] + of_rows.weight[1] > 0.0f;
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) {
        if (!thin[warp]) continue;
        uint mine = thin[warp] >> /*!thin-of-thread*/2 * (threadIdx.x % 4); // from the thread's first column on
        float least[2] = {least_of(lost_by_single(of_rows.largest(0), most[warp])), least_of(lost_by_single(of_rows.largest(1), most[warp]))};
#pragma unroll
        for (int i = 0; i < LANES / 2; ++i) { // of the thread's sums in these columns
            float x = sum[LANES / 2 * warp + i];
            some |= (mine >> (i / 4 * 8 + i % 2) & 1) && x != 0.0f && fabsf(x) < /*!least-of-single*/least[i / 2 % 2];
        }
        some |= most[warp] > 0x1p127f;
    }
    if (!__any_sync(0xffffffffu, some)) return;
    Doubts doubts;
    doubts.rows[0] = of_rows.row(0), doubts.rows[1] = of_rows.row(1), doubts.statistics = statistics, doubts.spare = spare;
    doubts.count = count, doubts.of = operands(0);
#pragma unroll
    for (int h = 0; h < 2; ++h)
        if (A_UNSCALED && row_of(h) >= rows) doubts.rows[h] = LineStatistics{};
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) doubts.sum[i] = sum[i];
    refuse(doubts);
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) /*!sums-again*/sum[i] = doubts.sum[i];
}
