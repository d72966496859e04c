// How the skinny kernels end: a work-group has SMALL sums for each of BM rows or columns, sum ``at`` = s * BM + l, l within the block.
//
// TAKE(at, sum)   hands one over: writes it to C
//
// Where slices of K meet in this launch, in a cluster's blocks (kernels/skinny_cluster), TAKE sends it to the block that adds it up:
//
// MEETING_PLACE   at the beginning: shared memory for what comes
// BEFORE_TAKING   by all work-items
// ADD_SLICES      once all are taken: adds them up, and writes

#ifndef TAKE
#define SECOND_PASS (get_num_groups(1) > 1) // slices: C is scratch memory then
#define MEETING_PLACE
#define BEFORE_TAKING
#define TAKE(at, sum) WRITE(at, sum)
#define ADD_SLICES
#endif

#define WRITE(at, sum) /* C[s][l]; of the kernel: l0, L, few, C, down_c, on_c, alpha, beta */ \
    do { \
        const uint s_ = (at) / BM, l_ = l0 + (at) % BM; \
        if (s_ < few && l_ < L) { \
            const ulong c = s_ * down_c + l_ * on_c; \
            float result = alpha * (sum); \
            if (beta != 0.0f) result = MULTIPLY_ADD(1, beta, C[c], result); /* beta = 0 never reads C */ \
            C[c] = result; \
        } \
    } while (0)
