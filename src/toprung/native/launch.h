// C interface of the launcher in launch.cpp, which needs neither Python nor PyTorch nor CUDA's headers.

#pragma once

#include <cstddef>
#include <cstdint>

#define TOPRUNG_EXPORTED extern "C" __attribute__((visibility("default")))

// Memory that a launch is given, by its slot in toprung.backends.plan.
enum toprung_slot { TOPRUNG_A, TOPRUNG_B, TOPRUNG_C, TOPRUNG_ADDEND, TOPRUNG_WORKSPACE, TOPRUNG_PACKED, TOPRUNG_FLAGS, TOPRUNG_SLOTS };

// What toprung_launch returns beside the driver's errors: the stream has no flags yet, see toprung_flags; the driver refused a launch
// after earlier ones, so that what C held is lost.
constexpr int TOPRUNG_NO_FLAGS = -1, TOPRUNG_UNFINISHED = -2;

struct toprung_plan;

// Return a plan of words as toprung.backends.native_plan lays them out; null if they are malformed or there is no driver. It keeps nothing of
// what the words name: the caller keeps kernels and buffers for as long as the plan exists.
TOPRUNG_EXPORTED toprung_plan* toprung_plan_new(const uint64_t* words, size_t count);
TOPRUNG_EXPORTED void toprung_plan_free(toprung_plan* plan);

// Words of a plan as functions of one of its product's sizes: min(limit, base + step * ceil(times * size / divisor)); see
// toprung.backends.forms.
struct toprung_form {
    int64_t word, base, step, times, divisor, limit;
};
TOPRUNG_EXPORTED void toprung_fill(int64_t* words, const toprung_form* forms, size_t count, int64_t size);

// Have flags of a stream of the calling thread be at an address: bytes that are 0 whenever no launch in the stream runs, and live for ever.
TOPRUNG_EXPORTED void toprung_flags(uint64_t context, uint64_t stream, uint64_t address, uint64_t bytes);

// Return the number of operands of a group that a plan's launches read: `at` has that many addresses behind its slots.
TOPRUNG_EXPORTED uint64_t toprung_operands(const toprung_plan* plan);

// Put a plan's launches into a stream, from any thread. `at` has the address of each slot, 0 where there is none, and behind them those
// of a group's operands. FLAGS at 0 are the stream's; while it is captured, they lie behind the scratch memory, as Plan.lent_bytes has
// room for. Returns 0, TOPRUNG_UNFINISHED, or with nothing launched the driver's error or TOPRUNG_NO_FLAGS.
TOPRUNG_EXPORTED int toprung_launch(toprung_plan* plan, const uint64_t* at, double alpha, double beta, void* stream);
