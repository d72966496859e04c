// sums[g] = sum of the words that work-group g reads, modulo 2^32          src: vectors of VEC words
//
//     group 0       group 1       group 2              then the groups again from here, until the end
//    |====|====|   |====|====|   |====|====|          |====|====| ...
//    a span is read KU x DN vectors at a time: each work-item has KU loads on their way before the first is needed
//
// Work-group: DN work-items, DN a power of two. Any number of vectors below 2^31, any span, any number of work-groups.
// Idea: nothing but reading. The sums make every load necessary; whole numbers are added without rounding, so that whoever
// checks them finds a word that was left out, or read twice, whatever the order.

typedef TOPRUNG_JOIN(uint, VEC) words_t;
#define WORD(v, e) (((uint *)&(v))[e])

void add(words_t *acc, const words_t *v)
{
#ifdef __OPENCL_VERSION__
    *acc += *v;
#else // CUDA's vectors have no arithmetic of their own
    for (int e = 0; e < VEC; ++e) ((uint *)acc)[e] += ((const uint *)v)[e];
#endif
}

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
stream_read(const uint vectors, const uint span, __global const words_t *restrict src, __global uint *restrict sums)
{
    __local uint partial[DN];
    const uint tid = get_local_id(0);

    words_t acc[2]; // two, so that an addition need not wait for the one before it
    for (int e = 0; e < VEC; ++e) WORD(acc[0], e) = WORD(acc[1], e) = 0;
    for (uint first = get_group_id(0) * span; first < vectors; first += get_num_groups(0) * span) {
        const uint end = vectors - first < span ? vectors : first + span;
        uint i = first + tid;
        for (; i + (KU - 1) * DN < end; i += KU * DN) {
            words_t v[KU];
            UNROLL for (int u = 0; u < KU; ++u) v[u] = src[i + u * DN];
            UNROLL for (int u = 0; u < KU; ++u) add(&acc[u % 2], &v[u]);
        }
        for (; i < end; i += DN) {
            const words_t v = src[i];
            add(&acc[0], &v);
        }
    }
    add(&acc[0], &acc[1]);

    uint sum = 0;
    for (int e = 0; e < VEC; ++e) sum += WORD(acc[0], e);
    partial[tid] = sum;
    barrier(CLK_LOCAL_MEM_FENCE); // the partial sums are complete
    for (uint stride = DN / 2; stride > 0; stride /= 2) {
        if (tid < stride) partial[tid] += partial[tid + stride];
        barrier(CLK_LOCAL_MEM_FENCE); // this level of the tree is complete
    }
    if (tid == 0) sums[get_group_id(0)] = partial[0];
}
