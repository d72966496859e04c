// C = alpha * (sum over s of parts[s]) + beta * C       C: a batch of M x N, row-major (ldc, stride_c); parts: as C, tight
//
//     parts  | slice 0  | slice 1  | slice 2  | ...          work-items of lane j take slices j, j + DM, j + 2 DM, ...
//                 \__________|__________/
//                            +  ->  C                        and their sums meet in local memory, from lane 0 up
//
// Work-group: DM lanes of DN work-items, each of which owns VC elements of C side by side. VC divides N.
// TIGHT: C lies as a slice does; else where an element lies takes divisions, which are short where offsets have 32 bits (INDEX32).
// Idea: the second pass of a sum that was cut. The order is fixed by the number of slices alone: the same call, the same bits.
// beta = 0 never reads C.

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
add(__global const float *parts, const ulong offset_parts, __global float *restrict C, const ulong offset_c,
    const float alpha, const float beta, const uint N, const uint slices, const ulong area, const ulong total, const ulong ldc,
    const ulong on_c, const ulong stride_c)
{
    __local float sums[DM][DN * VC] ALIGNED(VC); // sums[lane][element]
    wait_for_previous();
    const uint dn = get_local_id(0) % DN;
    const uint lane = get_local_id(0) / DN;
    const ulong i = ((ulong)get_group_id(0) * DN + dn) * VC;

    VECTOR(VC) acc = ZERO(VC);
    if (i < total) {
        parts += offset_parts + i;
        for (uint s = lane; s < slices; s += DM) acc += READ_V(VC, &parts[s * total]);
    }
#if DM > 1
    LOCAL_V(VC, &sums[lane][dn * VC]) = acc;
    barrier(CLK_LOCAL_MEM_FENCE); // every lane's sum is there
    if (lane > 0) return;
    for (uint other = 1; other < DM; ++other) acc += LOCAL_V(VC, &sums[other][dn * VC]);
#endif
    if (i >= total) return;
#if TIGHT
    const ulong c = offset_c + i;
#else
    const index_t which = (index_t)i / (index_t)area, of_it = (index_t)i % (index_t)area;
    const ulong c = offset_c + which * stride_c + of_it / N * ldc + of_it % N * on_c;
#endif
    acc = alpha * acc;
    if (beta != 0.0f) acc = MULTIPLY_ADD(VC, beta, GLOBAL_V(VC, &C[c]), acc);
    GLOBAL_V(VC, &C[c]) = acc;
}
