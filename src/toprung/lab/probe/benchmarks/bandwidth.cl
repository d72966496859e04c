// KIND 0: fill out; 1: out[item] <- sum of what the item read of in; 2: out <- in
//
//     |  slice 0  |  slice 1  | ...  | slice G-1 |     G slices of SLICE vectors, one a work-group and pass
//        group p     group p+JUMP                      in pass p of group g: slice (g + p * JUMP) mod G
//
// in, out: G * SLICE vectors of VEC floats; sums: VEC floats an item. Preconditions: SLICE % (LOCAL * DEEP) = 0, JUMP and G have
// no common divisor.
// Idea: every group reads its slice DEEP vectors at a time, so that enough is under way; the next pass takes another group's
// slice, so that what is re-read comes from the cache all share and not from one of its own. Filled by the device itself with
// numbers that the host can compute from their place.

#undef UNROLL // PoCL's compiler unrolls only what it is told to, and sums in a loop are in memory
#define UNROLL _Pragma("unroll")

float number(uint i)
{
    i *= 2654435761u;
    i ^= i >> 15;
    i *= 2246822519u;
    i ^= i >> 13;
    return (float)(int)(i >> 8) * 1.1920928955078125e-7f - 1.0f; // in [-1, 1), exact
}

__kernel __attribute__((reqd_work_group_size(LOCAL, 1, 1)))
void probe(int passes, __global const float *restrict in, __global float *restrict out)
{
    const uint groups = get_num_groups(0), lane = get_local_id(0);
#if KIND == 0
    const ulong first = (ulong)get_group_id(0) * SLICE * VEC;
    for (uint i = lane; i < SLICE * VEC; i += LOCAL) out[first + i] = number((uint)(first + i));
#else
    VECTOR(VEC) sum[DEEP];
    UNROLL
    for (int d = 0; d < DEEP; ++d) sum[d] = ZERO(VEC);
    for (int p = 0; p < passes; ++p) {
        const ulong slice = (get_group_id(0) + (uint)p * JUMP) % groups;
        __global const float *from = in + (slice * SLICE + lane) * VEC;
        __global float *to = out + (slice * SLICE + lane) * VEC;
        for (uint i = 0; i < SLICE; i += LOCAL * DEEP, from += LOCAL * DEEP * VEC, to += LOCAL * DEEP * VEC) {
            VECTOR(VEC) v[DEEP];
            UNROLL
            for (int d = 0; d < DEEP; ++d) v[d] = GLOBAL_V(VEC, from + d * LOCAL * VEC);
#if KIND == 1
            UNROLL
            for (int d = 0; d < DEEP; ++d) sum[d] += v[d];
#else
            UNROLL
            for (int d = 0; d < DEEP; ++d) GLOBAL_V(VEC, to + d * LOCAL * VEC) = v[d];
#endif
        }
    }
#if KIND == 1
    UNROLL
    for (int d = 1; d < DEEP; ++d) sum[0] += sum[d];
    GLOBAL_V(VEC, out + (ulong)(get_group_id(0) * LOCAL + lane) * VEC) = sum[0];
#endif
#endif
}
