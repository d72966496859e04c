// Instructions that the plain fp32 kernels need besides those of hopper.cuh.

#if IN_ORDER
#define LDS "ld.volatile.shared.v4.f32" // which the compiler may not exchange, and so spreads
#else
#define LDS "ld.shared.v4.f32"
#endif

inline float4 lds(uint at) {
    float4 v;
    asm volatile(LDS " {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}

inline void pad() { asm volatile("pmevent 0;"); } // an event for a profiler that nobody listens to

inline void sts(uint at, float x, float y, float z, float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

inline void consumers_meet() { asm volatile("bar.sync 2, %0;" ::"n"(32 * WARPS) : "memory"); }

// flags of other blocks, in global memory
inline uint peek(const uint *flag) {
    uint v;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
    return v;
}
inline void poke(uint *flag, uint v) { asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(flag), "r"(v) : "memory"); }
