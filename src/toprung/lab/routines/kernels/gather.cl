// dst = src, tight          src: N elements, inc apart; dst: N elements side by side
//
// One work-item an element.

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
gather(const uint N, __global const float *restrict src, const int inc, __global float *restrict dst)
{
    const uint n = get_global_id(0);
    if (n < N) dst[n] = src[(index_t)n * inc];
}
