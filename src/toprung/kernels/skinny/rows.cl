// C[s][l] = alpha * (sum over k of Y[s][k] * X[l][k]) + beta * C[s][l]       X: large, its rows along K; Y: few rows
//
//              |==|            |==|
//    l    . . .oooo. . .  . . .oooo. . .  \
//    l+1  . . .oooo. . .  . . .oooo. . .   |  a team of DN lanes: TM rows of X at once, TN / VEC vectors a lane of each, and the
//    l+2  . . .oooo. . .  . . .oooo. . .   |  same elements of each of SMALL rows of Y
//    l+3  . . .oooo. . .  . . .oooo. . .  /
//    l+4  ...                                 the next team; DM teams a work-group
//
// Element (s, k) of Y lies at s * down_y + k * on_y, (s, l) of C at s * down_c + l * on_c; X is row-major (ldx). VEC divides ldx and
// X's alignment, VB (1 or VEC) is how many elements of Y lie together, aligned.
// Work-group: DM teams of DN work-items, DN a power of two, for BM = DM * TM rows of one slice of K, which begins on STEP.
// Grid: (blocks * batch, slices). With several slices C is scratch memory, stride_slice elements for each.
// RESIDENT: work-groups that an SM must have registers for. Told that they are few, CUDA's compiler asks for all loads of an
// iteration before it waits for one; left alone it saves registers, and has two on their way.
// Idea: X is read once, with wide loads, whatever else there is: memory is the limit where one side is short. A matrix times a
// vector is SMALL = 1. Where K is short, its latency is: TN / VEC loads of a row are on their way together, and a team may be as
// large as a work-group. Rows beyond the last are the last again, not stored.

#include "../include/stored.cl"
#include "../include/sums.cl"

#define STEP (DN * VEC)
#define AT_ONCE (TN / VEC)
#define INSIDE(u) ((u) == 0 || k + (u) * STEP + VEC <= end)
#if SHUFFLE && DN > SUBGROUP
#define PARTS (DN / SUBGROUP) // of a team's sum: one of each sub-group
#else
#define PARTS 1
#endif
#define LANES (DN / PARTS)

#define SUMS (SMALL * TM)                         // of a lane: a power of two
#define SHARING (SUMS < LANES ? LANES / SUMS : 1) // lanes that end with the same sum

#if LANES == 1
#define ADD_UP(step) // a lane has all of its sums
#elif SHUFFLE
// A step of adding up over the lanes of v: two lanes each keep half of their sums, and give the other half to the other one; where
// they have one each, both add it up. Afterwards ``kept`` is the first sum that a lane has. Steps are macros, so that v stays in
// registers.
#define LEFT(step) (SUMS >> (step))
#define APART(step) (LANES >> ((step) + 1))
#define ADD_UP(step) \
    do { \
        if (APART(step) == 0) break; \
        const uint there = /*!other-lane*/id % SUBGROUP ^ APART(step); \
        const bool upper = (lane & APART(step)) != 0; \
        if (LEFT(step) > 1) { \
            UNROLL for (int j = 0; j < LEFT(step) / 2; ++j) { \
                const float low = v[j], high = v[j + LEFT(step) / 2]; \
                v[j] = (upper ? high : low) + LANE_READ(/*!half-sent*/upper ? low : high, there); \
            } \
            kept += /*!half-kept*/upper ? LEFT(step) / 2 : 0; \
        } else { \
            v[0] += LANE_READ(v[0], there); \
        } \
    } while (0)
#else
// The sum of acc over LANES neighbours, in the first of them; the others get anything. All of the work-group must call it.
float sum_of_lanes(float acc, LPTR float *partial, const uint id)
{
    const uint lane = id % LANES;
    partial += id - lane;
    partial[lane] = acc;
    barrier(CLK_LOCAL_MEM_FENCE); // the partial sums are complete
    for (uint stride = LANES / 2; stride > 0; stride /= 2) {
        if (lane < stride) partial[lane] += partial[lane + stride];
        barrier(CLK_LOCAL_MEM_FENCE); // this level of the tree is complete
    }
    acc = partial[0];
    barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    return acc;
}
#endif

__kernel __attribute__((room_for(DM * DN, 1, 1, RESIDENT))) void
rows(__global const STORED(X_TYPE) *X, const ulong offset_x, __global const STORED(Y_TYPE) *Y, const ulong offset_y,
     __global float *restrict C, const ulong offset_c, const float alpha, const float beta, const uint L, const uint few,
     const uint K, const uint blocks, const uint slice, const ulong ldx, const ulong stride_x, const ulong down_y, const ulong on_y,
     const ulong stride_y, const ulong down_c, const ulong on_c, const ulong stride_c, const ulong stride_slice)
{
    __local float sums[PARTS][SMALL * BM]; // sums[part][s * BM + row]
    __local float partial[DM * DN];
    MEETING_PLACE
    if (SECOND_PASS) let_next_start();
    const uint id = get_local_id(0), lane = id % DN;
    const uint which = get_group_id(0) / blocks;
    const uint l0 = get_group_id(0) % blocks * BM;
    const uint first = id / DN * TM; // of the team's rows in the block
    const uint begin = get_group_id(1) * slice;
    const uint end = K - begin < slice ? K : begin + slice;

    X += offset_x + which * stride_x;
    Y += offset_y + which * stride_y;
    __global const STORED(X_TYPE) *row[TM];
    float acc[SMALL][TM];
    UNROLL for (int i = 0; i < TM; ++i) row[i] = X + (ulong)(l0 + first + i < L ? l0 + first + i : L - 1) * ldx;
    UNROLL for (int s = 0; s < SMALL; ++s)
        UNROLL for (int i = 0; i < TM; ++i) acc[s][i] = 0.0f;
#if FOLD
    float whole[SMALL][TM]; // the chains before this one
    UNROLL for (int s = 0; s < SMALL; ++s)
        UNROLL for (int i = 0; i < TM; ++i) whole[s][i] = 0.0f;
    uint left = FOLD / TN;
#endif

    wait_for_previous();
    for (uint k = begin + lane * VEC; k + VEC <= end; k += AT_ONCE * STEP) {
#if FOLD
        if (left-- == 0) {
            left = FOLD / TN - 1;
            UNROLL for (int s = 0; s < SMALL; ++s)
                UNROLL for (int i = 0; i < TM; ++i) {
                    whole[s][i] += acc[s][i];
                    acc[s][i] = 0.0f;
                }
        }
#endif
        VECTOR(VEC) x[AT_ONCE][TM];
        UNROLL for (int u = 0; u < AT_ONCE; ++u)
            UNROLL for (int i = 0; i < TM; ++i) x[u][i] = INSIDE(u) ? READ_AS(X_TYPE, VEC, &row[i][k + u * STEP]) : ZERO(VEC);
        UNROLL for (int s = 0; s < SMALL; ++s)
            UNROLL for (int u = 0; u < AT_ONCE; ++u) {
                __global const STORED(Y_TYPE) *from = Y + (s < few ? s : few - 1) * down_y + (k + u * STEP) * on_y;
                VECTOR(VEC) y = ZERO(VEC);
                if (INSIDE(u)) {
#if VB > 1
                    y = READ_AS(Y_TYPE, VEC, from);
#else
                    for (int e = 0; e < VEC; ++e) ELEMENT(y, e) = READ_AS(Y_TYPE, 1, from + e * on_y);
#endif
                }
                UNROLL for (int i = 0; i < TM; ++i)
                    UNROLL for (int e = 0; e < VEC; ++e) acc[s][i] += ELEMENT(x[u][i], e) * ELEMENT(y, e);
            }
    }
    if (/*!cut-vector*/(end - begin) / VEC % DN == lane) // the last, incomplete vector is one lane's
        for (uint k = end - (end - begin) % VEC; k < end; ++k)
            UNROLL for (int s = 0; s < SMALL; ++s)
                UNROLL for (int i = 0; i < TM; ++i)
                    acc[s][i] += READ_AS(X_TYPE, 1, &row[i][k]) *
                                 READ_AS(Y_TYPE, 1, &Y[(s < few ? s : few - 1) * down_y + k * on_y]);

#if FOLD
    UNROLL for (int s = 0; s < SMALL; ++s)
        UNROLL for (int i = 0; i < TM; ++i) acc[s][i] += whole[s][i];
#endif
#if SHUFFLE || LANES == 1
    float v[SUMS]; // v[s * TM + i]
    uint kept = 0;
    UNROLL for (int s = 0; s < SMALL; ++s)
        UNROLL for (int i = 0; i < TM; ++i) v[s * TM + i] = acc[s][i];
    ADD_UP(0);
    ADD_UP(1);
    ADD_UP(2);
    ADD_UP(3);
    ADD_UP(4);
    ADD_UP(5);
    if (lane % /*!first-of-lanes*/SHARING == 0)
        UNROLL for (int j = 0; j < (SUMS > LANES ? SUMS / LANES : 1); ++j)
            sums[lane / LANES][(kept + j) / TM * BM + first + (kept + j) % TM] = v[j];
#else
    UNROLL for (int s = 0; s < SMALL; ++s)
        UNROLL for (int i = 0; i < TM; ++i) {
            const float sum = sum_of_lanes(acc[s][i], partial, id);
            if (lane % LANES == 0) sums[lane / LANES][s * BM + first + i] = sum;
        }
#endif
    barrier(CLK_LOCAL_MEM_FENCE); // the sums are complete
    C += offset_c + which * stride_c + get_group_id(1) * stride_slice;
    BEFORE_TAKING
    UNROLL for (int n = 0; n < (SMALL * BM + DM * DN - 1) / (DM * DN); ++n) {
        const uint at = id + n * DM * DN;
        if (at < SMALL * BM) {
            float sum = sums[0][at];
            UNROLL for (int part = 1; part < PARTS; ++part) sum += sums[part][at];
            TAKE(at, sum);
        }
    }
    ADD_SLICES
}
