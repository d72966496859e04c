// C = alpha * A * B + beta * C (C MxN, all fp32, row-major; ldc any). A and B are stored as they are.
//
//     warps 0 to 7        multiply
//     warp 8              one thread fetches boxes, each as soon as its chunk is laid out
//     warps 9 to 11       lay out A as KxM and B as KxN, where they do not lie so on 16 bytes, chunk by chunk along K
//
// A block's whole tiles come first, its share of those that are cut last. Wants: SM 9.0; flags and order.state: 0, and leaves them so.
//
// Idea: the layout of operands in the shadow of the product. What a launch of its own did before it, three idle warps do meanwhile.

#include "../hopper/hopper.cuh"
#include "ffma.cuh"
#include "share.cuh"
#include "turn.cuh"
#include "background.cuh"
#include "ffma.cu"
