// C += the parts of its blocks that were computed apart        C: row-major (ldc); a part: BM x BN, tight
//
//     added[block] = {m, n, first, count}: parts first ... first + count - 1 belong to the block of C at row m and column n
//
// Work-group: DM * DN work-items, each with one vector of VB elements of C; get_num_groups(0) work-groups cover a block.
// The order of the sum is that of the parts: the same call, the same bits.

#ifndef VB
#define VB 1 // a tile without vectors
#endif

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
add_parts(__global const int *restrict added, __global const float *restrict parts, __global float *restrict C, const int ldc)
{
    __global const int *block = added + 4 * get_group_id(1);
    const int m = block[0], n = block[1], first = block[2], count = block[3];
    const int element = (get_group_id(0) * (DM * DN) + get_local_id(0)) * VB;
    if (element >= BM * BN) return;

    const size_t c = (size_t)(m + element / BN) * ldc + n + element % BN;
    VECTOR(VB) sum = GLOBAL_V(VB, &C[c]);
    for (int i = 0; i < count; ++i) sum += GLOBAL_V(VB, &parts[(size_t)(first + i) * (BM * BN) + element]);
    GLOBAL_V(VB, &C[c]) = sum;
}
