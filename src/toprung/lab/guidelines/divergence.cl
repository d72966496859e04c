// out[i] = v  after COUNT steps of one of four loops, chosen by  which = tid (APART=1) or tid / 64 (APART=0), modulo 4
//
//      APART 0   lanes 0 1 2 3 4 5 6 7    loop 0 0 0 0 0 0 0 0      64 neighbours go the same way
//      APART 1   lanes 0 1 2 3 4 5 6 7    loop 0 1 2 3 0 1 2 3      a warp goes all four, one after the other
//
// Work-group: 256 work-items. 64 neighbours are whole sub-groups on any GPU.
// Idea: as many work-items take each loop either way; only whether they share a warp is different.

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void
trial(const uint count, __global const uint *restrict x, __global float *restrict out)
{
    const uint i = get_global_id(0), tid = get_local_id(0);
    const uint which = (APART ? tid : tid / 64) % 4, add = x[i];
    uint v = add;
    if (which == 0) {
        for (uint k = 0; k < count; ++k) v = v * 1664525u + add;
    } else if (which == 1) {
        for (uint k = 0; k < count; ++k) v = v * 22695477u + (add ^ k);
    } else if (which == 2) {
        for (uint k = 0; k < count; ++k) v = v * 69069u - add;
    } else {
        for (uint k = 0; k < count; ++k) v = v * 134775813u + (add | k);
    }
    out[i] = (float)(v >> 8);
}
