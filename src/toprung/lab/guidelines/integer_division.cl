// out[i] = v >> 8  after COUNT steps  v = (v / d) * 2654435761 + (v % d) + k        d = 32; whole numbers modulo 2^32
//
//      KIND 0   v / d     v % d      d is an argument: a division
//      KIND 1   v / 32    v % 32     d is known: the compiler's business
//      KIND 2   v >> 5    v & 31     written out
//
// Work-group: 256 work-items.
// Idea: indices are often split by a divisor. No GPU has an instruction for that; shifts and masks are one each.

#if KIND == 0
#define QUOTIENT(v) ((v) / d)
#define REMAINDER(v) ((v) % d)
#elif KIND == 1
#define QUOTIENT(v) ((v) / 32u)
#define REMAINDER(v) ((v) % 32u)
#else
#define QUOTIENT(v) ((v) >> 5)
#define REMAINDER(v) ((v) & 31u)
#endif

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void
trial(const uint count, const uint d, __global const uint *restrict x, __global float *restrict out)
{
    const uint i = get_global_id(0);
    uint v = x[i];
    for (uint k = 0; k < count; ++k) v = QUOTIENT(v) * 2654435761u + REMAINDER(v) + k;
    out[i] = (float)(v >> 8);
}
