// C = alpha * op(A) * op(B) + beta * C       tiled.cl, but the slices of K are the blocks of a cluster, which add up in one launch
//
//      sums of a work-item:    slice 0     slice 1     slice 2
//                      row 0      +  <------  *  <------  *       a work-item has TM rows of sums in each block; a row goes to the
//                      row 1      *  ------>  +  <------  *       block whose slice is row % SLICES (+), which adds up what all
//                      row 2      *  ------>  *  ------>  +       have of it, in the order of slices, and writes it
//                      row 3      +  <------  *  <------  *
//
// SLICES             blocks of a cluster, at most TM, none of whose slices is empty
//
// Grid: (blocks * batch, SLICES), cluster (1, SLICES). Shared memory: the tiles, and SLICES * ROWS rows of sums of each work-item.
// The others are as in tiled.cl. CUDA's alone: clusters are of compute capability 9.0 and on.
// Idea: without a second launch, and without memory for the slices. Sums go behind the tiles, which others may still read: so blocks
// meet once when they are done, and not before they send, too.

#define ROWS ((TM + SLICES - 1) / SLICES) // of a work-item's, that a block adds up at most
#define TILES_FLOATS (STAGES * BK * (BM + PADA + BN + PADB))

#undef room_for
#define room_for(x, y, z, groups) launch_bounds((x) * (y) * (z), groups), cluster_dims(1, SLICES, 1)

#define TILES                                                                                                                       \
    extern __shared__ __align__(16) char memory[];                                                                                  \
    float *const tiles = (float *)memory, *const sums = tiles + TILES_FLOATS;                                                       \
    float(*const As)[BK][BM + PADA] = (float(*)[BK][BM + PADA])tiles;                                                               \
    float(*const Bs)[BK][BN + PADB] = (float(*)[BK][BN + PADB])(tiles + STAGES * BK * (BM + PADA));                                 \
    cluster_begin(); /* this block has begun: only then has it memory that others may write */
#define SECOND_PASS 0
#define SUMS_OF(slice, i, j) (&sums[(((/*!place-of-slice*/(slice) * ROWS + (i) / SLICES) * (TN / VEC) + (j)) * (DM * DN) + tid) * VEC])
#define ADD_SLICES                                                                                                                  \
    const uint own = get_group_id(1);                                                                                               \
    cluster_wait(); /* all have begun, long ago */                                                                                  \
    UNROLL for (int i = 0; i < TM; ++i)                                                                                             \
        UNROLL for (int j = 0; j < TN / VEC; ++j) put(SUMS_OF(own, i, j), i % SLICES, whole[i][j]);                                 \
    /*!sums-are-here*/cluster_arrive(); /* what was sent is visible to those who wait */                                                              \
    /*!sums-are-here*/cluster_wait();                                                                                                                 \
    UNROLL for (int i = 0; i < TM; ++i)                                                                                             \
        if (WRITES(i)) UNROLL for (int j = 0; j < TN / VEC; ++j) {                                                                  \
                whole[i][j] = LOCAL_V(VEC, SUMS_OF(0, i, j));                                                                       \
                UNROLL for (int slice = /*!first-slice*/1; slice < SLICES; ++slice) whole[i][j] += LOCAL_V(VEC, SUMS_OF(slice, i, j));              \
            }
#define WRITES(i) ((i) % SLICES == own)

#include "../include/cluster.cuh"
#include "../tiled/tiled.cl"
