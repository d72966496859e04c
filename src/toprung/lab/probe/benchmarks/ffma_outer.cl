// acc[i][j] <- acc[i][j] + a[i] * b[j], REPEAT times; then a <- a * a + c, b <- b * b + c
//
//                 b[0] .. b[C-1]
//     a[0]        acc ...             all private: R x C accumulators and R + C operands in registers
//     ..          ...
//     a[R-1]
//
// start, step, out: one float a work-item, as in ffma_chain. ORDER: 0 row by row, 1 odd rows from right to left (boustrophedon),
// 2 in blocks of 2 x 2, 3 column by column, 4 odd columns upwards. Idea: the arithmetic of a matrix product without its memory. What
// it falls behind ffma_chain is what registers cost: a multiply-add reads three of them, and the order decides how often one is
// still at hand from the instruction before. New operands come every REPEAT steps from multiply-adds too, so that there is nothing
// else in the loop.

#define STEP(i, j) acc[i][j] = fma(a[i], b[j], acc[i][j])

__kernel __attribute__((reqd_work_group_size(LOCAL, 1, 1)))
void probe(int loops, __global const float *restrict start, __global const float *restrict step, __global float *restrict out)
{
    const uint id = get_global_id(0);
    const float c = step[id], x = start[id];
    float a[R], b[C], acc[R][C];
    UNROLL
    for (int i = 0; i < R; ++i) a[i] = x * (1.0f - 0.03125f * (float)i);
    UNROLL
    for (int j = 0; j < C; ++j) b[j] = x * (0.015625f * (float)j - 1.0f);
    UNROLL
    for (int i = 0; i < R; ++i) {
        UNROLL
        for (int j = 0; j < C; ++j) acc[i][j] = 0.0f;
    }

    for (int n = 0; n < loops; ++n) {
        UNROLL
        for (int k = 0; k < REPEAT; ++k) {
#if ORDER == 2
            UNROLL
            for (int i = 0; i < R; i += 2) {
                UNROLL
                for (int j = 0; j < C; j += 2) {
                    STEP(i, j);
                    STEP(i, j + 1);
                    STEP(i + 1, j + 1);
                    STEP(i + 1, j);
                }
            }
#elif ORDER >= 3
            UNROLL
            for (int j = 0; j < C; ++j) {
                UNROLL
                for (int s = 0; s < R; ++s) STEP((ORDER == 4 && j % 2 ? R - 1 - s : s), j);
            }
#else
            UNROLL
            for (int i = 0; i < R; ++i) {
                UNROLL
                for (int s = 0; s < C; ++s) STEP(i, (ORDER == 1 && i % 2 ? C - 1 - s : s));
            }
#endif
        }
        UNROLL
        for (int i = 0; i < R; ++i) a[i] = fma(a[i], a[i], c);
        UNROLL
        for (int j = 0; j < C; ++j) b[j] = fma(b[j], b[j], c);
    }

    float sum = 0.0f;
    UNROLL
    for (int i = 0; i < R; ++i) {
        UNROLL
        for (int j = 0; j < C; ++j) sum += acc[i][j] * (1.0f + 0.0078125f * (float)(i * C + j)); // each with a weight of its own
    }
    out[id] = sum;
}
