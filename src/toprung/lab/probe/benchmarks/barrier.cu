// shared memory <- a number of the thread's; barrier; the thread reads its neighbour's warp's; and the clocks of LOOPS barriers
//
//     warp 0 | warp 1 | ...     none goes on before the last has come
//
// out: one number a thread, how many barriers it saw its neighbour pass; clocks: one number a thread.
// Idea: what a barrier costs when all come at once. The count comes out right only if nobody passes early.

extern "C" __global__ void __launch_bounds__(LOCAL)
probe(int loops, unsigned *__restrict__ out, unsigned long long *__restrict__ clocks)
{
    __shared__ unsigned passed[2][LOCAL];
    const unsigned t = threadIdx.x, other = (t + 32) % LOCAL;
    passed[0][t] = passed[1][t] = 0;
    __syncthreads();
    const long long before = clock64();
#pragma unroll 1
    for (int n = 0; n < loops; ++n) {
#pragma unroll
        for (int k = 0; k < REPEAT; ++k) asm volatile("bar.sync 0;" ::: "memory");
    }
    const long long after = clock64();
    unsigned seen = 0;
#pragma unroll 1
    for (unsigned n = 0; n < CHECKED; ++n) {
        passed[n % 2][t] = n + 1;
        asm volatile("bar.sync 0;" ::: "memory");
        seen += *(volatile unsigned *)&passed[n % 2][other] == n + 1;
    }
    out[blockIdx.x * LOCAL + t] = seen;
    clocks[blockIdx.x * LOCAL + t] = (unsigned long long)(after - before);
}
