// out[i] = v  after COUNT steps  v = 0.5 * v + t[at]  from v = tid % 64       at = k (UNIFORM=1) or k + tid, modulo 1024
//
//      UNIFORM=1   lanes 0 1 2 3    t: k k k k              one word for the whole warp
//      UNIFORM=0   lanes 0 1 2 3    t: k k+1 k+2 k+3        one word each
//
// t is a table of 1024 floats, t[i] = 37 * i % 64: in constant memory (CONSTANT=1) or in x. Work-group: 256 work-items.
// Idea: the vector x of a matrix-vector product is the same for all lanes; constant memory has a cache that hands out one word.

#define T1(i) (float)((i) * 37 % 64)
#define T4(i) T1(i), T1((i) + 1), T1((i) + 2), T1((i) + 3)
#define T16(i) T4(i), T4((i) + 4), T4((i) + 8), T4((i) + 12)
#define T64(i) T16(i), T16((i) + 16), T16((i) + 32), T16((i) + 48)
#define T256(i) T64(i), T64((i) + 64), T64((i) + 128), T64((i) + 192)

#if CONSTANT
__constant float table[1024] = {T256(0), T256(256), T256(512), T256(768)};
#endif

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void
trial(const uint count, __global const float *restrict x, __global float *restrict out)
{
    const uint tid = get_local_id(0);
    float v = (float)(tid % 64);
    for (uint k = 0; k < count; ++k) {
        const uint at = (UNIFORM ? k : k + tid) % 1024;
#if CONSTANT
        v = 0.5f * v + table[at];
#else
        v = 0.5f * v + x[at];
#endif
    }
    out[get_global_id(0)] = v;
}
