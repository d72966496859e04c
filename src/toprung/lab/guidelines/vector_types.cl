// out[i] = 2 * x[i] + y[i]        VEC elements a work-item, as one access each
//
//      VEC 1   lanes 0 1 2 3    x: 0 1 2 3 . . . .
//      VEC 4   lanes 0 1        x: 0 0 0 0 1 1 1 1
//
// Work-group: 256 work-items, n / VEC of them altogether; x and y are far larger than any cache.
// Idea: the arithmetic is scalar either way; vectors change how many bytes a load asks for, and how many work-items there are.

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void
trial(__global const float *restrict x, __global const float *restrict y, __global float *restrict out)
{
    const uint i = VEC * (uint)get_global_id(0);
    GLOBAL_V(VEC, out + i) = 2.0f * READ_V(VEC, x + i) + READ_V(VEC, y + i);
}
