// Elements of operands as they are stored: float32, or 16-bit floats that are widened as they are read.
//
//      X_TYPE, Y_TYPE      types of the elements: 0 float32, 1 float16, 2 bfloat16
//
// STORED(type)             an element in memory
// READ_AS(type, W, p)      the W elements at p as floats, W in 1, 2, 4, as one access: READ_V for float32. p is aligned to W elements

#define STORED(type) TOPRUNG_JOIN(STORED_, type)
#define STORED_0 float
#define STORED_1 ushort
#define STORED_2 ushort
#define READ_AS(type, W, p) TOPRUNG_JOIN(READ_AS_, type)(W, p)
#define READ_AS_0(W, p) READ_V(W, p)

#if !X_TYPE && !Y_TYPE
#elif defined(__OPENCL_VERSION__)
#define READ_AS_1(W, p) TOPRUNG_JOIN(HALVES_, W)((__global const half *)(p))
#define HALVES_1(p) vload_half(0, p)
#define HALVES_2(p) vload_half2(0, p)
#define HALVES_4(p) vload_half4(0, p)
#define READ_AS_2(W, p) TOPRUNG_JOIN(BFLOATS_, W)(p)
#define BFLOATS_1(p) as_float((uint) * (p) << 16)
#define BFLOATS_2(p) as_float2(convert_uint2(vload2(0, p)) << 16)
#define BFLOATS_4(p) as_float4(convert_uint4(vload4(0, p)) << 16)
#else
#include "convert.cuh"
typedef unsigned short ushort;
#define READ_AS_1(W, p) TOPRUNG_JOIN(widened_, W)<1>(p)
#define READ_AS_2(W, p) TOPRUNG_JOIN(widened_, W)<2>(p)

template <int TYPE> inline float widened(uint h) { return TYPE == 1 ? from_half(h) : __uint_as_float(h << 16); }
template <int TYPE> inline float widened_1(const ushort *p) { return widened<TYPE>(*p); }
template <int TYPE> inline float2 widened_2(const ushort *p) {
    const uint both = *(const uint *)p;
    return make_float2(widened<TYPE>(both), widened<TYPE>(both >> 16));
}
template <int TYPE> inline float4 widened_4(const ushort *p) {
    const uint2 four = *(const uint2 *)p;
    return make_float4(widened<TYPE>(four.x), widened<TYPE>(four.x >> 16), widened<TYPE>(four.y), widened<TYPE>(four.y >> 16));
}
#endif
