// The guard of fp32x: which sums two terms cannot carry, by what the splitting pass knows of rows and columns (terms.cuh). Consumers look at
// it where sums leave the registers: the host reads nothing, and there is no further launch.
//
//      64 x GRANULE of C that may overflow, or has an Inf or a NaN          all of it is computed again (plain.cuh)
//                        in which more than FEW sums lost bits               all of it, too
//                        in which some did                                  these alone

struct Rows {
    int exponent; // the largest
    uint flags;   // of all of them
    uint thin;    // the most of one row
};

// up to 64 rows from ``row`` on, seen by a whole warp
inline Rows rows_of(const Row *row, int rows) {
    int lane = threadIdx.x % 32;
    int exponent = -1000;
    uint flags = 0, thin = 0;
#pragma unroll
    for (int i = 0; i < 64; i += 32) {
        if (lane + i >= rows) continue;
        Row r = row[lane + i];
        exponent = max(exponent, r.exponent), flags |= r.losses, thin = max(thin, r.losses & THIN);
    }
    return Rows{__reduce_max_sync(0xffffffffu, exponent), __reduce_or_sync(0xffffffffu, flags), __reduce_max_sync(0xffffffffu, thin)};
}

// Return True if sums of such products may reach Inf or hold one: scaled terms have neither.
inline bool may_overflow(Rows a, Rows b, int K) {
    return (a.flags | b.flags) & SPECIAL || a.exponent + b.exponent + 2 * TOP + 2 + (32 - __clz(K - 1)) >= 127;
}

// Return True if what two terms lose of some of these rows and columns might be seen in a product of them: perhaps no k has an element of
// both that is near the largest.
inline bool may_lose(Rows a, Rows b, int K) { return (a.flags | b.flags) & LOST && 2 * ((ulong)a.thin + b.thin) > (ulong)K; }

// Return True if what two terms lose of a row or a column may be seen in this sum of K products of their scaled terms. An element that they
// cannot carry in full is off by 2^-36 at most, where a largest one has 2^15: each side by 2^-21 for each k, which is UNITS in the last place of
// a sum of 8 / UNITS.
inline bool is_lost(const Row &a, const Row &b, float sum, int K) {
    int sides = (a.losses & LOST ? 1 : 0) + (b.losses & LOST ? 1 : 0);
    return fabsf(sum) < (/*!lost-size*/8.0f / UNITS) * (float)(sides * (long long)K);
}
