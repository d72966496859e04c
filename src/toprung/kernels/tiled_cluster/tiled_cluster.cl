// C = alpha * op(A) * op(B) + beta * C       tiled.cl, but the slices of K are the blocks of a cluster, which add up in one launch
//
//      slice          0          1          2
//      row 0 of a   sums  <--  sums  <--  sums      a work-item has TM rows of sums; each goes to the block whose slice is
//      row 1        sums  -->  sums  <--  sums      row % SLICES, which adds up what all have of it, in the order of
//      row 2        sums  -->  sums  -->  sums      slices, and writes it
//      row 3        sums  <--  sums  <--  sums
//
// SLICES             blocks of a cluster, at most TM
//
// Grid: (blocks * batch, SLICES). The others are as in tiled.cl. CUDA's alone: clusters are of compute capability 9.0 and on.
// Idea: without a second launch, and without memory for the slices. What a block gets lies behind its tiles in shared memory, so that
// nobody waits for its last tile: one meeting is enough.

#define ROWS ((TM + SLICES - 1) / SLICES) // of a work-item's, that a block adds up at most
#define TILES_FLOATS (STAGES * BK * (BM + PADA + BN + PADB))
#define SUMS_FLOATS (ROWS * SLICES * TN * DM * DN)

#undef room_for
#define room_for(x, y, z, groups) launch_bounds((x) * (y) * (z), groups), cluster_dims(1, SLICES, 1)

#define TILES                                                                                                                       \
    extern __shared__ __align__(16) char memory[];                                                                                  \
    float *const tiles = (float *)memory, *const sums = tiles + TILES_FLOATS;                                                       \
    float(*const As)[BK][BM + PADA] = (float(*)[BK][BM + PADA])tiles;                                                               \
    float(*const Bs)[BK][BN + PADB] = (float(*)[BK][BN + PADB])(tiles + STAGES * BK * (BM + PADA));                                 \
    cluster_arrive(); /* memory is there */
#define SECOND_PASS 0
#define SUMS_OF(slice, i, j) (&sums[((((slice) * ROWS + (i) / SLICES) * (TN / VEC) + (j)) * (DM * DN) + tid) * VEC])
#define ADD_SLICES                                                                                                                  \
    const uint own = get_group_id(1);                                                                                               \
    cluster_wait();                                                                                                                 \
    UNROLL for (int i = 0; i < TM; ++i)                                                                                             \
        UNROLL for (int j = 0; j < TN / VEC; ++j) put(SUMS_OF(own, i, j), i % SLICES, whole[i][j]);                                 \
    cluster_arrive();                                                                                                               \
    cluster_wait();                                                                                                                 \
    UNROLL for (int i = 0; i < TM; ++i)                                                                                             \
        if (WRITES(i)) UNROLL for (int j = 0; j < TN / VEC; ++j) {                                                                  \
                whole[i][j] = LOCAL_V(VEC, SUMS_OF(0, i, j));                                                                       \
                UNROLL for (int slice = 1; slice < SLICES; ++slice) whole[i][j] += LOCAL_V(VEC, SUMS_OF(slice, i, j));              \
            }
#define WRITES(i) ((i) % SLICES == own)

inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }

inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// the address of ``here`` in the shared memory of another block of the cluster
inline uint address_in(const float *here, uint rank) {
    uint there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((uint)__cvta_generic_to_shared(here)), "r"(rank));
    return there;
}

inline void put(const float *here, uint rank, float2 v) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address_in(here, rank)), "f"(v.x), "f"(v.y) : "memory");
}

inline void put(const float *here, uint rank, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address_in(here, rank)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

#include "../tiled/tiled.cl"
