// The CUDA side of the kernels' common vocabulary: prelude.cl says the same words in OpenCL C and explains them, so one kernel
// text serves both. What OpenCL C has by itself and CUDA C++ has not comes first. No header is included: nothing but the compiler
// is needed. Functions without a qualifier run on the device (--device-as-default-execution-space).

#define __kernel extern "C" __global__
#define reqd_work_group_size(x, y, z) launch_bounds((x) * (y) * (z)) // sits in __attribute__((...)) behind __kernel
#define room_for(x, y, z, groups) launch_bounds((x) * (y) * (z), groups)
#define __global
#define __local __shared__ // only for arrays declared in a kernel; a pointer into one is LPTR
#define __constant __constant__ // only for tables at program scope
#define restrict __restrict__
#define CLK_LOCAL_MEM_FENCE 1
#define CLK_GLOBAL_MEM_FENCE 2
#define barrier(fences) __syncthreads() // orders both kinds of memory within the work-group

typedef unsigned int uint;
typedef unsigned long long ulong;

inline uint get_local_id(uint d) { return d == 0 ? threadIdx.x : d == 1 ? threadIdx.y : threadIdx.z; }
inline uint get_group_id(uint d) { return d == 0 ? blockIdx.x : d == 1 ? blockIdx.y : blockIdx.z; }
inline uint get_local_size(uint d) { return d == 0 ? blockDim.x : d == 1 ? blockDim.y : blockDim.z; }
inline uint get_num_groups(uint d) { return d == 0 ? gridDim.x : d == 1 ? gridDim.y : gridDim.z; }
inline uint get_global_id(uint d) { return get_group_id(d) * get_local_size(d) + get_local_id(d); }
inline uint get_global_size(uint d) { return get_num_groups(d) * get_local_size(d); }

#define powr powf
#define native_powr __powf
#define native_divide __fdividef

inline float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
inline float2 operator-(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }
inline float2 operator*(float2 a, float2 b) { return make_float2(a.x * b.x, a.y * b.y); }
inline float2 operator*(float a, float2 b) { return make_float2(a * b.x, a * b.y); }
inline float2 operator*(float2 a, float b) { return b * a; }
inline float2 &operator+=(float2 &a, float2 b) { return a = a + b; }

inline float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
inline float4 operator-(float4 a, float4 b) { return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w); }
inline float4 operator*(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
inline float4 operator*(float a, float4 b) { return make_float4(a * b.x, a * b.y, a * b.z, a * b.w); }
inline float4 operator*(float4 a, float b) { return b * a; }
inline float4 &operator+=(float4 &a, float4 b) { return a = a + b; }

#define TOPRUNG_FLOATS_1 float // CUDA's own float1 is a structure without arithmetic
#define TOPRUNG_FLOATS_2 float2
#define TOPRUNG_FLOATS_4 float4
#define TOPRUNG_JOIN_(a, b) a##b
#define TOPRUNG_JOIN(a, b) TOPRUNG_JOIN_(a, b)
#define VECTOR(W) TOPRUNG_JOIN(TOPRUNG_FLOATS_, W)
#define ZERO(W) (VECTOR(W)())
#define GLOBAL_V(W, p) (*(VECTOR(W) *)(p))
#define LOCAL_V(W, p) (*(VECTOR(W) *)(p))
#define ELEMENT(v, e) (((float *)&(v))[e])
#define ALIGNED(W) __attribute__((aligned(4 * (W))))
#define LPTR
#define UNROLL _Pragma("unroll")
inline float multiply_add(float a, float v, float w) { return fmaf(a, v, w); }
inline float2 multiply_add(float a, float2 v, float2 w) { return make_float2(fmaf(a, v.x, w.x), fmaf(a, v.y, w.y)); }
inline float4 multiply_add(float a, float4 v, float4 w) {
    return make_float4(fmaf(a, v.x, w.x), fmaf(a, v.y, w.y), fmaf(a, v.z, w.z), fmaf(a, v.w, w.w));
}
#define MULTIPLY_ADD(W, a, v, w) multiply_add(a, v, w)
#if __CUDA_ARCH__ >= 900
inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
inline void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
inline void wait_for_previous() {}
inline void let_next_start() {}
#endif
#define KEEP(x) asm volatile("" : "+r"(x))

#if defined(READ_ONLY) && READ_ONLY
#define READ_V(W, p) __ldg((const VECTOR(W) *)(p))
#else
#define READ_V(W, p) (*(const VECTOR(W) *)(p))
#endif

#if defined(INDEX32) && INDEX32
typedef uint index_t;
#else
typedef ulong index_t;
#endif

#define SUBGROUP 32
#define LANE_READ(v, l) __shfl_sync(0xffffffffu, v, l)
