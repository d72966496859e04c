// What the text of the splitting pass across memory needs besides hopper_inflight_on_cpu.h.

#define SLICES 1
#define CONSUMERS 1
#include "hopper_inflight_on_cpu.h"

static void copies_commit() {}
template <int LEFT> static void copies_wait_but() {}
static void put_at(uint at, uint rank, uint value) { *(uint *)(blocks[rank].memory + at) = value; }
static uint read_remote(const uint *, uint) { abort(); } // split.cu's own kernel is not run here

#undef each_block
#define each_block(groups, threads, kernel) each_cluster(CLUSTER, groups, threads, kernel)
