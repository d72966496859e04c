// x <- x * x + c, one after the other, in one warp; and the clocks that they took
//
//     x -> x -> x -> ...     each waits for the one before it
//
// start, step, out: one float a thread, as in ffma_chain; clocks: one number a thread.
// Idea: a chain shows the latency, since nothing else is there to be computed meanwhile. The clock is the multiprocessor's own.

extern "C" __global__ void __launch_bounds__(LOCAL)
probe(int loops, const float *__restrict__ start, const float *__restrict__ step, float *__restrict__ out,
      unsigned long long *__restrict__ clocks)
{
    const float c = step[threadIdx.x];
    float x = start[threadIdx.x];
    x = __fmaf_rn(x, x, c); // both numbers have arrived
    const long long before = clock64();
    for (int n = 0; n < loops; ++n) {
#pragma unroll
        for (int k = 0; k < REPEAT; ++k) x = __fmaf_rn(x, x, c);
    }
    const long long after = clock64() + (x > 4.0f); // not read before the chain has ended
    out[threadIdx.x] = x;
    clocks[threadIdx.x] = (unsigned long long)(after - before);
}
