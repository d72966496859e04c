// What the texts of the hopper ladder's fp32x kernels need, for a CPU: a cluster at a time, a coroutine for each of its threads. Shared
// memory is static where it is not dynamic, each block's own in clusters; the copy engine does not swizzle; a matrix instruction is done
// at once, a loop over 16 of K for the elements that its thread holds.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

using std::max;
using std::min;
typedef unsigned int uint;
typedef unsigned long long word;
#define ulong word

#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __shared__ static
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

struct Index {
    int x, y, z;
};
static Index gridDim, blockDim;

struct float2 {
    float x, y;
};
struct __align__(16) float4 {
    float x, y, z, w;
};
struct uint2 {
    uint x, y;
};
struct __align__(16) uint4 {
    uint x, y, z, w;
};
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint4 make_uint4(uint x, uint y, uint z, uint w) { return {x, y, z, w}; }

#define __noinline__
template <class To, class From> static To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static uint __float_as_uint(float x) { return bits_as<uint>(x); }
static float __uint_as_float(uint x) { return bits_as<float>(x); }
static float __int_as_float(int x) { return bits_as<float>(x); }
static double __hiloint2double(int high, int low) { return bits_as<double>((word)(uint)high << 32 | (uint)low); }
static int __ffs(uint x) { return __builtin_ffs((int)x); }
static int __ffsll(word x) { return __builtin_ffsll((long long)x); }
static int __popc(uint x) { return __builtin_popcount(x); }
static int __popcll(word x) { return __builtin_popcountll(x); }
static int __clz(int x) { return x ? __builtin_clz((uint)x) : 32; }
template <class T> static T __ldcg(const T *p) { return *p; }
static word atomicAdd(word *p, word more) { return __atomic_fetch_add(p, more, __ATOMIC_SEQ_CST); }

// fp16; a table of all, as many CPUs convert them in software
static struct Halves {
    float wide[1 << 16];
    Halves() {
        for (int i = 0; i < 1 << 16; ++i) wide[i] = (float)bits_as<_Float16>((unsigned short)i);
    }
} halves;
static float wide(unsigned short half) { return halves.wide[half]; }
static uint pair_of(float low, float high) {
    return bits_as<unsigned short>((_Float16)low) | (uint)bits_as<unsigned short>((_Float16)high) << 16;
}
static float from_half(uint half) { return wide((unsigned short)half); }
static uint size_bits(float x) { return bits_as<uint>(x) & 0x7fffffff; }

// --- threads -------------------------------------------------------------------------------------------------------------------

// A thread runs until it waits, or lets others go on. Who does is drawn from those that can, in every launch alike: four of them, of
// whom the least late one goes on, where blocks and warps have drawn how late they are. So what lacks a barrier meets an order that
// shows it. If nobody can go on, they wait for each other for ever, and the launch ends.
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
    bool may_multiply;         // its registers are the matrix units' since its last ``wgmma_fence``
    bool unknown, unseen, stale; // writes of its to global memory that others, and copies, do not see; copies do not see what it waited for
    uint taken;                // bytes of the block's memory that it was given, see ``own_memory``
    Thread *next;              // who waits for the same
    struct Copy *first, *last; // what it asked for and was not copied yet
    std::vector<std::pair<uint, uint>> copies, stores; // bytes of shared memory that it copies into, and those that are copied from
};
static Thread *self, *ready[16 * 1024], *copying[16 * 1024];
static uint ready_count, copying_count, copies_a_turn;
static Thread host; // who launches
static int running, waiting_for_ever; // threads of the cluster, and of the launch
// What a kernel does without the fence or the wait that a GPU needs, though it goes well here; the first counts.
enum Lack { BARRIERS_NOT_SHOWN = 1, REGISTERS_NOT_FENCED, WRITES_NOT_FENCED, LANES_NOT_WAITED_FOR, GLOBAL_NOT_FENCED };
static int lacking;
static void lacks(Lack one) {
    if (!lacking) lacking = one;
}
static int outcome() { return waiting_for_ever ? waiting_for_ever : -lacking; }
static uint epochs; // of the clusters before
static word drawn;
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
    Meeting all, warps[32], warpgroups[8];
    uint exchanged[1024];
    Barrier barriers[64];
    int count;
    __align__(1024) char memory[1 << 19];
    struct Note *notes; // of each two bytes of it
    uint let_go[32];    // the epoch of each warp's last arrival by any lane
};
static Block blocks[16]; // of a cluster
static Meeting of_cluster;
static int rank;
static Block *mine = blocks;
#define dynamic_shared (mine->memory)

static uint draw(uint n) { return (uint)((drawn = drawn * 6364136223846793005u + 1442695040888963407u) >> 33) % n; }
static Thread *&drawn_of(Thread **some, uint count) {
    Thread **found = some + draw(count);
    for (int i = 1; i < 4; ++i) {
        Thread **other = some + draw(count);
        if ((*other)->late < (*found)->late) found = other;
    }
    return *found;
}

// What copies asynchronously copies later, in each thread's order: at once, while others go on, or when nobody can, as each cluster has
// drawn.
struct Copy {
    void (*make)(Copy *);
    Block *block; // whose memory is meant
    Copy *next;
    __align__(8) char what[96];
};
static void go_on(Thread *with) {
    if (with->began) _longjmp(with->at, 1);
    with->began = true, setcontext(&with->context);
}
static void make_copy(Thread *of) {
    Copy *copy = of->first;
    Block *was = mine;
    of->first = copy->next, mine = copy->block;
    copy->make(copy);
    mine = was;
    delete copy;
}
static void make_a_copy() { // anybody's
    Thread *&one = drawn_of(copying, copying_count);
    make_copy(one);
    if (!one->first) one = copying[--copying_count];
}
static void make_own_copies() {
    if (!self->first) return;
    while (self->first) make_copy(self);
    *std::find(copying, copying + copying_count, self) = copying[copying_count - 1], --copying_count;
}
template <class F> static void later(F f) {
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
    if (!ready_count) waiting_for_ever = running, go_on(&host);
    Thread *&next = drawn_of(ready, ready_count);
    self = next, next = ready[--ready_count];
    rank = self->rank, mine = &blocks[rank];
    if (self != stopped && !_setjmp(stopped->at)) go_on(self);
}
static void others_first() { ready[ready_count++] = self, Waiting::stop_self(); }
void Meeting::wait(int before) {
    if (met != before) others_first();
    else waiting.stop();
}
static void *own_memory(uint bytes) { // of a block, behind what is dynamic
    void *at = mine->memory + (1 << 18) + self->taken;
    self->taken += (bytes + 15) / 16 * 16;
    return at;
}

static void lets_go() { self->let_go = mine->let_go[threadIdx.x / 32] = self->epoch; }
static void warp_meets() { mine->warps[threadIdx.x / 32].arrive_and_wait(); } // and orders no memory
static void __syncthreads() { lets_go(), mine->all.arrive_and_wait(), ++self->epoch; }
static void __syncwarp() { warp_meets(), ++self->epoch; }
static void group_sync() { lets_go(), mine->warpgroups[threadIdx.x / 128].arrive_and_wait(), ++self->epoch; }
static void cluster_sync() { lets_go(), of_cluster.arrive_and_wait(), ++self->epoch; }
static void cluster_arrive() { lets_go(), self->arrived = of_cluster.arrive(); }
static void cluster_begin() { cluster_arrive(); }
static void cluster_wait() { of_cluster.wait(self->arrived), ++self->epoch; }
static void together(int) { group_sync(); }

template <class F> static uint over(Meeting &who, int first, int threads, uint own, F f) {
    uint *exchanged = mine->exchanged;
    exchanged[threadIdx.x] = own;
    who.arrive_and_wait();
    uint found = exchanged[first];
    for (int i = 1; i < threads; ++i) found = f(found, exchanged[first + i]);
    who.arrive_and_wait();
    return found;
}
template <class F> static uint over_warp(uint own, F f) { return over(mine->warps[threadIdx.x / 32], threadIdx.x / 32 * 32, 32, own, f); }
static int threads_of_block;
static int __syncthreads_or(int own) {
    return over(mine->all, 0, threads_of_block, own, [](uint x, uint y) { return x | y; });
}
static int __reduce_max_sync(uint, int x) {
    return over_warp(x, [](uint x, uint y) { return (uint)max((int)x, (int)y); });
}
static uint __reduce_max_sync(uint, uint x) {
    return over_warp(x, [](uint x, uint y) { return max(x, y); });
}
static uint __reduce_or_sync(uint, uint x) {
    return over_warp(x, [](uint x, uint y) { return x | y; });
}
static uint __reduce_add_sync(uint, uint x) {
    return over_warp(x, [](uint x, uint y) { return x + y; });
}
static uint __ballot_sync(uint, bool own) {
    return over_warp((uint)own << threadIdx.x % 32, [](uint x, uint y) { return x | y; });
}
static bool __any_sync(uint, bool own) {
    return over_warp(own, [](uint x, uint y) { return x | y; });
}
static bool __all_sync(uint, bool own) {
    return over_warp(own, [](uint x, uint y) { return x & y; });
}
template <class T> static T __shfl_sync(uint, T x, uint lane) { // another lane's four bytes
    uint *exchanged = mine->exchanged;
    exchanged[threadIdx.x] = bits_as<uint>(x);
    warp_meets();
    uint found = exchanged[threadIdx.x / 32 * 32 + lane % 32];
    warp_meets();
    return bits_as<T>(found);
}
template <class T> static T __shfl_xor_sync(uint all, T x, int other) { return __shfl_sync(all, x, threadIdx.x % 32 ^ other); }

// --- who may read and write ------------------------------------------------------------------------------------------------------

// Lanes of a warp see each other's writes to shared memory, and may overwrite what others have read, only behind a wait of the warp, as
// shuffles and votes order nothing. Other warps do so behind an arrival of that thread, or of a lane of its warp that has waited for it;
// where they wait for that is not looked at. What copies and multiplies sees only what the writing thread has fenced since.
struct Note {
    uint written, fences, read, lanes; // epochs of the last write and read, fences of the writer by then, and the lanes that read
    unsigned short writer, warp;       // the writer, and the readers' warp
};
static Note *notes(uint at) {
    if (!mine->notes) mine->notes = (Note *)calloc(sizeof mine->memory / 2, sizeof(Note));
    return mine->notes + at / 2;
}
static Thread *of_block();
static bool is_let_go(uint thread, uint epoch) {
    return epoch <= epochs || epoch < mine->let_go[thread / 32] || epoch <= of_block()[thread].let_go;
}
static bool may_follow_write(const Note &n) { // of the thread that runs, behind the last write
    if (n.writer / 32 == threadIdx.x / 32) return n.written != self->epoch || n.writer == threadIdx.x;
    return is_let_go(n.writer, n.written);
}
static bool may_follow_reads(const Note &n) {
    if (n.warp == threadIdx.x / 32) return n.read != self->epoch || !(n.lanes & ~(1u << threadIdx.x % 32));
    for (uint lane = 0; lane < 32; ++lane)
        if (n.lanes >> lane & 1 && !is_let_go(32 * n.warp + lane, n.read)) return false;
    return true;
}
static void reads(uint at, uint bytes) {
    unsigned short warp = threadIdx.x / 32;
    for (Note *n = notes(at), *end = n + bytes / 2; n < end; ++n) {
        if (!may_follow_write(*n)) lacks(LANES_NOT_WAITED_FOR);
        if (n->read != self->epoch || n->warp != warp) n->read = self->epoch, n->warp = warp, n->lanes = 0;
        n->lanes |= 1u << threadIdx.x % 32;
    }
}
static void writes(uint at, uint bytes) {
    for (Note *n = notes(at), *end = n + bytes / 2; n < end; ++n) {
        if (!may_follow_write(*n) || !may_follow_reads(*n)) lacks(LANES_NOT_WAITED_FOR);
        n->written = self->epoch, n->writer = threadIdx.x, n->fences = self->fences;
    }
}
static void asynchronously_written(uint at, uint bytes) {
    for (Note *n = notes(at), *end = n + bytes / 2; n < end; ++n) n->written = n->read = 0;
}
static void asynchronously_read(uint at, uint bytes) {
    for (Note *n = notes(at), *end = n + bytes / 2; n < end; ++n)
        if (n->written > epochs && of_block()[n->writer].fences == n->fences) lacks(WRITES_NOT_FENCED);
}
static void proxy_fence() { ++self->fences; }
static void published(int first, int threads) { // what threads of the block wrote to global memory, before a flag says so
    for (Thread *t = of_block() + first, *end = t + threads; t < end; ++t)
        if (t->unknown || t->unseen) lacks(GLOBAL_NOT_FENCED);
}

// --- hopper.cuh ----------------------------------------------------------------------------------------------------------------

static uint shared_address(const void *p) { return (uint)((const char *)p - dynamic_shared); }

static Barrier &barrier_at(uint at) {
    for (int i = 0; i < mine->count; ++i)
        if (mine->barriers[i].at == at) return mine->barriers[i];
    return mine->barriers[mine->count++] = Barrier{at};
}
static void changed(uint bar, int arrived, long long bytes) {
    Barrier &b = barrier_at(bar);
    if (!b.shown) lacks(BARRIERS_NOT_SHOWN);
    b.missing -= arrived, b.bytes += bytes;
    if (!b.missing && !b.bytes) b.phase ^= 1, b.missing = b.arrivals, b.waiting.wake();
}
static void others_perhaps() {
    if (draw(2)) others_first();
}
static void barrier_init(uint bar, uint arrivals) { barrier_at(bar) = Barrier{bar, (int)arrivals, (int)arrivals}; }
static void barrier_init_fence() {
    for (int i = 0; i < mine->count; ++i) mine->barriers[i].shown = true;
}
static void barrier_expect(uint bar, uint bytes) { lets_go(), changed(bar, 1, bytes), others_perhaps(); }
static void barrier_arrive(uint bar) { lets_go(), changed(bar, 1, 0), others_perhaps(); }
static void barrier_arrive_copied(uint bar) { lets_go(), later([=] { changed(bar, 1, 0); }), others_perhaps(); }
static void barrier_wait(uint bar, uint parity) {
    Barrier &b = barrier_at(bar);
    while (b.phase == (int)parity) b.waiting.stop();
}

static void send_remote(uint to, uint value, uint bar, uint rank) {
    later([=] {
        mine = &blocks[rank];
        memcpy(mine->memory + to, &value, sizeof value);
        changed(bar, 0, -(int)sizeof value);
    });
}

struct TensorMap {
    const unsigned short *from;
    long long rows, cols, box;
};
static void tma_prefetch(const TensorMap *) {}
static void tma_load(uint to, const TensorMap *of, int x, int y, uint bar) {
    later([=, map = *of] {
        for (int r = 0; r < map.box; ++r)
            for (int c = 0; c < 64; ++c) {
                bool inside = y + r < map.rows && x + c < map.cols;
                ((unsigned short *)(dynamic_shared + to))[64 * r + c] = inside ? map.from[(y + r) * map.cols + x + c] : 0;
            }
        asynchronously_written(to, 128 * map.box);
        changed(bar, 0, -128 * map.box);
    });
}

static word tile_at(uint address) { return address >> 4; }
static void wgmma_fence() { self->may_multiply = true; }
static void wgmma_commit() {}
template <int LEFT> static void wgmma_wait() { // one instruction of a warp: all its lanes have read
    warp_meets(), self->may_multiply = false;
}
static void multiplies() {
    if (!self->may_multiply) lacks(REGISTERS_NOT_FENCED);
}
template <int N> static void pin(float (&)[N]) {}
template <int REGISTERS> static void more_registers() {}
template <int REGISTERS> static void fewer_registers() {}

// A sum and 16 products of fp16 numbers as Hopper's Tensor Cores add them (benchmarks/split_model.py, held to the unit's bits): all
// are cut towards zero to multiples of 2^-25 of the largest one's leading bit, and their sum to the 24 bits of fp32.
struct UnitSum {
    double terms[17];
    int count = 0;
    static int exponent_of(double x) { return (int)(__builtin_bit_cast(unsigned long long, x) >> 52 & 0x7ff); }
    static double power(int e) { return __builtin_bit_cast(double, (unsigned long long)e << 52); } // e as ``exponent_of`` has it
    void add(double x) { terms[count++] = x; }
    float total() const {
        int top = 0;
        for (int i = 0; i < count; ++i) top = max(top, exponent_of(terms[i]));
        double sum = 0;
        if (top == 0 || top == 0x7ff) { // all are 0, or there is an Inf or a NaN
            for (int i = 0; i < count; ++i) sum += terms[i];
            return (float)sum;
        }
        double unit = power(top - 25), per_unit = power(2 * 1023 - top + 25);
        long long units = 0;
        for (int i = 0; i < count; ++i) units += (long long)(terms[i] * per_unit);
        sum = (double)units * unit;
        float near = (float)sum;
        return fabs((double)near) > fabs(sum) ? nextafterf(near, 0.0f) : near;
    }
};
template <int N> static void wgmma(float (&d)[N / 2], word a, word b, int accumulate) {
    multiplies();
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    for (int i = 0; i < N / 2; ++i) {
        const unsigned short *x = (unsigned short *)(dynamic_shared + (a << 4)) + 64 * (row + (i & 2) * 4);
        const unsigned short *y = (unsigned short *)(dynamic_shared + (b << 4)) + 64 * (i / 4 * 8 + lane % 4 * 2 + (i & 1));
        UnitSum sum;
        if (accumulate) sum.add(d[i]);
        for (int k = 0; k < 16; ++k) sum.add((double)wide(x[k]) * wide(y[k]));
        d[i] = sum.total();
    }
}
static void wait_for_previous() {}
static void let_next_start() {}

static Thread all[16 * 1024];
static Thread *of_block() { return all + (mine - blocks) * threads_of_block; }

// --- launches ------------------------------------------------------------------------------------------------------------------

template <class F> static F *body;
template <class F> static void run_body() {
    (*body<F>)();
    if (--running) Waiting::stop_self(); // nobody makes it ready again
    go_on(&host);
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

template <class F> static void each_cluster(int size, int groups, int threads, F kernel) {
    gridDim.x = groups, threads_of_block = threads, drawn = 1, waiting_for_ever = lacking = 0, body<F> = &kernel;
    Stacks stacks(size * threads);
    for (int first = 0; first < groups && !waiting_for_ever; first += size) {
        of_cluster.begin(size * threads), copies_a_turn = draw(3);
        uint last = epochs;
        for (int r = 0; r < size; ++r) {
            Block &b = blocks[r];
            b.all.begin(threads), b.count = 0;
            memset(b.let_go, 0, sizeof b.let_go);
            for (Meeting &warp : b.warps) warp.begin(32);
            for (Meeting &group : b.warpgroups) group.begin(128);
        }
        for (int i = 0, late_block, late_warp; i < size * threads; ++i) {
            if (i % threads == 0) late_block = draw(4);
            if (i % threads % 32 == 0) late_warp = draw(4);
            Thread &t = all[i];
            t.index = {i % threads, 0, 0}, t.block = {first + i / threads, 0, 0}, t.rank = i / threads, t.taken = 0;
            t.late = 4 * late_block + late_warp, t.first = nullptr, t.began = t.may_multiply = t.unknown = t.unseen = t.stale = false;
            t.epoch = epochs + 1, t.fences = t.let_go = 0, t.copies.clear(), t.stores.clear();
            getcontext(&t.context);
            t.context.uc_stack.ss_sp = stacks.of(i), t.context.uc_stack.ss_size = stacks.SIZE;
            makecontext(&t.context, run_body<F>, 0);
            ready[ready_count++] = &t;
        }
        running = size * threads, self = &host, host.began = true;
        Waiting::stop_self();
        while (copying_count) make_a_copy();
        for (int i = 0; i < size * threads; ++i) last = max(last, all[i].epoch);
        epochs = last;
    }
}
template <class F> static void each_block(int groups, int threads, F kernel) { each_cluster(1, groups, threads, kernel); }
