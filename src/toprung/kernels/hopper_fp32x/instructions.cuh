// Instructions that the kernels in flight need besides those of hopper.cuh and hopper_rs.cuh.

inline void consumers_meet() { asm volatile("bar.sync 15, %0;" ::"n"(128 * CONSUMERS) : "memory"); } // of the block, not of the cluster

inline uint by_residual(uint two) { // two fp16, each times 2^-11
    uint product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(two), "r"(0x10001000u));
    return product;
}

// what threads wrote to global memory becomes visible to the TMA, and the other way round
inline void global_proxy_fence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

inline uint acquired(const uint *word) {
    uint value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

inline void group_sync() { asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory"); } // the threads of a warpgroup
