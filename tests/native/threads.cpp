// One plan launched by many threads at once, on the stand-in for NVIDIA's driver (tests/driver/libcuda.c).
//
// Each launch has a tensor map of A, C's address, alpha, flags, a number, and a struct with the address of an operand. A thread of number t launches at addresses and with an alpha that
// no other has, so that the log shows whether a launch took anything of another's. test_native.py reads the log.

#include <dlfcn.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "launch.h"

constexpr uint64_t THREADS = 8, ROUNDS = 250, PLACES = 12;  // more places than an argument keeps tensor maps

int main() {
    void* stand_in = dlopen("libcuda.so.1", RTLD_NOW);
    const int sizes[] = {128, 8, 4, 8, 4, 16};
    const auto function = reinterpret_cast<uint64_t (*)(const char*, const int*, int)>(dlsym(stand_in, "driver_function"));
    const auto enter = reinterpret_cast<int (*)(uint64_t)>(dlsym(stand_in, "cuCtxSetCurrent"));
    const auto current = reinterpret_cast<int (*)(uint64_t*)>(dlsym(stand_in, "cuCtxGetCurrent"));
    const uint64_t context = 0x10, kernel = function("kernel", sizes, 6);
    const std::vector<uint64_t> words = {
        context, 0, 64, 0, 1, 0,                        // no scratch memory, 64 bytes of flags, one launch
        kernel, 2, 1, 1, 32, 1, 1, 0, 1, 0, 6,          // grid, block, no shared memory, overlaps, always, six arguments
        2, TOPRUNG_A, 0, 1, 64, 32, 128, 8, 4,          // map of 64 x 32 float32
        0, TOPRUNG_C, 0, 1, 0, 0, TOPRUNG_FLAGS, 0,     // C, alpha, flags
        3, 4, 0, 7,                                     // a number that never changes
        3, 16, 1, 9, 0, 1, 1, 5,                        // two words, of which the second is the second operand's address and 5
    };
    toprung_plan* plan = toprung_plan_new(words.data(), words.size());
    for (size_t count = 0; count < words.size(); count++)
        if (toprung_plan_new(words.data(), count) != nullptr) return 2;
    uint64_t at[TOPRUNG_SLOTS] = {};
    if (plan == nullptr || toprung_launch(plan, at, 1, 0, nullptr) != TOPRUNG_NO_FLAGS) return 3;

    std::vector<std::thread> threads;
    for (uint64_t t = 1; t <= THREADS; t++)
        threads.emplace_back([=] {
            enter(t);  // a context of its own, which every launch leaves as it was
            const uint64_t stream = t % 2 ? 2 : t << 32;  // 2 is each thread's own default stream
            toprung_flags(context, stream, t << 8, 64);
            for (uint64_t i = 0; i < ROUNDS; i++) {
                const uint64_t place = t << 16 | i % PLACES << 8;
                const uint64_t mine[TOPRUNG_SLOTS + 2] = {place, 0, place, 0, 0, 0, 0, 1, place};
                if (toprung_launch(plan, mine, static_cast<double>(t), 0, reinterpret_cast<void*>(stream))) std::puts("refused");
            }
            uint64_t left = 0;
            if (current(&left), left != t) std::puts("another context");
        });
    for (auto& thread : threads) thread.join();
    for (uint64_t t = 1; t <= THREADS; t++)  // what ended threads have started may still use their flags
        std::thread([=] {
            if (toprung_launch(plan, at, 1, 0, reinterpret_cast<void*>(2)) != TOPRUNG_NO_FLAGS) std::puts("another thread's flags");
        }).join();
    toprung_plan_free(plan);
    return 0;
}
