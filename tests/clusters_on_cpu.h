// What texts of kernels with slices in clusters need besides hopper_on_cpu.h and prelude.cuh: a cluster's slices lie along y.

#include "hopper_on_cpu.h"

#define wait_for_previous prelude_waits // the prelude has its own of both
#define let_next_start prelude_lets
template <class V> static void put(const float *here, uint rank, V v) {
    memcpy(blocks[rank].memory + ((const char *)here - mine->memory), &v, sizeof v);
}
template <class F> static void each_slice(int groups, int slices, int threads, F kernel) {
    each_cluster(slices, groups * slices, threads, [&] {
        blockIdx.y = blockIdx.x % slices, blockIdx.x /= slices;
        kernel();
    });
}
