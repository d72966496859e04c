// From fp32 (fp16, bf16) to fp16 terms, x * scale = hi + lo, with a scale, a power of two, for each row of A, each column of B and each
// k-block of 32. It brings the largest |x| of the 32 into [2^TOP, 2^(TOP + 1)), and is taken back as partial sums are promoted to fp32.
//
// Elements under 2^-SPREAD times the largest, small ones, have fewer bits in two terms than in fp32. Each side counts what they may lose
// (LineStatistics); at a tile's end exact.cuh computes those sums again in which it may be seen. Only where four neighbours of a thread are small
// or 0, and not all 0, are small elements counted. Single ones are off by 2^-39 of the largest, which only a thin column shows: one with an
// element that is 0 or under 2^-THIN_SPREAD times the largest. In others the largest has a product beside which that is 16 units at most.

constexpr int TOP_EXPONENT = 14, SPREAD = 17, THIN_SPREAD = 19;
constexpr uint LEAST_BITS = 25u << 23;      // least largest |x| that counts: below, terms or scaled sums would be subnormal
constexpr float LEAST_LARGEST = 0x1p-101f;  // the most that a row's largest is then

struct BlockScale {
    float times, back; // what elements are multiplied by, and its inverse
};

// the largest |x| of four; a NaN does not count, as it remains one whatever it is multiplied by
inline uint largest_of(float x, float y, float z, float w) {
    return __float_as_uint(fmaxf(fmaxf(fabsf(x), fabsf(y)), fmaxf(fabsf(z), fabsf(w))));
}

inline uint smaller_of(float x, float y) { return __float_as_uint(fminf(fabsf(x), fabsf(y))); }

// the scale of 32 elements by the bits of the largest |x|
inline BlockScale scale_of(uint largest) {
    uint exponent = max(largest, /*!least-scale*/LEAST_BITS) & 0x7f800000;
    return BlockScale{__uint_as_float(((uint)(254 + TOP_EXPONENT) << 23) - exponent), __uint_as_float(exponent - ((uint)TOP_EXPONENT << 23))};
}

// Return True if one of them is small; ``less``: the bits of |x|, less 1, for what is 0 loses nothing.
inline bool is_small(uint less, uint largest, int spread = SPREAD) {
    return /*!small*/less < max(largest, LEAST_BITS) - ((uint)spread << 23);
}

// the two of a word, fp16 (TYPE 1) or bf16, as fp32
template <int TYPE> inline float low_of(uint word) { return TYPE == 1 ? from_half(word & 0xffff) : __uint_as_float(word << 16); }
template <int TYPE> inline float high_of(uint word) { return TYPE == 1 ? from_half(word >> 16) : __uint_as_float(word & 0xffff0000); }

constexpr int HI_ALONE = 1; // as a TYPE: the elements are hi, unscaled; fp16, or a row's fp16 and bf16, which ``weigh`` has scaled

// The terms of two elements; of fp16 and bf16 hi alone, as it is (HI_ALONE) or scaled. CORRECTS: lo has the share of hi that Tensor
// Cores truncate (truncation.cuh).
template <int TYPE, bool CORRECTS> inline void split_two(float x, float y, float times, uint &hi, uint &lo) {
    float u = TYPE == HI_ALONE ? x : x * times, v = TYPE == HI_ALONE ? y : y * times;
    hi = pair_of(u, v);
    float one = from_half(hi & 0xffff), two = from_half(hi >> 16);
    lo = TYPE ? 0 : CORRECTS ? pair_of(corrected(CUT_SHARE, one, u - one), corrected(CUT_SHARE, two, v - two)) : pair_of(u - one, v - two);
}

// Statistics of a row of A or a column of B in a tile: its largest |x|, or more, and what its small elements lose together,
// |x - hi - lo|, or more: 2^-25 of the scale for each element that a thread has of 32 of K in which it noticed small ones.
struct LineStatistics {
    float largest, lost;
};

// as a byte: a power of two that is no less
inline uint byte_of(float x) { return min((__float_as_uint(x) >> 23) + (x != 0.0f), 255u); }
inline float of_byte(uint byte) { return __uint_as_float(byte << 23); }

// what a product may lose of one line, or 0 where that loses nothing, whatever the other is
inline float lost_by(const LineStatistics &one, const LineStatistics &other) { return /*!nothing-lost*/one.lost > 0.0f ? one.lost * other.largest : 0.0f; }

// what a single small element of one line loses in a product with the other, at most
inline float lost_by_single(float largest, float other) { return /*!single*/0x1p-39f * largest * other; }

// what a sum must have at least, if so much may be lost of it, for at most UNITS in its last place
inline float least_of(float lost) { return (/*!units*/0x1p24f / UNITS) * lost; }

// --- B, by the splitter ---------------------------------------------------------------------------------------------------------

// Address of element k of a stage's column of B, stored in ``row``. Where K runs along memory four (of halves eight) lie together.
inline uint element_at(uint tile, int row, int k) {
    if (TRANS_B && B_TYPE) return tile + row * 128 + ((k / 8 + 4 * (row % 2)) ^ row % 8) * 16 + k % 8 * 2;
    if (TRANS_B) return tile + row * 128 + (k / 4 ^ row % 8) * 16 + k % 4 * 4;
    int warp = row / LANES, column = (int)stored_column(row);
    return tile + warp * (128 * LANES) + B_SIZE * ((k ^ /*!turn-of-part*/(k / EACH ^ warp) % TURNS) * LANES + column % LANES);
}

// The thread's EACH elements of its column of B, in order of K, of which there are ``left`` from the stage's first on. Any number may stand
// behind K, where A has zeros: it is the column's first, for a 0 would count as small.
inline void fetch_column(uint tile, int row, int part, int left, float (&v)[EACH]) {
    int begin = part * EACH;
#pragma unroll 1
    for (int k = /*!behind-k*/max(left, begin); left > 0 && k < begin + EACH; ++k) {
        if (B_IS_HALF) shared_put_half(element_at(tile, row, k), shared_half(element_at(tile, row, 0)));
        else shared_put(element_at(tile, row, k), shared_one(element_at(tile, row, 0)));
    }
    if (TRANS_B && B_TYPE) {
#pragma unroll
        for (int i = 0; i < EACH / 8; ++i) {
            float4 eight = shared_four(element_at(tile, row, begin + 8 * i));
            float words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                v[8 * i + 2 * w] = low_of<B_TYPE>(__float_as_uint(words[w]));
                v[8 * i + 2 * w + 1] = high_of<B_TYPE>(__float_as_uint(words[w]));
            }
        }
    } else if (TRANS_B) {
#pragma unroll
        for (int i = 0; i < EACH / 4; ++i) {
            float4 four = shared_four(element_at(tile, row, begin + 4 * i));
            v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            uint at = element_at(tile, row, begin + i);
            v[i] = B_TYPE ? widened<B_TYPE>(shared_half(at)) : shared_one(at);
        }
    }
}

// A stage's columns of B become terms in their place, with a scale each; ``left``: elements that K has from the stage's first on. Returns
// True if the thread's part makes its column thin. For that part, scales with which four small neighbours were noticed are added to
// ``weight``, and ``most`` is the largest |x| so far.
inline bool split_columns(uint tile, uint scales, int left, float &weight, uint &most) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = warp * LANES + lane % LANES, part = lane / LANES;
    float v[EACH];
    fetch_column(tile, row, part, left, v);
    uint largest = 0, smallest = ~0u, least = ~0u; // smallest: of the largest of four, less 1; least: of all
#pragma unroll
    for (int i = 0; i < EACH / 4; ++i) {
        uint four = largest_of(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
        largest = max(largest, four), smallest = min(smallest, four - 1);
        least = min(least, smaller_of(v[4 * i], v[4 * i + 1])), least = min(least, /*!least-of-column*/smaller_of(v[4 * i + 2], v[4 * i + 3]));
    }
#pragma unroll
    for (int other = A_UNSCALED && B_TYPE == 1 ? 32 : LANES; other < 32; other *= 2) // of fp16 times fp16 nothing is lost
        largest = max(largest, /*!largest-of-lanes*/__shfl_xor_sync(0xffffffffu, largest, other));
    BlockScale s = scale_of(largest);
    bool small = B_TYPE != 1 && is_small(smallest, largest);
    weight /*!weight-of-b*/+= small ? s.back : 0.0f, most = max(/*!most-of-tile*/most, largest);
    if (part == 0 && B_TYPE != 1) shared_put(scales + 4 * stored_column(row), s.back);
    __syncwarp(); // all have read what is overwritten now
    // A row of 128 bytes: hi of both 16 of K, then lo; of each 16 of K words 0 to 3, then 4 to 7 (k_of); swizzled as tile_at says.
    uint at = tile + row * 128, turn = row % 8;
#pragma unroll
    for (int step = 0; step < (EACH + 15) / 16; ++step) {
        int whole = PARTS == 4 ? part / 2 : PARTS == 2 ? part : step; // the 16 of K
        uint hi[8], lo[8];
#pragma unroll
        for (int p = 0; p < (EACH < 16 ? 4 : 8); ++p) {
            // with 8 of K the thread has words 0, 1, 4 and 5 (the first 8), or 2, 3, 6 and 7; across K 0 to 3, or 4 to 7
            int word = EACH >= 16 || TRANS_A ? p : p % 2 + p / 2 * 4;
            split_two<B_TYPE, true>(v[16 * step + k_of(word, 0)], v[16 * step + k_of(word, 1)], s.times, hi[p], lo[p]);/*!lo-of-b*/
        }
        if (EACH >= 16) {
            shared_put(at + ((2 * whole) ^ turn) * 16, hi[0], hi[1], hi[2], hi[3]);
            shared_put(at + ((2 * whole + 1) ^ turn) * 16, hi[4], hi[5], hi[6], hi[7]);
            if (!B_TYPE) shared_put(at + ((4 + 2 * whole) ^ turn) * 16, lo[0], lo[1], lo[2], lo[3]);
            if (!B_TYPE) shared_put(at + ((5 + 2 * whole) ^ turn) * 16, lo[4], lo[5], lo[6], lo[7]);
        } else if (TRANS_A) {
            shared_put(at + ((2 * whole + part % 2) ^ turn) * 16, hi[0], hi[1], hi[2], hi[3]);
            if (!B_TYPE) shared_put(at + ((4 + 2 * whole + part % 2) ^ turn) * 16, lo[0], lo[1], lo[2], lo[3]);
        } else {
            uint half = part % 2 * 8;
            shared_put(at + ((2 * whole) ^ turn) * 16 + half, hi[0], hi[1]);
            shared_put(at + ((2 * whole + 1) ^ turn) * 16 + half, hi[2], hi[3]);
            if (!B_TYPE) shared_put(at + ((4 + 2 * whole) ^ turn) * 16 + half, lo[0], lo[1]);
            if (!B_TYPE) shared_put(at + ((5 + 2 * whole) ^ turn) * 16 + half, lo[2], lo[3]);
        }
    }
    return !A_UNSCALED && is_small(least, largest, THIN_SPREAD); // of a row of fp16 no more is known than its largest possible
}

// Column statistics of a tile, from what ``split_columns`` gave of it: for each splitter warp a word of its columns that are thin or have four
// small neighbours, and a float, as large as any of them; Inf if some have. Then two bytes for each column (LineStatistics).
inline void put_statistics(uint statistics, bool thin, float weight, uint most) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int other = LANES; other < 32; other *= 2) {
        /*!weight-of-lanes*/weight += __shfl_xor_sync(0xffffffffu, weight, other);
        most = max(most, __shfl_xor_sync(0xffffffffu, most, other));
        thin |= /*!thin-of-lanes*/(bool)__shfl_xor_sync(0xffffffffu, (uint)thin, other);
    }
    uint largest = byte_of(__uint_as_float(most)), columns = __ballot_sync(0xffffffffu, thin || weight > 0.0f);
    uint bytes = largest | byte_of(weight * (/*!lost-of-b*/EACH * 0x1p-25f)) << 8;
    most = __reduce_max_sync(0xffffffffu, /*!noticed*/weight > 0.0f ? 255 : thin ? largest : 0);
    if (lane < LANES) shared_put_half(statistics + 32 + 2 * /*!stored-statistics*/stored_column(warp * LANES + lane), bytes);
    if (lane == 0) shared_put(statistics + 4 * warp, __uint_as_float(columns)), shared_put(statistics + 16 + 4 * warp, of_byte(most));
    __syncwarp(); // one lane arrives for all
}

// All stages of a tile, by the splitter; ``left``: elements of K in it, which may end stages before the last.
inline void split_tile(Ring &ring, int k_blocks, int left, bool follows) {
    bool thin = false;
    uint most = 0;
    float weight = 0.0f;
#pragma unroll 1
    for (Ahead ahead(k_blocks, follows); ahead.of_tile(); left -= 32) {
        ring.wait_until_filled();
        thin /*!thin-stages*/|= split_columns(ring.b(), ring.scales(), left, weight, most) && left > 0;
        ahead.next();
        proxy_fence(); // Tensor Cores read what was written here
        __syncwarp();
        uint split = ring.split();
        ring.advance();
        if (!ahead.of_tile()) put_statistics(ring.statistics(), thin, weight, most);
        if (threadIdx.x % 32 == 0) /*!is-split*/barrier_arrive(split);
    }
}

// --- A, by each consumer warp for its 16 rows -----------------------------------------------------------------------------------

struct RowsOfA { // a stage's elements of the thread's two rows, as they come: v[h][4 s + q] of the 16 of K s
    float v[2][8];
    BlockScale scale[2];
    bool small[2]; // four of a row are small or 0, and not all 0

    inline void fetch(uint tile) {
        int lane = threadIdx.x % 32, c = lane % 4, m = threadIdx.x / 32 * 16;
#pragma unroll
        for (int s = 0; s < 2; ++s)
            if (TRANS_A) {
#pragma unroll
                for (int q = 0; q < 4; ++q) { // k = 16 s + 4 q + c, or in order
                    int k = 16 * s + (B_IS_SPLIT ? 2 * c + q % 2 + q / 2 * 8 : 4 * q + c);
                    uint at = tile + A_SIZE * (k * BM + ((m + row_of(0)) ^ 32 / A_SIZE * c));
                    if (A_TYPE) {
                        uint both = __float_as_uint(shared_one(at));
                        v[0][4 * s + q] = low_of<A_TYPE>(both), v[1][4 * s + q] = /*!high-half*/high_of<A_TYPE>(both);
                    } else {
                        float2 two = shared_two(at);
                        v[0][4 * s + q] = two.x, v[1][4 * s + q] = two.y;
                    }
                }
            } else {
#pragma unroll
                for (int h = 0; h < 2; ++h) { // k = 16 s + 4 c …
                    uint at = tile + A_SIZE * (s * (16 * BM) + ((m + row_of(h)) ^ s * (/*!turn-of-halves*/4 / A_SIZE)) * 16 + (B_IS_SPLIT ? 2 * c : 4 * c));
                    int turned = /*!turned*/8 * (row_of(h) / (8 / A_SIZE) % 2); // where B is split
                    uint one = at + A_SIZE * turned, two = at + A_SIZE * (8 - turned);
                    if (A_TYPE) {
                        float2 both = B_IS_SPLIT ? make_float2(shared_one(one), shared_one(two)) : shared_two(at);
                        uint first = __float_as_uint(both.x), second = __float_as_uint(both.y);
                        v[h][4 * s] = low_of<A_TYPE>(first), v[h][4 * s + 1] = high_of<A_TYPE>(first);
                        v[h][4 * s + 2] = low_of<A_TYPE>(second), v[h][4 * s + 3] = high_of<A_TYPE>(second);
                    } else if (B_IS_SPLIT) {
                        float2 x = shared_two(one), y = shared_two(two);
                        v[h][4 * s] = x.x, v[h][4 * s + 1] = x.y, v[h][4 * s + 2] = y.x, v[h][4 * s + 3] = y.y;
                    } else {
                        float4 four = shared_four(at);
                        v[h][4 * s] = four.x, v[h][4 * s + 1] = four.y, v[h][4 * s + 2] = four.z, v[h][4 * s + 3] = four.w;
                    }
                }
            }
    }

    inline void weigh() {
        if (A_UNSCALED) return; // its scale is 1
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float(&x)[8] = v[h];
            uint one = largest_of(x[0], x[1], x[2], x[3]), two = largest_of(x[4], x[5], x[6], x[7]);
            uint largest = max(one, two); // of the four lanes that have the row
            largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            scale[h] = scale_of(largest);
            small[h] = is_small(min(one - 1, two - 1), largest);
            if (A_TYPE) {
#pragma unroll
                for (int i = 0; i < 8; ++i) /*!scaled-early*/x[i] *= scale[h].times;
            }
        }
    }
};

struct Fragments { // A's operands of a stage, in the registers of a warp
    uint hi[2][4], lo[2][4];
    uint low[2][4];            // hi * 2^-11, for the lo of a B that was split beforehand, which was multiplied by 2^11
    float back[2], weight[2];  // scales of the thread's two rows; weight: the same where some are small, else 0

    inline void split(const RowsOfA &rows) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float(&v)[8] = rows.v[h];
            back[h] = A_UNSCALED ? 1.0f : rows.scale[h].back;
            weight[h] = !A_UNSCALED && rows.small[h/*!small-row*/] ? back[h] : 0.0f;
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                split_two<A_TYPE ? HI_ALONE : 0, B_IS_HALF>(v[4 * s], v[4 * s + 1], rows.scale[h].times, hi[s][h], lo[s][h]);
                split_two<A_TYPE ? HI_ALONE : 0, B_IS_HALF>(v[4 * s + 2], v[4 * s + 3], rows.scale[h].times, hi[s][h + 2/*!further-k*/], lo[s][h + 2/*!further-k*/]);
                if constexpr (B_IS_SPLIT) low[s][h] = by_residual(hi[s][h]), low[s][h + 2] = /*!low-of-a*/by_residual(hi[s][h + 2]);
            }
        }
    }
};

// The thread's operands of A of the stage in shared memory at ``tile``.
inline void fetch_terms(Fragments &a, uint tile) {
    RowsOfA rows;
    rows.fetch(tile);
    rows.weigh();
    a.split(rows);
}

// Statistics of the thread's two rows in a tile: the largest scale so far, and the sum of those with which it noticed small elements.
struct RowStatistics {
    float weight[2] = {};
    uint scales = 0; // 16 bits of each are all of a power of two: one register, one instruction

    inline void add(const Fragments &a) {
        if (A_UNSCALED) return;
        weight[0] /*!weight-of-a*/+= a.weight[0], weight[1] += a.weight[1];
        scales = __vmaxu2(/*!largest-scales*/scales, __byte_perm(__float_as_uint(a.back[0]), __float_as_uint(a.back[1]), 0x7632));
    }

    inline float largest(int h) const {
        return A_UNSCALED ? 65504.0f : __uint_as_float(/*!scale-of-row*/h ? scales & 0xffff0000u : scales << 16) * /*!largest-of-row*/0x1p15f;
    }

    // of the four lanes that have the row together, each with 8 of its 32 elements
    inline LineStatistics row(int h) const {
        float all = weight[h];
        /*!weight-of-pairs*/all += __shfl_xor_sync(0xffffffffu, all, 1);
        /*!weight-of-fours*/all += __shfl_xor_sync(0xffffffffu, all, 2);
        return LineStatistics{largest(h), all * (/*!lost-of-a*/8 * 0x1p-25f)};
    }
};
