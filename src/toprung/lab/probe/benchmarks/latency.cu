// at <- chain[at], one after the other, in one thread; and the clocks that it takes
//
//     4 -> 9 -> 2 -> ...     each says where the next one lies
//
// chain: LINKS links, STRIDE numbers apart; state: where the last launch ended, where this one began and where it ended.
// KIND 0: the chain is copied into shared memory; 1: read through the L1 cache; 2: past it, from the cache that all share.
// Idea: nothing can be asked for before what was asked for last has come. Each launch goes on where the last one ended, so that
// a chain longer than every cache is always read from memory.

__device__ __forceinline__ unsigned next(const unsigned *chain, unsigned at)
{
    unsigned to;
#if KIND == 0
    to = *(const volatile unsigned *)(chain + at);
#elif KIND == 1
    asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(to) : "l"(chain + (size_t)at));
#else
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(to) : "l"(chain + (size_t)at));
#endif
    return to;
}

extern "C" __global__ void probe(int steps, const unsigned *__restrict__ chain, unsigned *__restrict__ state,
                                 unsigned long long *__restrict__ clocks)
{
#if KIND == 0
    __shared__ unsigned links[LINKS * STRIDE];
    for (int i = 0; i < LINKS * STRIDE; ++i) links[i] = chain[i];
#else
    const unsigned *links = chain;
#endif
    const unsigned first = state[0];
    unsigned at = first;
#if KIND == 1
#pragma unroll 1
    for (int n = 0; n < LINKS; ++n) at = next(links, at); // which brings all of it, and ends where it began
#endif
    const long long before = clock64();
#pragma unroll 4
    for (int n = 0; n < steps; ++n) at = next(links, at);
    const long long after = clock64() + (at == 0xFFFFFFFFu); // not read before the chain has ended
    state[0] = at;
    state[1] = first;
    state[2] = at;
    clocks[0] = (unsigned long long)(after - before);
}
