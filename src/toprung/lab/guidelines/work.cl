// out[i] = v >> 8  after COUNT steps  v = v * 1664525 + x[i]  from v = x[i]        whole numbers modulo 2^32, i < n
//
//      x[i] -> v -> v -> v ... -> out[i]         a chain: no step can start before the one before it is done
//
// Any number of work-groups of any size. Several guidelines use it: they differ in how it is launched.
// Idea: pure work. Each result depends on every one of its steps, so that none can be left out unseen.

__kernel void
trial(const uint count, const uint n, __global const uint *restrict x, __global float *restrict out)
{
    const uint first = get_global_id(0), step = get_global_size(0);
    for (uint i = first; i < n; i += step) {
        const uint add = x[i];
        uint v = add;
        for (uint k = 0; k < count; ++k) v = v * 1664525u + add;
        out[i] = (float)(v >> 8);
    }
}
