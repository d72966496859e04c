// v <- shared memory, then RATIO times acc <- acc + v[e] * v[e]; STEPS of these are one turn of the loop
//
//     shared memory   [ lane 0 | lane 1 | ...            ]     a lane reads W floats, STRIDE floats from those of the lane before it
//                         v0  v1 v2 ..                         AHEAD loads under way while older ones are computed with
//
// data: FLOATS floats, out: W floats a thread. Preconditions: STRIDE is a multiple of W; STEPS a multiple of AHEAD.
// Idea: the paper's Figure 2, how many instructions are issued when one in RATIO + 1 reads shared memory; with RATIO = 0 how fast
// shared memory is by itself, by width and by stride. The loads are volatile: none may be left out, moved across another one or
// kept for the next turn. A multiply-add reads two registers, so that register banks do not matter.

template <int N> struct Vector; // W floats as one load leaves them
template <> struct Vector<1> { float e[1]; };
template <> struct Vector<2> { float e[2]; };
template <> struct Vector<4> { float e[4]; };

__device__ __forceinline__ void load(Vector<1> &v, unsigned at)
{
    asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(v.e[0]) : "r"(at));
}

__device__ __forceinline__ void load(Vector<2> &v, unsigned at)
{
    asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.e[0]), "=f"(v.e[1]) : "r"(at));
}

__device__ __forceinline__ void load(Vector<4> &v, unsigned at)
{
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.e[0]), "=f"(v.e[1]), "=f"(v.e[2]), "=f"(v.e[3]) : "r"(at));
}

extern "C" __global__ void __launch_bounds__(LOCAL) probe(int loops, const float *__restrict__ data, float *__restrict__ out)
{
    __shared__ __align__(16) float shared[FLOATS];
    for (int i = threadIdx.x; i < FLOATS; i += LOCAL) shared[i] = data[i];
    __syncthreads();

    const unsigned first = (unsigned)__cvta_generic_to_shared(&shared[threadIdx.x % 32 * STRIDE]);
    Vector<W> v[AHEAD];
    float acc[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) acc[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) load(v[i], first + 4 * W * i);

#pragma unroll 1
    for (int n = 0; n < loops; ++n) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
#pragma unroll
            for (int r = 0; r < RATIO; ++r) {
                const float x = v[s % AHEAD].e[r % W];
                acc[(s * RATIO + r) % CHAINS] = __fmaf_rn(x, x, acc[(s * RATIO + r) % CHAINS]);
            }
            load(v[s % AHEAD], first + 4 * W * ((s + AHEAD) % STEPS)); // of step s + AHEAD, in this turn or the next
        }
    }

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) sum += acc[i];
#pragma unroll
    for (int e = 0; e < W; ++e) {
        float last = 0.0f;
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) last += v[i].e[e];
        out[(size_t)(blockIdx.x * LOCAL + threadIdx.x) * (W + 1) + e] = last;
    }
    out[(size_t)(blockIdx.x * LOCAL + threadIdx.x) * (W + 1) + W] = sum;
}
