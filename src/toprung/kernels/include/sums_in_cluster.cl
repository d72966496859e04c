// Slices of K in the blocks of a cluster: sums of the skinny kernels meet in shared memory, and one launch adds them up.
//
//      SLICES     blocks of a cluster, none of whose slices is empty
//
// Sum ``at`` of a block goes to block at / SHARE of its cluster, which adds up those of all slices, in their order, and writes the
// result. Grid: (blocks * batch, SLICES), cluster (1, SLICES). CUDA's alone: clusters are of compute capability 9.0 and on.

#define SHARE ((SMALL * BM + SLICES - 1) / SLICES)

#undef room_for
#define room_for(x, y, z, groups) launch_bounds((x) * (y) * (z), groups), cluster_dims(1, SLICES, 1)

#define SECOND_PASS 0
#define MEETING_PLACE \
    __local float met[SLICES][SHARE]; \
    cluster_begin(); /* this block has begun: only then has it memory that others may write */
#define BEFORE_TAKING cluster_wait(); /* all have begun, long ago */
#define TAKE(at, sum) put(&met[/*!place-of-slice*/get_group_id(1)][(at) % SHARE], (at) / SHARE, sum)
#define ADD_SLICES \
    /*!sums-are-here*/cluster_arrive(); /* what was sent is visible to those who wait */ \
    /*!sums-are-here*/cluster_wait(); \
    UNROLL for (int n = 0; n < (SHARE + DM * DN - 1) / (DM * DN); ++n) { \
        const uint i = get_local_id(0) + n * DM * DN, at = /*!share-of-block*/get_group_id(1) * SHARE + i; \
        if (i < SHARE && at < SMALL * BM) { \
            float sum = met[0][i]; \
            UNROLL for (int slice = /*!first-slice*/1; slice < SLICES; ++slice) sum += met[slice][i]; \
            WRITE(at, sum); \
        } \
    }

#include "cluster.cuh"
