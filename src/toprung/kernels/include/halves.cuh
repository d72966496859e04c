// fp32 and fp16, bit by bit: what kernels need that split numbers into two fp16 terms.

// What two terms lose of elements far below others may change a sum by so many units in its last place; where it may be more, the sum
// is computed again in plain fp32.
#define UNITS 8

inline uint size_bits(float x) { return __float_as_uint(x) & 0x7fffffff; } // of |x|; they grow with it

#include "convert.cuh"
