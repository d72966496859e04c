// Products of a group, as kernels/group.py packs them into a launch's parameters: GROUPED of them at most.

struct Divisor { // of numbers under 2^31, without a division
    uint by, inverse;
    inline Divisor() {}
    inline Divisor(uint by_) : by(by_), inverse(0xffffffffu / by_ + 1) {}
    inline Divisor(uint by_, uint inverse_) : by(by_), inverse(inverse_) {}
    inline uint of(uint n) const {
        uint q = by == 1 ? n : __umulhi(n, inverse/*!inverse*/);
        return q - (q * by > n); // the inverse is rounded up: q is right or one too many
    }
};

#ifndef GROUPED
#define GROUPED 0
#endif
#if GROUPED
struct Member { // one product
    const float *a, *b;
    float *c;
#if EPILOGUE
    const float *d; // nothing is added where this is 0
    long long down, on;
#endif
    int M, N, K, lda, ldb, ldc;
    uint tiles_m, inverse; // tiles down C, as a Divisor has them
    inline Divisor by_tiles() const { return Divisor(tiles_m, inverse); }
};

// All of a group, in the launch's own parameters: nothing is uploaded, and a graph that is captured has a copy.
struct Group {
    uint count, tiles;
    uint ends[GROUPED]; // tiles of a product and of all before it; by themselves, so that a search reads few lines of the cache
    Member of[GROUPED];

    // the product that has a tile; none before ``from`` has
    inline uint member(uint tile, uint from) const {
        uint last = count - 1;
        while (from < last) {
            uint middle = (from + last) / 2;
            if (ends[middle] /*!end-of-product*/> tile) last = middle;
            else from = middle + 1;
        }
        return from;
    }
};
#endif
