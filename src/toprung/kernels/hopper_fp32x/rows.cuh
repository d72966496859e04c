// A row (of A, or a column of B) as two fp16 terms: its scale, the terms of its elements, and what is known of it afterwards.

// bits of the largest |x| of a row -> what its elements are multiplied by is 2^shift
inline int shift_of(uint largest) {
    if (largest >= 0x7f800000) return TOP;
    return TOP - (largest >> 23 ? (int)(largest >> 23) - 127 : largest ? 31 - __clz(largest) - 149 : -149);
}

struct Scale {
    float first, second; // both together; one would be too much for a float
    float share;         // of hi, added to lo (truncation.cuh): 0 for A, since one side corrects both
};

inline Scale scale_of(int shift, float share) { return Scale{power_of_two(shift >> 1), power_of_two(shift - (shift >> 1)), share}; }

// the terms of two elements; counts those that are lost (in LOST) and those that are not the row's bulk
inline void split_two(float x, float y, const Scale &s, uint &hi, uint &lo, uint &losses) {
    float u = x * s.first * s.second, v = y * s.first * s.second;
    hi = pair_of(u, v);
    float one = from_half(hi & 0xffff), two = from_half(hi >> 16);
    lo = pair_of(corrected(s.share, one, u - one) * (float)RESIDUAL, corrected(s.share, two, v - two) * (float)RESIDUAL);
    losses += (fabsf(u) < 2.0f) + (fabsf(v) < 2.0f);
    if ((fabsf(u) < 0x1p-14f && x != 0.0f) || (fabsf(v) < 0x1p-14f && y != 0.0f)) losses |= LOST;
}

// losses of two parts of a row
inline uint both(uint x, uint y) { return ((x & THIN) + (y & THIN)) | ((x | y) & LOST); }

// what is known of a whole row; zeros behind K were counted, too
inline Row known(uint largest, uint losses, int behind) {
    uint thin = (losses & THIN) - behind;
    return Row{-shift_of(largest), (largest ? thin : 0) | (losses & LOST) | (largest >= 0x7f800000 ? SPECIAL : 0)};
}

// four elements along memory from k on
inline float4 four(const float *from, int k, int K, bool wide) {
    if (wide && k + 3 < K) return *(const float4 *)(from + k);
    return make_float4(k < K ? from[k] : 0.0f, k + 1 < K ? from[k + 1] : 0.0f, k + 2 < K ? from[k + 2] : 0.0f, k + 3 < K ? from[k + 3] : 0.0f);
}

inline uint largest_of(float4 v) { return max(max(size_bits(v.x), size_bits(v.y)), max(size_bits(v.z), size_bits(v.w))); }

inline void store_four(float4 v, const Scale &s, unsigned short *to, int k, uint &losses) {
    uint2 hi, lo;
    split_two(v.x, v.y, s, hi.x, lo.x, losses);
    split_two(v.z, v.w, s, hi.y, lo.y, losses);
    unsigned short *at = to + k / 32 * 64 + k % 32;
    *(uint2 *)at = hi;
    *(uint2 *)(at + 32) = lo;
}
