// x <- x * x + c, CHAINS times side by side
//
//     x[0] .. x[CHAINS-1], c    private: nothing is read or written while it counts
//
// start, step, out: VEC floats a work-item. Preconditions: -1.95 < step < -1.6 and |start| <= 1, which keeps |x| < 2.
// Idea: multiply-adds that depend on nothing but the one before, and read two registers, x and c, which no register bank refuses:
// the rate of the arithmetic itself. The sequence is chaotic, so the numbers stay as random as the first, no compiler can
// shorten it, and one operation left out or rounded otherwise changes the result altogether. A CPU multiplies as many floats at a
// time as its registers hold only where the kernel says so: VEC floats wide.

#undef UNROLL // PoCL's compiler unrolls only what it is told to, and chains in a loop are in memory
#define UNROLL _Pragma("unroll")

__kernel __attribute__((reqd_work_group_size(LOCAL, 1, 1)))
void probe(int loops, __global const float *restrict start, __global const float *restrict step, __global float *restrict out)
{
    const uint id = get_global_id(0);
    const VECTOR(VEC) c = GLOBAL_V(VEC, step + id * VEC), first = GLOBAL_V(VEC, start + id * VEC);
    VECTOR(VEC) x[CHAINS];
    UNROLL
    for (int i = 0; i < CHAINS; ++i) x[i] = first * (1.0f - 0.0625f * (float)i); // two roundings at most, none fused

    for (int n = 0; n < loops; ++n) {
        UNROLL
        for (int k = 0; k < REPEAT; ++k) {
            UNROLL
            for (int i = 0; i < CHAINS; ++i) x[i] = x[i] * x[i] + c;
        }
    }

    VECTOR(VEC) sum = ZERO(VEC);
    UNROLL
    for (int i = 0; i < CHAINS; ++i) sum += x[i];
    GLOBAL_V(VEC, out + id * VEC) = sum;
}
