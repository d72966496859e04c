// Sums in plain fp32, for elements of C that fp16 terms cannot carry: chains of CHAIN fused multiply-adds, each from zero, that are added in
// their order of K, as include/block.cl adds long sums (blocks.LONG_CHAIN). Errors grow with CHAIN + K / CHAIN, not with K. An element has
// the same bits whichever kernel computes it again, alone (chains) or with its neighbours (chains_of_part).

constexpr int CHAIN = /*!chain-length*/32;

// Elements of an operand by TYPE: 1: fp16, 2: bf16, else fp32. Also ``widened`` to fp32.
template <int TYPE> struct ElementOf { typedef float type; };
template <> struct ElementOf<1> { typedef unsigned short type; };
template <> struct ElementOf<2> { typedef unsigned short type; };
template <int TYPE> inline float widened(uint half) { return TYPE == 1 ? from_half(half) : __uint_as_float(half << 16); }

// Lines of an operand, rows of A or columns of B, from one on: elements from a line to the next (down), and along it (on).
template <int TYPE> struct Lines {
    typedef typename ElementOf<TYPE>::type Element;
    const Element *first;
    long long down, on;
    inline Lines() {}
    inline Lines(const Element *x, long long ld, bool across, int line, int k = 0)
        : first(x + (across ? line + k * ld : line * ld + k)), down(/*!down*/across ? 1 : ld), on(across ? ld : 1) {}
    inline const Element *at(int line) const { return first + line * down; }
};

// Operands of a part of C.
template <int TYPE_A, int TYPE_B> struct OperandsOf {
    Lines<TYPE_A> a;
    Lines<TYPE_B> b;
    int K;
};

// an element into shared memory as fp32, or 0: there after ``copies_wait``
template <int TYPE> inline void copy_widened(uint to, const float *from, bool there) { copy_async_if<4>(to, from, there); }
template <int TYPE> inline void copy_widened(uint to, const unsigned short *from, bool there) {
    shared_put(to, there ? widened<TYPE>(*from/*!half-again*/) : 0.0f);
}

// Calls ``again(lane, i)``, by all of a warp, for each bit i that a lane has in ``wanted``.
template <class Again> inline void each_wanted(uint wanted, Again again) {
#pragma unroll 1
    for (uint owners = __ballot_sync(0xffffffffu, wanted != 0); owners; owners &= owners - 1) {
        int owner = __ffs(owners) - 1;
#pragma unroll 1
        for (uint rest = __shfl_sync(0xffffffffu, wanted, owner); rest; rest &= rest - 1) again(owner, __ffs(rest) - 1);
    }
}

// The sum of a row x of A and a column y of B, by a warp, each lane a chain at a time. ``at``: BYTES of shared memory, where all of
// both is on its way before any of it is waited for.
template <int BYTES, int TYPE_A, int TYPE_B>
inline float chains(const typename ElementOf<TYPE_A>::type *x, long long on_a, const typename ElementOf<TYPE_B>::type *y, long long on_b, int K, uint at) {
    constexpr int APART = CHAIN + 1, ROOM = BYTES / (8 * APART), MOST = ROOM < 32 ? ROOM : 32; // chains at a time; they meet in no bank
    int lane = threadIdx.x % 32;
    uint As = at, Bs = at + 4 * APART * MOST;
    float total = 0.0f;
#pragma unroll 1
    for (int k0 = 0; k0 < K; k0 += MOST * CHAIN) {
        int count = min((K - k0 + CHAIN - 1) / CHAIN, MOST), left = K - k0 - lane;
        const auto *one = x + (k0 + /*!k-one-by-one*/lane) * on_a;
        const auto *two = y + (k0 + lane) * on_b;
        /*!step-is-read*/__syncwarp(); // all lanes have read the elements of the step before
#pragma unroll 4
        for (int i = 0; i < count; ++i, one += CHAIN * on_a, two += CHAIN * on_b) {
            bool there = CHAIN * i < left/*!chain-end*/;
            copy_widened<TYPE_A>(As + 4 * (APART * i + lane), there ? one : x, there);
            copy_widened<TYPE_B>(Bs + 4 * (APART * i + lane), there ? two : y, there);
        }
        /*!chain-is-copied*/copies_wait();
        /*!chain-is-copied*/__syncwarp();
        int depth = lane < count ? min(CHAIN, K - k0 - CHAIN * lane) : 0;
        float acc = 0.0f;
#pragma unroll 8
        for (int j = 0; j < CHAIN; ++j)
            if (j < depth) acc = fmaf(shared_one(As + 4 * (APART * lane + j)), shared_one(Bs + 4 * (APART * lane + j)), acc);
#pragma unroll 4
        for (int i = 0; i < count; ++i) total += __shfl_sync(0xffffffffu, acc, i/*!chains-in-order*/);
    }
    return total;
}

// The compiler takes the value for changed here: it neither computes it from others again nor keeps what depends on it in registers.
template <class T> inline void forget(T *&x) { asm volatile("" : "+l"(x)); }
inline void forget(uint &x) { asm volatile("" : "+r"(x)); }

// A step of an operand's lines into shared memory, PITCH floats from one of K to the next; zeros behind ``depth`` of K and ``lines``.
template <class Part, int LINES, int PITCH, int TYPE> inline void copy_step(uint to, const Lines<TYPE> &of, int k0, int depth, int lines) {
    constexpr int K_APART = Part::THREADS / LINES, LINES_APART = Part::THREADS / Part::DEPTH;
    static_assert(Part::THREADS == K_APART * LINES && Part::THREADS == LINES_APART * Part::DEPTH, "of a thread's elements k or the line is the same");
    uint thread = threadIdx.x % Part::THREADS;
    forget(thread); // else the loop over K would keep registers for the addresses
    bool along = of.on == 1; // consecutive threads along memory
    int k = along ? thread % Part::DEPTH : thread / LINES, line = along ? thread / Part::DEPTH : thread % LINES;
    const int k_apart = along ? 0 : K_APART, lines_apart = along ? LINES_APART : 0;
    const auto *from = of.at(line) + (k0 + k) * of.on;
    to += 4 * (k * PITCH + line);
#pragma unroll 2
    for (int i = 0; i < LINES * Part::DEPTH / Part::THREADS; ++i) {
        bool there = k < depth/*!lines-of-k*/ && line < lines;
        copy_widened<TYPE>(to, there ? from : of.first, there);
        k += k_apart, line += lines_apart, from += k_apart * of.on + lines_apart * of.down, to += 4 * (k_apart * PITCH + lines_apart);
    }
}

// Adds to ``sum``, zeros, the products of a Part of C: ROWS x COLS, of which there are ``rows`` x ``cols``, by THREADS threads that ``meet``.
// A thread has DOWN x ON of it, sum[ON * i + j] in row(i) and column(j); columns are neighbours in twos. ``at``: BYTES of shared memory,
// for DEPTH of K at a time.
template <class Part, int TYPE_A, int TYPE_B>
inline void chains_of_part(const OperandsOf<TYPE_A, TYPE_B> &of, int rows, int cols, float (&sum)[Part::DOWN * Part::ON], uint at) {
    // copies along K and across meet in few banks
    constexpr int PITCH_A = Part::ROWS + 1, PITCH_B = Part::COLS + 2, DEPTH = Part::DEPTH, N = Part::DOWN * Part::ON;
    static_assert(CHAIN % DEPTH == 0, "a chain ends where a step does");
    static_assert(Part::BYTES >= 4 * DEPTH * (PITCH_A + PITCH_B), "operands of a step, in shared memory");
    uint As = at, Bs = at + 4 * DEPTH * PITCH_A;
    float acc[N] = {};
#pragma unroll 1
    for (int k0 = 0; k0 < of.K; k0 += DEPTH) {
        if (k0 % CHAIN == 0) {
#pragma unroll
            for (int i = 0; i < N; ++i) sum[i] += acc[i], acc[i] = 0.0f;
        }
        int depth = min(DEPTH, of.K - k0); // elements past K are not multiplied: 0 times Inf is a NaN
        /*!step-is-read*/Part::meet(); // all have read the elements of the step before
        copy_step<Part, Part::ROWS, PITCH_A>(As, of.a, k0, depth, rows);
        copy_step<Part, Part::COLS, PITCH_B>(Bs, of.b, k0, depth, cols);
        /*!step-is-copied*/copies_wait();
        /*!step-is-copied*/Part::meet();
#pragma unroll 4
        for (int k = 0; k < depth; ++k) {
            float x[Part::DOWN];
#pragma unroll
            for (int i = 0; i < Part::DOWN; ++i) x[i] = shared_one(As + 4 * k * PITCH_A + 4 * Part::row(i));
#pragma unroll
            for (int j = 0; j < Part::ON; j += 2) {
                float2 y = shared_two(Bs + 4 * (k * PITCH_B + Part::column(j)));
#pragma unroll
                for (int i = 0; i < Part::DOWN; ++i) {
                    acc[Part::ON * i + j] = fmaf(x[i], y.x, acc[Part::ON * i + j]);
                    acc[Part::ON * i + j + 1] = fmaf(x[i], y.y, acc[Part::ON * i + j + 1]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += acc[i];
}
