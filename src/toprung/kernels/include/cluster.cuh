// Blocks of a cluster that send each other sums: how they meet, and how one writes into another's shared memory.
//
//      cluster_begin();  ... cluster_wait();    each has begun: only then has it memory that others may write
//      put(&sums[i], rank, v);                  v to the same place in the block ``rank`` of the cluster
//      cluster_arrive(); cluster_wait();        what was sent before is visible behind it

inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }

// an arrival that makes nothing visible: one with release waits for all of memory, 0.4 us
inline void cluster_begin() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }

inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// the address of ``here`` in the shared memory of another block of the cluster
inline uint address_in(const float *here, uint rank) {
    uint there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((uint)__cvta_generic_to_shared(here)), "r"(rank));
    return there;
}

inline void put(const float *here, uint rank, float v) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address_in(here, rank)), "f"(v) : "memory");
}

inline void put(const float *here, uint rank, float2 v) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address_in(here, rank)), "f"(v.x), "f"(v.y) : "memory");
}

inline void put(const float *here, uint rank, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address_in(here, rank)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
