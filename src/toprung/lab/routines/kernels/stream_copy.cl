// dst = src          both: vectors of VEC words, side by side, not overlapping
//
//     group 0       group 1       group 2              then the groups again from here, until the end
//    |====|====|   |====|====|   |====|====|          |====|====| ...
//    a span is copied KU x DN vectors at a time: each work-item has KU loads on their way before its first store
//
// Work-group: DN work-items. Any number of vectors below 2^31, any span, any number of work-groups.
// Idea: nothing but moving. Words are not interpreted, so the copy is the same bit for bit.

typedef TOPRUNG_JOIN(uint, VEC) words_t;

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
stream_copy(const uint vectors, const uint span, __global const words_t *restrict src, __global words_t *restrict dst)
{
    const uint tid = get_local_id(0);
    for (uint first = get_group_id(0) * span; first < vectors; first += get_num_groups(0) * span) {
        const uint end = vectors - first < span ? vectors : first + span;
        uint i = first + tid;
        for (; i + (KU - 1) * DN < end; i += KU * DN) {
            words_t v[KU];
            UNROLL for (int u = 0; u < KU; ++u) v[u] = src[i + u * DN];
            UNROLL for (int u = 0; u < KU; ++u) dst[i + u * DN] = v[u];
        }
        for (; i < end; i += DN) dst[i] = src[i];
    }
}
