// What a kernel in flight is compiled for. NVRTC gives these macros, which config.py derives from a configuration and a product:
//
//      CONSUMERS, BN, STAGES    warpgroups that multiply, 64 rows of C each; columns of C of a block; stages of the ring
//      GROUP, SLICES, RESIDENT  rows of tiles walked together; blocks of a cluster, a slice of K each; blocks of an SM
//      COPIER_REGISTERS, SPLITTER_REGISTERS, CONSUMER_REGISTERS    of a thread of each role, once the kernel runs
//      TRANS_A, TRANS_B         1 where A is stored as K x M, B as N x K
//      ALIGN_A, ALIGN_B         words of 4 bytes to which addresses, leading dimensions and strides are aligned: 1, 2 or 4
//      A_TYPE, B_TYPE           0 or undefined: fp32, 1: fp16, 2: bf16; B_TYPE 3: two fp16 terms, split beforehand
//      IN_PARTS                 1: K is cut into ``batch`` parts, each with a C of its own
//      SPARE_BYTES, DYNAMIC_SHARED    shared memory of a consumer warp, and of the block
//      GROUPED, EPILOGUE, ACTIVATION, SPIN_LIMIT    see group.cuh, epilogue.cuh, hopper.cuh

#ifndef A_TYPE
#define A_TYPE 0
#endif
#ifndef B_TYPE
#define B_TYPE 0
#endif
#ifndef IN_PARTS
#define IN_PARTS 0
#endif

constexpr bool B_IS_SPLIT = B_TYPE == 3, B_IS_HALF = B_TYPE == 1 || B_TYPE == 2;
constexpr int THREADS = 128 * (CONSUMERS + 2 - B_IS_SPLIT); // a warpgroup copies, and one splits B
constexpr int BM = 64 * CONSUMERS;
constexpr int A_SIZE = A_TYPE ? 2 : 4, B_SIZE = B_IS_HALF ? 2 : 4; // bytes of an element in global memory
constexpr bool A_UNSCALED = A_TYPE == 1 && !B_IS_SPLIT; // fp16 is its own term; but hi * 2^-11 of unscaled elements may be no fp16
constexpr bool A_SCALED_EARLY = BN < 128 || A_TYPE; // while the Tensor Cores work; large blocks lack the registers
constexpr bool FOUR_COLUMNS = BN >= 64 && !B_IS_SPLIT; // a thread's sums are four columns next to each other (column_of)

// A column of B is split by PARTS threads of one warp, EACH of a stage's 32 elements each; a warp has LANES columns.
constexpr int LANES = BN / 4, PARTS = 128 / BN, EACH = 32 / PARTS;

// A stage of the ring: A as it comes, and room for the terms of B, whatever its elements are.
constexpr int A_BYTES = BM * 32 * A_SIZE, B_BYTES = BN * 128, STAGE_BYTES = A_BYTES + B_BYTES, RING_BYTES = STAGES * STAGE_BYTES;
constexpr int SCALE_BYTES = 4 * BN;             // scales of B's columns, per stage
constexpr int STATISTICS_BYTES = 32 + 2 * BN;   // per-tile column statistics (split.cuh), a slot
constexpr int STATISTICS_SLOTS = B_IS_SPLIT ? 0 : 2 * STAGES;
constexpr int BARRIER_BYTES = 3 * 8;            // per stage: filled, split, free
constexpr int OUT_PITCH = BN + 16;              // floats from row to row of C in a warp's memory: eight rows meet in no bank

static_assert(STAGES >= 3, "one stage is filled and one split while a third is multiplied");
static_assert(1024 + RING_BYTES + STAGES * (SCALE_BYTES + BARRIER_BYTES) + 4 * CONSUMERS * SPARE_BYTES + STATISTICS_SLOTS * STATISTICS_BYTES <= DYNAMIC_SHARED,
              "ring, scales, barriers, consumer warps' memory and column statistics");
static_assert(!FOUR_COLUMNS || SLICES > 1 || SPARE_BYTES >= 4 * 16 * OUT_PITCH, "a consumer warp's 16 rows of C on their way out");
static_assert(SLICES == 1 || !IN_PARTS, "a part of K belongs to one block, not to a cluster");
static_assert(SLICES == 1 || 256 * CONSUMERS * BN <= RING_BYTES, "sums of a slice of K over the ring (store_cluster_sums)");
// setmaxnreg moves registers that the launch gave the block: to each thread equally many, whole eights.
constexpr int REGISTERS = 65536 / (THREADS * RESIDENT) / 8 * 8;
static_assert(COPIER_REGISTERS + SPLITTER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= THREADS / 128 * REGISTERS, "registers of a block");
// The splitter holds EACH elements and their terms in EACH + 48 registers: 56 where BN = 32, 72 (64) and 88 (80) with room to spare.
static_assert(B_IS_SPLIT || SPLITTER_REGISTERS >= EACH + 48, "its loop would spill");

typedef ElementOf<A_TYPE>::type ElementA;
typedef ElementOf<B_TYPE>::type ElementB;

// Which row and columns of its warp's 16 x BN of C a thread's sums belong to: sum[4 i + 2 h + w] is row row_of(h), column column_of(i) + w.
// Across K a thread fetches both its rows of A at once, so that they are neighbours.
inline int row_of(int h, uint thread = threadIdx.x) { return TRANS_A ? thread % 32 / 4 * 2 + h : thread % 32 / 4 + 8 * h; }

// Tensor Cores give a thread columns 8 i + 2 (lane % 4) of B's rows in shared memory. With FOUR_COLUMNS B's columns are stored there in
// an order in which those of two such eights follow each other, so that a thread stores four neighbours of C at once.
inline int column_of(int i, uint thread = threadIdx.x) {
    return FOUR_COLUMNS ? 16 * (i / 2) + thread % 4 * 4 + 2 * (i % 2) : 8 * i + 2 * (thread % 4);
}

// column of B -> its row in shared memory, and the inverse
inline uint stored_row(uint c) { return FOUR_COLUMNS ? (c & ~15u) + c / 2 % 2 * 8/*!four-columns*/ + c / 4 % 4 * 2 + c % 2 : c; }
inline uint stored_column(uint r) { return FOUR_COLUMNS ? (r & ~15u) + r / 2 % 4 * 4 + r / 8 % 2 * 2 + r % 2 : r; }

// K is permuted within each 16, unless B was split beforehand: word p of a row of B (p % 4 = lane % 4 of A's fragments) holds two elements
// that a thread of A can fetch at once, e = 0 and 1.
inline int k_of(int p, int e) { return TRANS_A ? p % 4 + 8 * (p / 4) + 4 * e : 4 * (p % 4) + 2 * (p / 4) + e; }
