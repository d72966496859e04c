// CUDA C++ for a CPU, included before a kernel's text, which stays as it is; the headers beside this one stand in for those of the same
// names, whose functions are instructions. A cluster runs at a time, a coroutine for each of its threads. Shared memory is thread-local
// to the one thread that runs them all: a block of a cluster is a copy of the library, with variables of its own. What all copies and
// kernels of the process have in common is ``inline`` here.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

using std::max;
using std::min;
#define ffma ffma_kernel // the C library has another one

typedef unsigned int uint;
typedef unsigned long long word;
#define ulong word

#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __shared__ thread_local
#define __grid_constant__
#define __noinline__
#define __align__(n) __attribute__((aligned(n)))

struct Index {
    int x, y, z;
};
inline Index gridDim, blockDim;

struct float2 {
    float x, y;
};
struct __align__(16) float4 {
    float x, y, z, w;
};
struct uint2 { // kernels write pairs to global memory alone, where others do not see them yet
    uint x, y;
    uint2 &operator=(const uint2 &other);
};
struct __align__(16) uint4 {
    uint x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint x, uint y, uint z, uint w) { return {x, y, z, w}; }

template <class To, class From> inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline uint __float_as_uint(float x) { return bits_as<uint>(x); }
inline float __uint_as_float(uint x) { return bits_as<float>(x); }
inline float __int_as_float(int x) { return bits_as<float>(x); }
inline double __hiloint2double(int high, int low) { return bits_as<double>((word)(uint)high << 32 | (uint)low); }
inline int __ffs(uint x) { return __builtin_ffs((int)x); }
inline int __ffsll(word x) { return __builtin_ffsll((long long)x); }
inline int __popc(uint x) { return __builtin_popcount(x); }
inline int __popcll(word x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((uint)x) : 32; }
inline uint __umulhi(uint x, uint y) { return (uint)((word)x * y >> 32); }
inline uint __vmaxu2(uint x, uint y) { return max(x & 0xffff, y & 0xffff) | max(x >> 16, y >> 16) << 16; }
inline uint __byte_perm(uint x, uint y, uint which) {
    word both = x | (word)y << 32;
    uint found = 0;
    for (int i = 0; i < 4; ++i) found |= (uint)(both >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    return found;
}
template <class T> inline T __ldcg(const T *p) { return *p; }
inline void __trap() { abort(); }

// A table of all fp16, as many CPUs convert them in software.
inline struct Halves {
    float wide[1 << 16];
    Halves() {
        for (int i = 0; i < 1 << 16; ++i) wide[i] = (float)bits_as<_Float16>((unsigned short)i);
    }
} halves;
inline float wide(unsigned short half) { return halves.wide[half]; }

// --- threads -------------------------------------------------------------------------------------------------------------------

// A thread runs until it waits or yields. The next one is the least late of four that are drawn from those that are ready; blocks and
// warps have drawn how late they are, alike in every launch. So a kernel that lacks a barrier meets an order that shows it. If no thread
// is ready, they wait for each other for ever, and the launch ends.
struct Thread {
    ucontext_t context; // where it begins
    jmp_buf at;         // where it goes on; swapcontext would make a system call for each change of threads
    bool began;
    Index index, block;
    int rank; // of its block in the cluster
    int late;
    int arrived;               // at the cluster's meeting, how often all had come before
    uint epoch, fences;        // how often its warp has waited for all its lanes, and it for its writes to be seen; see ``Note``
    uint let_go;               // the epoch of its last arrival anywhere
    bool may_multiply;         // its registers are the Tensor Cores' since its last ``wgmma_fence``
    bool unknown, unseen, stale; // it wrote to global memory what other threads, or copies, do not see yet; copies do not see what it waited for
    Thread *next;              // another one that waits for the same
    struct Copy *first, *last; // its copies that are not made yet
    std::vector<std::pair<uint, uint>> copies, stores; // bytes of shared memory that it copies into, and those that are copied from
};
inline Thread *self, *ready[16 * 1024], *copying[16 * 1024];
inline uint ready_count, copying_count, copies_a_turn;
inline Thread *const all = new Thread[16 * 1024 + 1], *const host = all + 16 * 1024; // ``host`` launches; none is ever destroyed
inline int running, waiting_for_ever; // threads of the cluster, and of the launch
// A fence or a wait that a GPU needs and a kernel lacks, though all goes well here; the first one counts.
enum Lack { BARRIERS_NOT_SHOWN = 1, REGISTERS_NOT_FENCED, WRITES_NOT_FENCED, LANES_NOT_WAITED_FOR, GLOBAL_NOT_FENCED };
inline int lacking;
inline void lacks(Lack one) {
    if (!lacking) lacking = one;
}
inline uint epochs; // of the clusters before
inline word drawn;
#define threadIdx self->index
#define blockIdx self->block

struct Waiting {
    Thread *last;
    void stop() {
        self->next = last, last = self;
        stop_self();
    }
    void wake() {
        for (; last; last = last->next) ready[ready_count++] = last;
    }
    static void stop_self();
};
struct Barrier { // a phase ends when nobody is missing and no bytes are
    uint at;
    int arrivals, missing, phase;
    bool shown; // to other blocks and to what copies
    long long bytes;
    Waiting waiting;
};
struct Meeting {
    int threads, missing, met;
    Waiting waiting;
    void begin(int n) { *this = {n, n}; }
    int arrive() {
        int before = met;
        if (!--missing) missing = threads, ++met, waiting.wake();
        return before;
    }
    void wait(int before);
    void arrive_and_wait() { wait(arrive()); }
};
struct Block {
    Meeting all, warps[32], named[16];
    uint exchanged[1024];
    Barrier barriers[64];
    int count;
    char *memory;       // its dynamic shared memory: others, shared_address has how far behind it they are
    struct Note *notes; // of each two bytes of it, and of MEMORY on both sides
    uint let_go[32];    // the epoch of each warp's last arrival by any lane
};
constexpr uint MEMORY = 1 << 18;
inline Block blocks[16]; // of a cluster
inline Meeting of_cluster;
inline int rank;
inline Block *mine = blocks;
inline char *at_byte(uint at) { return mine->memory + (int)at; }

inline uint draw(uint n) { return (uint)((drawn = drawn * 6364136223846793005u + 1442695040888963407u) >> 33) % n; }
inline Thread *&drawn_of(Thread **some, uint count) {
    Thread **found = some + draw(count);
    for (int i = 1; i < 4; ++i) {
        Thread **other = some + draw(count);
        if ((*other)->late < (*found)->late) found = other;
    }
    return *found;
}

// Asynchronous copies are made in each thread's order: at once, one whenever a thread stops, or when no thread is ready. Each cluster
// draws which.
struct Copy {
    void (*make)(Copy *);
    Block *block; // whose memory is meant
    Copy *next;
    __align__(8) char what[96];
};
inline void go_on(Thread *with) {
    if (with->began) _longjmp(with->at, 1);
    with->began = true, setcontext(&with->context);
}
inline void make_copy(Thread *of) {
    Copy *copy = of->first;
    Block *was = mine;
    of->first = copy->next, mine = copy->block;
    copy->make(copy);
    mine = was;
    delete copy;
}
inline void make_a_copy() { // anybody's
    Thread *&one = drawn_of(copying, copying_count);
    make_copy(one);
    if (!one->first) one = copying[--copying_count];
}
inline void make_own_copies() {
    if (!self->first) return;
    while (self->first) make_copy(self);
    *std::find(copying, copying + copying_count, self) = copying[copying_count - 1], --copying_count;
}
template <class F> inline void later(F f) {
    static_assert(sizeof f <= sizeof Copy::what);
    Block *was = mine;
    if (copies_a_turn > 1) {
        f(), mine = was;
        return;
    }
    Copy *copy = new Copy{[](Copy *copy) { (*(F *)copy->what)(); }, mine};
    new (copy->what) F(f);
    if (!self->first) self->first = copy, copying[copying_count++] = self;
    else self->last->next = copy;
    self->last = copy;
}

void Waiting::stop_self() { // until somebody makes it ready
    Thread *stopped = self;
    if (copies_a_turn && copying_count) make_a_copy();
    while (!ready_count && copying_count) make_a_copy();
    if (!ready_count) waiting_for_ever = running, go_on(host);
    Thread *&next = drawn_of(ready, ready_count);
    self = next, next = ready[--ready_count];
    rank = self->rank, mine = &blocks[rank];
    if (self != stopped && !_setjmp(stopped->at)) go_on(self);
}
inline void others_first() { ready[ready_count++] = self, Waiting::stop_self(); }
void Meeting::wait(int before) {
    if (met != before) others_first();
    else waiting.stop();
}

inline void lets_go() { self->let_go = mine->let_go[threadIdx.x / 32] = self->epoch; }
inline void warp_meets() { mine->warps[threadIdx.x / 32].arrive_and_wait(); } // and orders no memory
inline void __syncthreads() { lets_go(), mine->all.arrive_and_wait(), ++self->epoch; }
inline void __syncwarp() { warp_meets(), ++self->epoch; }
inline void named_barrier(int name, int threads) { // bar.sync
    Meeting &those = mine->named[name];
    if (!those.threads) those.begin(threads);
    lets_go(), those.arrive_and_wait(), ++self->epoch;
}

template <class F> inline uint over(Meeting &who, int first, int threads, uint own, F f) {
    uint *exchanged = mine->exchanged;
    exchanged[threadIdx.x] = own;
    who.arrive_and_wait();
    uint found = exchanged[first];
    for (int i = 1; i < threads; ++i) found = f(found, exchanged[first + i]);
    who.arrive_and_wait();
    return found;
}
template <class F> inline uint over_warp(uint own, F f) { return over(mine->warps[threadIdx.x / 32], threadIdx.x / 32 * 32, 32, own, f); }
inline int threads_of_block;
inline int __syncthreads_or(int own) {
    return over(mine->all, 0, threads_of_block, own, [](uint x, uint y) { return x | y; });
}
inline int __reduce_max_sync(uint, int x) {
    return over_warp(x, [](uint x, uint y) { return (uint)max((int)x, (int)y); });
}
inline uint __reduce_max_sync(uint, uint x) {
    return over_warp(x, [](uint x, uint y) { return max(x, y); });
}
inline uint __reduce_or_sync(uint, uint x) {
    return over_warp(x, [](uint x, uint y) { return x | y; });
}
inline uint __reduce_add_sync(uint, uint x) {
    return over_warp(x, [](uint x, uint y) { return x + y; });
}
inline uint __ballot_sync(uint, bool own) {
    return over_warp((uint)own << threadIdx.x % 32, [](uint x, uint y) { return x | y; });
}
inline bool __any_sync(uint, bool own) {
    return over_warp(own, [](uint x, uint y) { return x | y; });
}
inline bool __all_sync(uint, bool own) {
    return over_warp(own, [](uint x, uint y) { return x & y; });
}
template <class T> inline T __shfl_sync(uint, T x, uint lane) { // another lane's four bytes
    uint *exchanged = mine->exchanged;
    exchanged[threadIdx.x] = bits_as<uint>(x);
    warp_meets();
    uint found = exchanged[threadIdx.x / 32 * 32 + lane % 32];
    warp_meets();
    return bits_as<T>(found);
}
template <class T> inline T __shfl_xor_sync(uint all, T x, int other) { return __shfl_sync(all, x, threadIdx.x % 32 ^ other); }

// --- who may read and write ------------------------------------------------------------------------------------------------------

// A lane may read what another lane of its warp wrote to shared memory, or overwrite what that one read, only after a wait of the warp:
// shuffles and votes order nothing. Other warps may after an arrival of that thread, or of a lane of its warp that has waited for it;
// whether they waited for the arrival is not checked. Copies and Tensor Cores see only what the writing thread has fenced since.
struct Note {
    uint written, fences, read, lanes; // epochs of the last write and read, fences of the writer by then, and the lanes that read
    unsigned short writer, warp;       // the writer, and the readers' warp
};
inline Note *notes(uint at) {
    if (!mine->notes) mine->notes = (Note *)calloc(3 * MEMORY / 2, sizeof(Note)) + MEMORY / 2;
    return mine->notes + (int)at / 2;
}
inline Thread *of_block();
inline bool is_let_go(uint thread, uint epoch) {
    return epoch <= epochs || epoch < mine->let_go[thread / 32] || epoch <= of_block()[thread].let_go;
}
inline bool may_follow_write(const Note &n) { // of the thread that runs, behind the last write
    if (n.writer / 32 == threadIdx.x / 32) return n.written != self->epoch || n.writer == threadIdx.x;
    return is_let_go(n.writer, n.written);
}
inline bool may_follow_reads(const Note &n) {
    if (n.warp == threadIdx.x / 32) return n.read != self->epoch || !(n.lanes & ~(1u << threadIdx.x % 32));
    for (uint lane = 0; lane < 32; ++lane)
        if (n.lanes >> lane & 1 && !is_let_go(32 * n.warp + lane, n.read)) return false;
    return true;
}
inline void reads(uint at, uint bytes) {
    unsigned short warp = threadIdx.x / 32;
    for (Note *n = notes(at), *end = n + bytes / 2; n < end; ++n) {
        if (!may_follow_write(*n)) lacks(LANES_NOT_WAITED_FOR);
        if (n->read != self->epoch || n->warp != warp) n->read = self->epoch, n->warp = warp, n->lanes = 0;
        n->lanes |= 1u << threadIdx.x % 32;
    }
}
inline void writes(uint at, uint bytes) {
    for (Note *n = notes(at), *end = n + bytes / 2; n < end; ++n) {
        if (!may_follow_write(*n) || !may_follow_reads(*n)) lacks(LANES_NOT_WAITED_FOR);
        n->written = self->epoch, n->writer = threadIdx.x, n->fences = self->fences;
    }
}
inline void asynchronously_written(uint at, uint bytes) {
    for (Note *n = notes(at), *end = n + bytes / 2; n < end; ++n) n->written = n->read = 0;
}
inline void asynchronously_read(uint at, uint bytes) {
    for (Note *n = notes(at), *end = n + bytes / 2; n < end; ++n)
        if (n->written > epochs && of_block()[n->writer].fences == n->fences) lacks(WRITES_NOT_FENCED);
}
inline uint2 &uint2::operator=(const uint2 &other) {
    self->unknown = self->unseen = true;
    return x = other.x, y = other.y, *this;
}
inline void __stcg(float *to, float v) { *to = v, self->unknown = true; }
inline void __threadfence() { self->unknown = false; }
inline void published(int first, int threads) { // what threads of the block wrote to global memory, before a flag says so
    for (Thread *t = of_block() + first, *end = t + threads; t < end; ++t)
        if (t->unknown || t->unseen) lacks(GLOBAL_NOT_FENCED);
}

inline word atomicAdd(word *p, word more) { return __atomic_fetch_add(p, more, __ATOMIC_SEQ_CST); }
inline uint atomicAdd(uint *p, uint more) { // of claims, behind what the warpgroup wrote
    published(threadIdx.x / 128 * 128, 128);
    return __atomic_fetch_add(p, more, __ATOMIC_SEQ_CST);
}

inline Thread *of_block() { return all + (mine - blocks) * threads_of_block; }

// --- launches ------------------------------------------------------------------------------------------------------------------

struct Part { // of a cluster: a copy of the library
    void (*kernel)(void **values);
    char *(*memory)(); // of the thread that launches
    int (*launch)(Part **each, int size, int groups_x, int groups_y, int threads, void **values);
    int arguments, left_out; // the number of the fence that is none; -1 for none

    struct { // by number: where in the text, and in which function once it ran
        const char *place, *function;
        int line;
    } fences[64];
};
inline Part **parts;
inline void **values;

inline void run_thread() {
    parts[self->rank]->kernel(values);
    if (--running) Waiting::stop_self(); // nobody makes it ready again
    go_on(host);
}

struct Stacks { // each behind memory that nothing may touch
    static constexpr size_t SIZE = 1 << 17, FREE = 1 << 14;
    size_t bytes;
    char *first;
    explicit Stacks(int n) : bytes(n * SIZE) {
        first = (char *)mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        for (int i = 0; i < n; ++i)
            if (first == MAP_FAILED || mprotect(of(i) + FREE, SIZE - FREE, PROT_READ | PROT_WRITE)) perror("stacks"), abort();
    }
    ~Stacks() { munmap(first, bytes); }
    char *of(int i) const { return first + i * SIZE; }
};

// A cluster's blocks are along y if the grid is, else along x.
inline int launch(Part **each, int size, int groups_x, int groups_y, int threads, void **given) {
    parts = each, values = given, gridDim = {groups_x, groups_y, 1}, threads_of_block = threads;
    drawn = 1, waiting_for_ever = lacking = 0;
    Stacks stacks(size * threads);
    for (int first = 0; first < groups_x * groups_y && !waiting_for_ever; first += size) {
        of_cluster.begin(size * threads), copies_a_turn = draw(3);
        uint last = epochs;
        for (int r = 0; r < size; ++r) {
            Block &b = blocks[r];
            b.all.begin(threads), b.count = 0, b.memory = parts[r]->memory();
            memset(b.let_go, 0, sizeof b.let_go);
            for (Meeting &warp : b.warps) warp.begin(32);
            for (Meeting &some : b.named) some = {};
        }
        for (int i = 0, late_block, late_warp; i < size * threads; ++i) {
            if (i % threads == 0) late_block = draw(4);
            if (i % threads % 32 == 0) late_warp = draw(4);
            Thread &t = all[i];
            int block = first + i / threads;
            t.index = {i % threads, 0, 0}, t.block = {block / groups_y, block % groups_y, 0}, t.rank = i / threads;
            t.late = 4 * late_block + late_warp, t.first = nullptr, t.began = t.may_multiply = t.unknown = t.unseen = t.stale = false;
            t.epoch = epochs + 1, t.fences = t.let_go = 0, t.copies.clear(), t.stores.clear();
            getcontext(&t.context);
            t.context.uc_stack.ss_sp = stacks.of(i), t.context.uc_stack.ss_size = stacks.SIZE;
            makecontext(&t.context, run_thread, 0);
            ready[ready_count++] = &t;
        }
        running = size * threads, self = host, host->began = true;
        Waiting::stop_self();
        while (copying_count) make_a_copy();
        for (int i = 0; i < size * threads; ++i) last = max(last, all[i].epoch);
        epochs = last;
    }
    return waiting_for_ever ? waiting_for_ever : -lacking;
}

// --- of each copy --------------------------------------------------------------------------------------------------------------

#pragma GCC visibility push(hidden)

__shared__ __align__(1024) char memory[MEMORY], patches[MEMORY / 2]; // the names of dynamic shared memory in kernels
inline Part part{.left_out = -1};

// Calls that order what threads write and read; each can be left out by its number.
constexpr int FIRST_FENCE = __COUNTER__ + 1;
template <int NUMBER, int LINE, class Place> struct Fence {
    static inline bool known = (part.fences[NUMBER] = {Place()(), nullptr, LINE}, true);
};
template <int NUMBER, int LINE, class Place> inline bool stands(Place, const char *function = __builtin_FUNCTION()) {
    part.fences[NUMBER].function = function;
    return Fence<NUMBER, LINE, Place>::known && part.left_out != NUMBER;
}
#define FENCE(name) (stands<__COUNTER__ - FIRST_FENCE, __LINE__>([] { return __FILE__ " " #name; }) ? name() : (void)0)
#define __syncwarp() FENCE(__syncwarp)
#define __threadfence() FENCE(__threadfence)

template <class... P, size_t... I> inline void call(void (*kernel)(P...), void **values, std::index_sequence<I...>) {
    kernel(*(P *)values[I]...);
}
template <auto *KERNEL> struct Entry;
template <class... P, void (*KERNEL)(P...)> struct Entry<KERNEL> {
    static constexpr int arguments = sizeof...(P);
    static void run(void **values) { call(KERNEL, values, std::index_sequence_for<P...>()); }
};
template <auto *KERNEL> inline Part *filled() {
    part.kernel = Entry<KERNEL>::run, part.memory = [] { return memory; }, part.launch = launch;
    part.arguments = Entry<KERNEL>::arguments;
    return &part;
}

// stands behind the kernel's text
#define LAUNCHES(kernel) extern "C" __attribute__((visibility("default"))) Part *part_of() { return filled<kernel>(); }
