// C[s][l] = alpha * (sum over k of Y[s][k] * X[l][k]) + beta * C[s][l]       X: large, its rows along K; Y: few rows
//
//              |==|
//    l    . . .oooo. . .  \
//    l+1  . . .oooo. . .   |  a team of DN lanes: TM rows of X at once, VA elements a lane, and the same VA elements
//    l+2  . . .oooo. . .   |  of each of SMALL rows of Y
//    l+3  . . .oooo. . .  /
//    l+4  ...                 the next team; DM teams a work-group
//
// Element (s, k) of Y lies at s * down_y + k * on_y, (s, l) of C at s * down_c + l * on_c; X is row-major (ldx). VA divides ldx and
// X's alignment, VB (1 or VA) is how many elements of Y lie together, aligned.
// Work-group: DM teams of DN work-items, DN a power of two and within a sub-group, for BM = DM * TM rows of one slice of K.
// Grid: (blocks * batch, slices). With several slices C is scratch memory, stride_slice elements for each.
// Idea: X is read once, with wide loads, whatever else there is: memory is the limit where one side is short. A matrix times a
// vector is SMALL = 1. Rows beyond the last are the last again, not stored.

#define CHAIN 32 // products that a lane adds up by themselves, with FOLD: where many more are a lane's

// The sum of acc over the DN work-items of a team, in its lane 0; the others get anything. All of the work-group must call it.
float team_sum(float acc, LPTR float *partial, const uint team, const uint lane)
{
#if DN == 1
    return acc;
#elif SHUFFLE
    const uint first = (team * DN + lane) % SUBGROUP - lane; // teams lie side by side in a sub-group
    for (uint stride = DN / 2; stride > 0; stride /= 2) acc += LANE_READ(acc, first + (lane ^ stride));
    return acc;
#else
    partial += team * DN;
    partial[lane] = acc;
    barrier(CLK_LOCAL_MEM_FENCE); // the partial sums are complete
    for (uint stride = DN / 2; stride > 0; stride /= 2) {
        if (lane < stride) partial[lane] += partial[lane + stride];
        barrier(CLK_LOCAL_MEM_FENCE); // this level of the tree is complete
    }
    acc = partial[0];
    barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    return acc;
#endif
}

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
rows(__global const float *X, const ulong offset_x, __global const float *Y, const ulong offset_y,
     __global float *restrict C, const ulong offset_c, const float alpha, const float beta, const uint L, const uint few,
     const uint K, const uint blocks, const uint slice, const ulong ldx, const ulong stride_x, const ulong down_y, const ulong on_y,
     const ulong stride_y, const ulong down_c, const ulong on_c, const ulong stride_c, const ulong stride_slice)
{
    __local float partial[DM * DN];
    if (get_num_groups(1) > 1) let_next_start(); // slices: a second pass follows
    const uint lane = get_local_id(0) % DN;
    const uint team = get_local_id(0) / DN;
    const uint which = get_group_id(0) / blocks;
    const uint l0 = get_group_id(0) % blocks * BM + team * TM;
    const uint begin = get_group_id(1) * slice;
    const uint end = K - begin < slice ? K : begin + slice;

    X += offset_x + which * stride_x;
    Y += offset_y + which * stride_y;
    __global const float *row[TM];
    float acc[SMALL][TM];
    UNROLL for (int i = 0; i < TM; ++i) row[i] = X + (ulong)(l0 + i < L ? l0 + i : L - 1) * ldx;
    UNROLL for (int s = 0; s < SMALL; ++s)
        UNROLL for (int i = 0; i < TM; ++i) acc[s][i] = 0.0f;
#if FOLD
    float whole[SMALL][TM]; // the chains before this one
    UNROLL for (int s = 0; s < SMALL; ++s)
        UNROLL for (int i = 0; i < TM; ++i) whole[s][i] = 0.0f;
    uint left = CHAIN / VA;
#endif

    wait_for_previous();
    uint k = begin + lane * VA;
    for (; k + VA <= end; k += DN * VA) {
#if FOLD
        if (left-- == 0) {
            left = CHAIN / VA - 1;
            UNROLL for (int s = 0; s < SMALL; ++s)
                UNROLL for (int i = 0; i < TM; ++i) {
                    whole[s][i] += acc[s][i];
                    acc[s][i] = 0.0f;
                }
        }
#endif
        VECTOR(VA) x[TM];
        UNROLL for (int i = 0; i < TM; ++i) x[i] = READ_V(VA, &row[i][k]);
        UNROLL for (int s = 0; s < SMALL; ++s) {
            __global const float *from = Y + (s < few ? s : few - 1) * down_y + k * on_y;
            VECTOR(VA) y = ZERO(VA);
#if VB > 1
            y = READ_V(VA, from);
#else
            for (int e = 0; e < VA; ++e) ELEMENT(y, e) = from[e * on_y];
#endif
            UNROLL for (int i = 0; i < TM; ++i)
                UNROLL for (int e = 0; e < VA; ++e) acc[s][i] += ELEMENT(x[i], e) * ELEMENT(y, e);
        }
    }
    for (; k < end; ++k) // the last, incomplete vector is one lane's
        UNROLL for (int s = 0; s < SMALL; ++s)
            UNROLL for (int i = 0; i < TM; ++i) acc[s][i] += row[i][k] * Y[(s < few ? s : few - 1) * down_y + k * on_y];

#if FOLD
    UNROLL for (int s = 0; s < SMALL; ++s)
        UNROLL for (int i = 0; i < TM; ++i) acc[s][i] += whole[s][i];
#endif
    C += offset_c + which * stride_c + get_group_id(1) * stride_slice;
    UNROLL for (int s = 0; s < SMALL; ++s)
        UNROLL for (int i = 0; i < TM; ++i) {
            const float sum = team_sum(acc[s][i], partial, team, lane);
            if (lane == 0 && s < few && l0 + i < L) {
                const ulong c = s * down_c + (l0 + i) * on_c;
                float result = alpha * sum;
                if (beta != 0.0f) result = MULTIPLY_ADD(1, beta, C[c], result); // beta = 0 never reads C
                C[c] = result;
            }
        }
}
