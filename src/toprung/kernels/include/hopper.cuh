// Instructions for Hopper's Tensor Cores and TMA, as functions: each is one instruction of the PTX ISA, or the few that belong
// together. Addresses into shared memory are 32 bits (shared_address); a stage of the ring is rows of 128 bytes, swizzled.

typedef unsigned int uint;
typedef unsigned long long ulong;

struct __align__(64) TensorMap { // what cuTensorMapEncodeTiled makes
    ulong opaque[16];
};

inline uint shared_address(const void *p) { return (uint)__cvta_generic_to_shared(p); }

// --- barriers that count arrivals and bytes ---------------------------------------------------------------------------------

inline void barrier_init(uint bar, uint arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory"); }

// makes the initialised barriers visible to the other blocks of the cluster and to the TMA
inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// one arrival, and ``bytes`` to wait for besides
inline void barrier_expect(uint bar, uint bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// By one lane for its warp, behind ``__syncwarp()`` where lanes read or wrote themselves: that orders what the others did before it.
// compute-sanitizer's racecheck does not follow it, and reports their reads against what overwrites the stage (docs/testing.md).
inline void barrier_arrive(uint bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }

// an arrival at the barrier in the same place of another block of the cluster
inline void barrier_arrive_at(uint bar, uint rank) {
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(bar), "r"(rank) : "memory");
}

inline bool barrier_passed(uint bar, uint parity) {
    uint passed;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(passed) : "r"(bar), "r"(parity) : "memory");
    return passed;
}

// waits for the end of the phase of this parity; a new barrier is in phase 0, so that waiting for parity 1 returns at once
inline void barrier_wait(uint bar, uint parity) {
#if defined(SPIN_LIMIT) && SPIN_LIMIT
    for (uint tries = 0; !barrier_passed(bar, parity); ++tries)
        if (tries > SPIN_LIMIT) __trap();
#else
    while (!barrier_passed(bar, parity)) {}
#endif
}

inline void cluster_sync() { asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory"); }

inline uint cluster_rank() {
    uint rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// --- TMA ---------------------------------------------------------------------------------------------------------------------

// a box of a matrix into shared memory: x counts elements along a row, y rows; what lies outside the matrix arrives as zeros
inline void tma_load(uint to, const TensorMap *map, int x, int y, uint bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}

// the same into the same place of every block whose bit is set; each one's own barrier counts the bytes
inline void tma_load_all(uint to, const TensorMap *map, int x, int y, uint bar, unsigned short blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar), "h"(blocks) : "memory");
}

inline void tma_prefetch(const TensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// what threads wrote to shared memory becomes visible to the TMA and the Tensor Cores
inline void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- Tensor Cores ------------------------------------------------------------------------------------------------------------

// where a tile lies: rows of 128 bytes along K, swizzled by 128 bytes, eight rows (1024 bytes) after eight rows. The tile begins on
// 1024 bytes; adding to the address moves along K within the row.
inline ulong tile_at(uint address) {
    return (ulong)((address & 0x3FFFF) >> 4) | (1ull << 16) | ((ulong)(1024 >> 4) << 32) | (1ull << 62);
}

inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> inline void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

// the compiler may neither read these registers earlier nor write them later than this
template <int N> inline void pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int REGISTERS> inline void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
template <int REGISTERS> inline void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define N0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define N1 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define N2 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define N3 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define N4 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define N5 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define N6 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define N7 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// D (64×N, fp32, in the registers of a warpgroup) = A·Bᵀ + (accumulate ? D : 0) for 16 of K; A is 64×16 and B N×16 in shared memory
template <int N> inline void wgmma(float (&d)[N / 2], ulong a, ulong b, int accumulate);
#define WGMMA(N, NAMES, A, B, P, ...)                                                                                              \
    template <> inline void wgmma<N>(float (&d)[N / 2], ulong a, ulong b, int accumulate) {                                        \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N                            \
                     "k16.f32.f16.f16 {" NAMES "}, " A ", " B ", p, 1, 1, 0, 0;\n}"                                                \
                     : __VA_ARGS__                                                                                                 \
                     : "l"(a), "l"(b), "r"(accumulate)                                                                             \
                     : "memory");                                                                                                  \
    }
WGMMA(32, N0, "%16", "%17", "%18", D16(0))
WGMMA(64, N0 N1, "%32", "%33", "%34", D16(0), D16(16))
WGMMA(96, N0 N1 N2, "%48", "%49", "%50", D16(0), D16(16), D16(32))
WGMMA(128, N0 N1 N2 N3, "%64", "%65", "%66", D16(0), D16(16), D16(32), D16(48))
WGMMA(160, N0 N1 N2 N3 N4, "%80", "%81", "%82", D16(0), D16(16), D16(32), D16(48), D16(64))
WGMMA(192, N0 N1 N2 N3 N4 N5, "%96", "%97", "%98", D16(0), D16(16), D16(32), D16(48), D16(64), D16(80))
WGMMA(256, N0 N1 N2 N3 N4 N5 N6 N7, "%128", "%129", "%130", D16(0), D16(16), D16(32), D16(48), D16(64), D16(80), D16(96), D16(112))

// --- kernels that follow each other -------------------------------------------------------------------------------------------

// Launched so that it may overlap the kernel before it in the stream: waits until that one is done and its writes are seen.
inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// lets the next kernel in the stream take what this one leaves free; what it may read is governed by its own wait
inline void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
