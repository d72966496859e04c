// What a kernel needs besides hopper.cuh that splits operands itself: copies of a few bytes that do not wait, matrix instructions
// that take A from registers, and reading another block's shared memory.

// BYTES (4, 8 or 16) from global to shared memory, of which the first ``valid`` are read and the others become zeros
template <int BYTES> inline void copy_async(uint to, const float *from, int valid) {
    if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid) : "memory");
}

// the same of all BYTES, or zeros: ``from`` is not read then
template <int BYTES> inline void copy_async_if(uint to, const float *from, bool there) {
    if (BYTES == 16)
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %2, 0;\ncp.async.cg.shared.global [%0], [%1], 16, p;\n}" ::"r"(to), "l"(from), "r"((uint)there) : "memory");
    else
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %3, 0;\ncp.async.ca.shared.global [%0], [%1], %2, p;\n}" ::"r"(to), "l"(from), "n"(BYTES), "r"((uint)there) : "memory");
}

// all copies of this thread are there
inline void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// one of the arrivals that the barrier counts, as soon as this thread's copies up to here are there
inline void barrier_arrive_copied(uint bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

inline float4 shared_four(uint at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}

inline float2 shared_two(uint at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
    return v;
}

inline float shared_one(uint at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
}

inline uint shared_half(uint at) { // two bytes
    unsigned short v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}

inline void shared_put(uint at, uint a, uint b, uint c, uint d) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

inline void shared_put(uint at, uint a, uint b) { asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(at), "r"(a), "r"(b) : "memory"); }

inline void shared_put(uint at, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

inline void shared_put_half(uint at, uint v) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"((unsigned short)v) : "memory"); }

inline void shared_put(uint at, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory"); }

// bytes, a multiple of 16, from shared to global memory, both aligned to 16 bytes; the TMA reads them later
inline void bulk_store(float *to, uint from, uint bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

// waits until the TMA has read what this thread gave it
inline void bulk_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// a float in the same place of another block of the cluster
inline float shared_of(uint at, uint rank) {
    float v;
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %1, %2;\nld.shared::cluster.f32 %0, [remote];\n}" : "=f"(v) : "r"(at), "r"(rank) : "memory");
    return v;
}

// D (64×N, fp32, in the registers of a warpgroup) = A·Bᵀ + (accumulate ? D : 0) for 16 of K; A is 64×16 in registers, two fp16 in each,
// B N×16 in shared memory. The thread has rows lane/4 and lane/4 + 8 of its warp's 16, a[0] and a[1], and 8 of K further a[2] and a[3].
template <int N> inline void wgmma_rs(float (&d)[N / 2], const uint (&a)[4], ulong b, int accumulate);
#define WGMMA_RS(N, NAMES, A0, A1, A2, A3, B, P, ...)                                                                              \
    template <> inline void wgmma_rs<N>(float (&d)[N / 2], const uint (&a)[4], ulong b, int accumulate) {                          \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N                            \
                     "k16.f32.f16.f16 {" NAMES "}, {" A0 "," A1 "," A2 "," A3 "}, " B ", p, 1, 1, 0;\n}"                           \
                     : __VA_ARGS__                                                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)                                         \
                     : "memory");                                                                                                  \
    }
WGMMA_RS(32, N0, "%16", "%17", "%18", "%19", "%20", "%21", D16(0))
WGMMA_RS(64, N0 N1, "%32", "%33", "%34", "%35", "%36", "%37", D16(0), D16(16))
WGMMA_RS(96, N0 N1 N2, "%48", "%49", "%50", "%51", "%52", "%53", D16(0), D16(16), D16(32))
WGMMA_RS(128, N0 N1 N2 N3, "%64", "%65", "%66", "%67", "%68", "%69", D16(0), D16(16), D16(32), D16(48))
