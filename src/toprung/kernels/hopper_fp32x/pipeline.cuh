// The ring of stages that copies, the splitter and consumers share, and the order in which blocks walk over tiles of C.
//
// A stage holds a tile's k-block of 32. Its B passes through these states; a barrier's phase ends each. A may be read once it is filled.
//
//      free   -> filled    the copier's 128 threads have copied A and B into it (or the TMA has B's terms)
//      filled -> split     the splitter's 4 warps have replaced B by two fp16 terms; not where B was split beforehand
//      split  -> free      all consumer warps have read it
//
// Consumers read A from ``filled`` on, B from ``split`` on. Every role goes through the stages of all its tiles in the same order, and
// has a Ring of its own that says which is next.

struct Ring {
    uint first, phase; // of shared memory, on 1024 bytes; parity of the phase that the next stage's barriers are in
    int stage;
    inline Ring(char *memory) : first((shared_address(memory) + 1023) & ~1023u), phase(0), stage(0) {}

    // addresses in shared memory, in their order there
    inline uint a() const { return first + stage * STAGE_BYTES; }
    inline uint b() const { return a() + A_BYTES; }
    inline uint scales() const { return first + RING_BYTES + stage * SCALE_BYTES; }
    inline uint spare(int warp) const { return first + RING_BYTES + STAGES * SCALE_BYTES + warp * SPARE_BYTES; }
    // A tile's column statistics are in the slot of the stage after its last, by phase. The splitter is at most STAGES stages ahead of
    // the slowest consumer, which has yet to free them, so a slot is written again 2 * STAGES stages later at the earliest, when all have read
    // it: a consumer reads a tile's slot before it frees the next tile's first stage. STAGES slots would not do.
    inline uint statistics() const { return spare(4 * CONSUMERS) + STATISTICS_BYTES * (/*!slot-by-phase*/phase * STAGES + stage); }
    inline uint filled() const { return spare(4 * CONSUMERS) + STATISTICS_SLOTS * STATISTICS_BYTES + 8 * stage; }
    inline uint split() const { return filled() + 8 * STAGES; }
    inline uint free() const { return filled() + 16 * STAGES; }

    inline void wait_until_filled() const { barrier_wait(filled(), phase); }
    inline void wait_until_split() const { barrier_wait(split(), phase); }
    inline void wait_until_free() const { barrier_wait(free(), phase ^ 1); } // at first it is

    inline void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }

    inline void init() { // by one thread; the others wait for it
        for (int s = 0; s < STAGES; ++s, advance()) {
            barrier_init(filled(), 128 + B_IS_SPLIT); // the thread that starts the TMA arrives once more
            barrier_init(split(), 128);
            barrier_init(free(), 128 * CONSUMERS);
        }
        phase = 0;
        barrier_init_fence();
    }
};

// What is ahead of a role: 2 for each stage that its tile has left, and 1 if another tile follows; in one register.
struct Ahead {
    uint word;
    inline Ahead(int k_blocks, bool follows) : word(2 * k_blocks + follows) {}
    inline bool of_tile() const { return word > 1; }
    inline bool any() const { return word; }
    inline void next() { word -= 2; }
};

struct Place { // the matrix of a batch, and a tile's first row and column
    int matrix, m, n;
};

// Tiles of a batch in an order that keeps what runs at once close together: GROUP tiles down, then one to the right. A block takes
// every ``workers``-th: tile + workers fits an int, as a launch has at most as many workers as tiles, and the host takes less than
// 2^30 tiles (sizes.py).
struct Walk {
    uint down, across;
    Divisor matrix, band, last; // by the tiles of a matrix, of a band, and by the rows of the last band
    inline Walk(uint tiles_m, uint tiles_n)
        : down(tiles_m), across(tiles_n), matrix(tiles_m * tiles_n), band(GROUP * tiles_n), last(tiles_m % GROUP ? tiles_m % GROUP : GROUP) {}

    inline Place place(uint tile) const {
        uint m = matrix.of(tile), rest = tile - m * matrix.by, b = band.of(rest), in = rest - b * band.by;
        bool whole = b * GROUP + GROUP <= down;
        uint column = whole ? in / GROUP : last.of(in);
        return Place{(int)m, (int)(b * GROUP + in - column * (/*!last-band*/whole ? GROUP : last.by)) * BM, (int)column * BN};
    }
};
