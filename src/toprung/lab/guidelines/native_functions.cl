// out[i] = sum over k < COUNT of  (x + k)^1.5 / (x + k + 1),  x = x[i] in [1, 2)        pow and division, precise or native
//
//      x[i] -> pow -> divide -> +        the same formula with the functions' other names
//
// Work-group: 256 work-items.
// Idea: native functions are what the special function units give by themselves, without the correction that makes them precise.

#if NATIVE
#define POWER native_powr
#define DIVIDE native_divide
#else
#define POWER powr
#define DIVIDE(a, b) ((a) / (b))
#endif

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void
trial(const uint count, __global const float *restrict x, __global float *restrict out)
{
    const uint i = get_global_id(0);
    const float first = x[i];
    float base = first, sum = 0.0f;
    for (uint k = 0; k < count; ++k) {
        sum += DIVIDE(POWER(base, 1.5f), base + 1.0f);
        base += 1.0f;
    }
    out[i] = sum;
}
