// Copies by the TMA come swizzled where elements have two bytes, and a matrix instruction is done at once, a loop over 16 of K for the
// elements that its thread holds.

inline uint shared_address(const void *p) { return (uint)((const char *)p - mine->memory); }
inline void cluster_sync() { lets_go(), of_cluster.arrive_and_wait(), ++self->epoch; }

inline Barrier &barrier_at(uint at) {
    for (int i = 0; i < mine->count; ++i)
        if (mine->barriers[i].at == at) return mine->barriers[i];
    return mine->barriers[mine->count++] = Barrier{at};
}
inline void changed(uint bar, int arrived, long long bytes) {
    Barrier &b = barrier_at(bar);
    if (!b.shown) lacks(BARRIERS_NOT_SHOWN);
    b.missing -= arrived, b.bytes += bytes;
    if (!b.missing && !b.bytes) b.phase ^= 1, b.missing = b.arrivals, b.waiting.wake();
}
inline void others_perhaps() {
    if (draw(2)) others_first();
}
inline void barrier_init(uint bar, uint arrivals) { barrier_at(bar) = Barrier{bar, (int)arrivals, (int)arrivals}; }
inline void barrier_init_fence() {
    for (int i = 0; i < mine->count; ++i) mine->barriers[i].shown = true;
}
inline void barrier_expect(uint bar, uint bytes) { lets_go(), changed(bar, 1, bytes), others_perhaps(); }
inline void barrier_arrive(uint bar) { lets_go(), changed(bar, 1, 0), others_perhaps(); }
inline void barrier_arrive_copied(uint bar) { lets_go(), later([=] { changed(bar, 1, 0); }), others_perhaps(); }
inline void barrier_wait(uint bar, uint parity) {
    Barrier &b = barrier_at(bar);
    while (b.phase == (int)parity) b.waiting.stop();
}

inline void proxy_fence() { ++self->fences; }
#define proxy_fence() FENCE(proxy_fence)
#define barrier_init_fence() FENCE(barrier_init_fence)

struct TensorMap { // of a row-major matrix; sizes in elements of ``size`` bytes
    const char *from;
    long long rows, cols, ld, box_rows, box_cols, size;
};
inline void tma_prefetch(const TensorMap *) {}
template <class T> inline void copy_box(uint to, const TensorMap &map, int x, int y) {
    for (int r = 0; r < map.box_rows; ++r)
        for (int c = 0; c < map.box_cols; ++c) {
            uint at = r * map.box_cols + (sizeof(T) == 2 ? (c / 8 ^ r % 8) * 8 + c % 8 : c);
            bool inside = y + r < map.rows && x + c < map.cols;
            ((T *)at_byte(to))[at] = inside ? ((const T *)map.from)[(y + r) * map.ld + x + c] : 0;
        }
}
inline void tma_load(uint to, const TensorMap *of, int x, int y, uint bar) {
    if (self->stale) lacks(GLOBAL_NOT_FENCED);
    later([=, map = *of] {
        int bytes = map.box_rows * map.box_cols * map.size;
        if (map.size == 2) copy_box<unsigned short>(to, map, x, y);
        else copy_box<float>(to, map, x, y);
        asynchronously_written(to, bytes), changed(bar, 0, -bytes);
    });
}

// Where a tile's rows of 128 bytes are, and the step of 16 of K within them, 2 further each.
inline word tile_at(uint address) { return address >> 4; }
inline const unsigned short *eight_of(word tile, int row, int which) { // swizzled
    return (const unsigned short *)at_byte((uint)(tile / 64 * 1024 + row * 128 + ((tile % 64 + which) ^ row % 8) * 16));
}
inline void wgmma_fence() { self->may_multiply = true; }
#define wgmma_fence() FENCE(wgmma_fence)
inline void wgmma_commit() {}
template <int LEFT> inline void wgmma_wait() { // one instruction of a warp: all its lanes have read
    warp_meets(), self->may_multiply = false;
}
inline void multiplies() {
    if (!self->may_multiply) lacks(REGISTERS_NOT_FENCED);
}
template <int N> inline void pin(float (&)[N]) {}
template <int REGISTERS> inline void more_registers() {}
template <int REGISTERS> inline void fewer_registers() {}

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
template <int N> inline void wgmma(float (&d)[N / 2], word a, word b, int accumulate) {
    multiplies();
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    for (int i = 0; i < N / 2; ++i) {
        UnitSum sum;
        if (accumulate) sum.add(d[i]);
        for (int half = 0; half < 2; ++half) {
            const unsigned short *x = eight_of(a, row + (i & 2) * 4, half), *y = eight_of(b, i / 4 * 8 + lane % 4 * 2 + (i & 1), half);
            for (int k = 0; k < 8; ++k) sum.add((double)wide(x[k]) * wide(y[k]));
        }
        d[i] = sum.total();
    }
}
inline void wait_for_previous() {}
inline void let_next_start() {}
