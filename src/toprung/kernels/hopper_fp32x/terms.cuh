// What the splitting pass leaves beside the terms of each row of A (column of B), and what follows from it.

#define TOP 14        // the largest element of a scaled row lies in [2^14, 2^15)
#define RESIDUAL 2048 // what the residual is multiplied by

struct __align__(8) Row {
    int exponent; // times 2^exponent: from the scaled row back to the row
    uint losses;  // elements that are not the row's bulk, and two flags
};

#define THIN 0x3fffffffu
#define LOST 0x40000000u    // the row has elements that two terms cannot carry in full
#define SPECIAL 0x80000000u // the row has an Inf or a NaN

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

// whether sums of such products may reach Inf or hold one: scaled terms have neither
inline bool may_overflow(Rows a, Rows b, int K) {
    return (a.flags | b.flags) & SPECIAL || a.exponent + b.exponent + 2 * TOP + 2 + (32 - __clz(K - 1)) >= 127;
}

// whether what two terms lose of some of these rows and columns might be seen in a product of them: perhaps no k has an element of
// both that is near the largest
inline bool may_lose(Rows a, Rows b, int K) { return (a.flags | b.flags) & LOST && 2 * ((ulong)a.thin + b.thin) > (ulong)K; }

// Whether what two terms lose of a row or a column may be seen in this sum of K products of their scaled terms. An element that they
// cannot carry in full is off by 2^-36 at most, where a largest one has 2^15: each side by 2^-21 for each k, which is UNITS in the last place of
// a sum of 8 / UNITS.
inline bool is_lost(const Row &a, const Row &b, float sum, int K) {
    int sides = (a.losses & LOST ? 1 : 0) + (b.losses & LOST ? 1 : 0);
    return fabsf(sum) < (8.0f / UNITS) * (float)(sides * (long long)K);
}

inline float power_of_two(int e) { return __int_as_float((e + 127) << 23); } // -126 … 127
