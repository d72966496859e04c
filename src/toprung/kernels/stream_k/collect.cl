// C += the parts of its blocks that were computed apart        C: row-major (ldc); a part: BM x BN, tight
//
//     blocks[block] = {m, n, first, count}: parts first ... first + count - 1 belong to the block of C at row m and column n
//
// Work-group: DM * DN work-items, each with VC elements of C side by side; get_num_groups(0) work-groups cover a block. VC divides
// N and BN. The order of the sum is that of the parts: the same call, the same bits.

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
collect(__global float *C, const ulong offset_c, __global const int *blocks,
        __global const float *parts, const uint M, const uint N, const uint ldc)
{
    wait_for_previous();
    __global const int *block = blocks + 4 * get_group_id(1);
    const uint element = (get_group_id(0) * (DM * DN) + get_local_id(0)) * VC;
    const uint m = block[0] + element / BN, n = block[1] + element % BN;
    const int first = block[2], count = block[3];
    if (element >= BM * BN || m >= M || n >= N) return;

    C += offset_c + (ulong)m * ldc + n;
    VECTOR(VC) sum = GLOBAL_V(VC, C);
    for (int i = 0; i < count; ++i) sum += GLOBAL_V(VC, &parts[(ulong)(first + i) * (BM * BN) + element]);
    GLOBAL_V(VC, C) = sum;
}
