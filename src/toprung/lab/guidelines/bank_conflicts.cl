// out[i] = sum over r < count, j < 8 of  tile[(tid * STRIDE + r) % SIZE + 64 * j]      tile: local memory, filled from x
//
//      STRIDE 1    lanes 0 1 2 3 ...     banks 0 1 2 3 ...      all at once
//      STRIDE 32   lanes 0 1 2 3 ...     banks 0 0 0 0 ...      one after the other
//
// Work-group: 256 work-items. x has SIZE + 512 floats, SIZE a power of two. Eight loads a step, 64 floats apart: in one bank, and
// not in a row, or the compiler would read four at a time.
// Idea: as many reads whatever the stride; only how many of a warp's lanes meet in a bank is different.

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void
trial(const uint count, __global const float *restrict x, __global float *restrict out)
{
    __local float tile[SIZE + 512];
    const uint tid = get_local_id(0);
    for (uint i = tid; i < SIZE + 512; i += 256) tile[i] = x[i];
    barrier(CLK_LOCAL_MEM_FENCE); // the tile is complete

    uint at = tid * STRIDE & (SIZE - 1);
    float sum = 0.0f;
    for (uint r = 0; r < count; ++r) {
        UNROLL
        for (uint j = 0; j < 8; ++j) sum += tile[at + 64 * j];
        at = (at + 1) & (SIZE - 1);
    }
    out[get_global_id(0)] = sum;
}
