// dst = f(factor * src)       three nested dimensions of any strides, as in move.cl; src may be dst itself
//
//      ACTIVATION = 1      relu     max(x, 0); a NaN stays one
//      ACTIVATION = 2      gelu     x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): x (1 + tanh u) / 2 without its cancellation

#define ROOT 0.7978845608028654f

__kernel __attribute__((reqd_work_group_size(BM * BN, 1, 1))) void
activate(__global const float *src, const ulong offset_src, __global float *dst, const ulong offset_dst, const float factor,
         const ulong rows, const ulong cols, const ulong elements, const ulong plane_src, const ulong row_src, const ulong col_src,
         const ulong plane_dst, const ulong row_dst, const ulong col_dst)
{
    const ulong step = (ulong)get_num_groups(0) * (BM * BN);
    for (ulong i = (ulong)get_group_id(0) * (BM * BN) + get_local_id(0); i < elements; i += step) {
        const ulong col = i % cols;
        const ulong row = i / cols % rows;
        const ulong plane = i / cols / rows;
        const float x = factor * src[offset_src + plane * plane_src + row * row_src + col * col_src];
#if ACTIVATION == 1
        const float value = x < 0.0f ? 0.0f : x;
#else
        const float value = x / (1.0f + exp(-2.0f * ROOT * x * (1.0f + 0.044715f * x * x)));
#endif
        dst[offset_dst + plane * plane_dst + row * row_dst + col * col_dst] = value;
    }
}
