// The OpenCL side of the kernels' common vocabulary. prelude.cuh says the same words in CUDA C++, so one kernel text serves both.
// VECTOR(W)        the type of W consecutive floats, W in 1, 2, 4, 8, 16 (1, 2, 4 where the text must also compile as CUDA)
// ZERO(W)          W zeros
// GLOBAL_V(W, p)   the W floats at p in global memory, as one access: p must be aligned to W floats. An lvalue.
// LOCAL_V(W, p)    the same in local memory
// READ_V(W, p)     GLOBAL_V for data nobody writes while the kernel runs; through the read-only cache with READ_ONLY=1
// ELEMENT(v, e)    element e (a compile-time constant) of the private vector v. An lvalue.
// ALIGNED(W)       attribute: aligned to W floats. For tiles read one float at a time, too: NVIDIA's OpenCL puts some bytes of its
//                  own in front of them, and only where they are aligned may the compiler read four at a time
// LPTR             address-space qualifier of a pointer into local memory
// index_t          the type of an offset into a matrix: 64 bits, or 32 with INDEX32=1
// UNROLL           in front of a loop of constant length: unroll it, where the compiler must be told (NVIDIA's; the others know)
// room_for(x, y, z, n)  reqd_work_group_size(x, y, z), and registers for no fewer than n work-groups on a compute unit, where the
//                  compiler can be told (NVIDIA's; for OpenCL the backend tells it)
// KEEP(x)          the 32-bit variable x is held in a register from here on: not computed anew at each use to save one
// MULTIPLY_ADD(W, a, v, w)  a * v + w for a float a and W floats v and w, rounded once: what a * b + c * d leaves to the compiler
// wait_for_previous()  the kernel before this one in the queue is done, and what it wrote is seen. A backend may start a kernel
//                  earlier that has this (Source.waits): it must stand before the first access to memory, and no pointer to what
//                  another kernel may have written is const restrict, or the compiler reads it before the wait
// let_next_start() the next kernel may start where this one leaves room; it waits for this one by itself. For a second pass alone:
//                  work-groups of a product that come early crowd where room is first, and stay there
// LANE_READ(v, l)  the value of v in lane l of this sub-group, with SHUFFLE=1

// a * b + c is one fused multiply-add; fma() is not used because some CPU runtimes call a function for it
#ifdef TOPRUNG_SEPARATE // the build option "separate"
#pragma OPENCL FP_CONTRACT OFF
#else
#pragma OPENCL FP_CONTRACT ON
#endif

typedef float float1;
#define TOPRUNG_JOIN_(a, b) a##b
#define TOPRUNG_JOIN(a, b) TOPRUNG_JOIN_(a, b)
#define VECTOR(W) TOPRUNG_JOIN(float, W)
#define ZERO(W) ((VECTOR(W))(0.0f))
#define GLOBAL_V(W, p) (*(__global VECTOR(W) *)(p))
#define LOCAL_V(W, p) (*(__local VECTOR(W) *)(p))
#define READ_V(W, p) (*(__global const VECTOR(W) *)(p))
#define ELEMENT(v, e) (((float *)&(v))[e])
#define ALIGNED(W) __attribute__((aligned(4 * (W))))
#define LPTR __local
#define room_for(x, y, z, n) reqd_work_group_size(x, y, z)
#define KEEP(x)
#define wait_for_previous() // kernels of a queue follow each other
#define let_next_start()
#define MULTIPLY_ADD(W, a, v, w) fma((VECTOR(W))(a), v, w)

#ifdef __NV_CL_C_VERSION
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

#if defined(INDEX32) && INDEX32
typedef uint index_t;
#else
typedef ulong index_t;
#endif

#if defined(SHUFFLE) && SHUFFLE
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
#define LANE_READ(v, l) sub_group_shuffle(v, l)
#define __kernel __kernel __attribute__((intel_reqd_sub_group_size(SUBGROUP)))
#endif
