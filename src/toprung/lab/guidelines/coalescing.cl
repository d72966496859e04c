// out[i] = sum of ITEMS elements of x          x has 2^LOG floats; with STRIDE = 2^SHIFT each is read by exactly one work-item
//
//      STRIDE 1   lanes 0 1 2 3     x: 0 1 2 3 . . . . . . . .       one line of memory serves many lanes
//      STRIDE 4   lanes 0 1 2 3     x: 0 . . . 1 . . . 2 . . .       each lane takes another part of it
//
// Work-group: 256 work-items, 2^LOG / ITEMS of them altogether. x must be far larger than any cache.
// Idea: the same floats are read whatever the stride; only which lanes ask for them together is different.

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void
trial(__global const float *restrict x, __global float *restrict out)
{
    const uint i = get_global_id(0), items = get_global_size(0);
    float part[ITEMS];
    UNROLL
    for (uint r = 0; r < ITEMS; ++r) {
        const uint t = i + r * items;
        part[r] = x[((t << SHIFT) & ((1u << LOG) - 1)) | (t >> (LOG - SHIFT))];
    }
    float sum = 0.0f;
    UNROLL
    for (uint r = 0; r < ITEMS; ++r) sum += part[r];
    out[i] = sum;
}
