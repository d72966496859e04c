// dst = f(factor * src)       three nested dimensions of any strides: planes, rows and columns, gaps or none, forwards or backwards
//
//      src  . x . y .              dst  x y z w        or the other way round: what no product kernel can address is brought
//           . z . w .      ->                          into rows without gaps, and a result brought back to where it belongs
//
// Strides are in elements; negative ones wrap around in 64 bits. factor = 1 copies the bits, factor = 0 writes zeros and reads
// nothing; src may be dst itself (C = beta * C). Work-items walk over the elements along dst's columns.
//
//      ACTIVATION = 0      f(x) = x
//      ACTIVATION = 1      relu     max(x, 0); a NaN stays one
//      ACTIVATION = 2      gelu     x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): x (1 + tanh u) / 2 without its cancellation

#define ROOT 0.7978845608028654f

__kernel __attribute__((reqd_work_group_size(BM * BN, 1, 1))) void
move(__global const float *src, const ulong offset_src, __global float *dst, const ulong offset_dst, const float factor,
     const ulong rows, const ulong cols, const ulong elements, const ulong plane_src, const ulong row_src, const ulong col_src,
     const ulong plane_dst, const ulong row_dst, const ulong col_dst)
{
    const ulong step = (ulong)get_num_groups(0) * (BM * BN);
    for (ulong i = (ulong)get_group_id(0) * (BM * BN) + get_local_id(0); i < elements; i += step) {
        const ulong col = i % cols;
        const ulong row = i / cols % rows;
        const ulong plane = i / cols / rows;
        const ulong to = offset_dst + plane * plane_dst + row * row_dst + col * col_dst;
        float value = 0.0f;
        if (factor != 0.0f) {
            value = src[offset_src + plane * plane_src + row * row_src + col * col_src];
            if (factor != 1.0f) value *= factor;
        }
#if ACTIVATION == 1
        value = value < 0.0f ? 0.0f : value;
#elif ACTIVATION == 2
        value = value / (1.0f + exp(-2.0f * ROOT * value * (1.0f + 0.044715f * value * value)));
#endif
        dst[to] = value;
    }
}
