// ANYWHERE(W, p), LOCAL_ANYWHERE(W, p): the W floats at p, which needs a float's alignment only. On a CPU that costs nothing.
typedef VECTOR(1) loose1;
typedef VECTOR(2) __attribute__((aligned(4))) loose2;
typedef VECTOR(4) __attribute__((aligned(4))) loose4;
typedef VECTOR(8) __attribute__((aligned(4))) loose8;
typedef VECTOR(16) __attribute__((aligned(4))) loose16;
#define ANYWHERE(W, p) (*(__global const TOPRUNG_JOIN(loose, W) *)(p))
#define LOCAL_ANYWHERE(W, p) (*(__local const TOPRUNG_JOIN(loose, W) *)(p))

// a loop of constant length N is unrolled: its arrays are registers
#define UNROLLED(N) __attribute__((opencl_unroll_hint(N)))
