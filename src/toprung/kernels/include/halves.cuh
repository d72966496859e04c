// fp32 and fp16, bit by bit: what kernels need that split numbers into two fp16 terms.

// What two terms lose of elements far below others may change a sum by so many units in its last place; where it may be more, the sum
// is computed again in plain fp32.
#define UNITS 8

inline uint size_bits(float x) { return __float_as_uint(x) & 0x7fffffff; } // of |x|; they grow with it

inline uint pair_of(float low, float high) { // both rounded to fp16
    uint both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

inline float from_half(uint h) {
    float x;
    asm("{\n.reg .b16 half;\ncvt.u16.u32 half, %1;\ncvt.f32.f16 %0, half;\n}" : "=f"(x) : "r"(h));
    return x;
}
