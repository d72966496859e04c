// Conversions between fp32 and fp16, an instruction each.

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
