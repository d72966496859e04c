// What the text of the tiled kernel for groups needs besides hopper_on_cpu.h.

#include "hopper_on_cpu.h"

static uint __umulhi(uint x, uint y) { return (uint)((word)x * y >> 32); }
