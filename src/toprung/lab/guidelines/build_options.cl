// out[i] = v  after COUNT steps  v = v * x + 0.7  from v = x,  x = x[i] in [0, 0.9)
//
//      v * x + c       two roundings and two instructions, or one of each
//
// Work-group: 256 work-items. Four chains a work-item, so that latency does not limit.
// Idea: the text says multiply and add; the build options say whether the compiler may make one instruction of them.

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void
trial(const uint count, __global const float *restrict x, __global float *restrict out)
{
    const uint i = get_global_id(0), items = get_global_size(0);
    const float a = x[i], b = x[i + items], c = x[i + 2 * items], d = x[i + 3 * items];
    float p = a, q = b, r = c, s = d;
    for (uint k = 0; k < count; ++k) {
        p = p * a + 0.7f;
        q = q * b + 0.7f;
        r = r * c + 0.7f;
        s = s * d + 0.7f;
    }
    out[i] = p;
    out[i + items] = q;
    out[i + 2 * items] = r;
    out[i + 3 * items] = s;
}
