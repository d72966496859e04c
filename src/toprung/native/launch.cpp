// The launcher of plans on CUDA without Python: it asks of the driver, byte for byte, what backends/launcher.py asks.

#include "launch.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace {

// ---- the driver, as cuda.h declares it

struct Attribute {
    int id;
    int padding;
    union {
        int allowed;
        char room[64];
    } value;
};
struct Config {
    unsigned grid[3], block[3], shared;
    void* stream;
    Attribute* attributes;
    unsigned count;
};
constexpr int OVERLAP = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
constexpr int FLOAT16 = 6, FLOAT32 = 7, SWIZZLE_NONE = 0, SWIZZLE_128B = 3, PROMOTION_256B = 3;

struct Driver {
    int (*launch)(const Config*, void* function, void** values, void** extra);
    int (*encode)(void* map, int type, uint32_t rank, void* address, const uint64_t* sizes, const uint64_t* strides,
                  const uint32_t* box, const uint32_t* steps, int interleave, int swizzle, int promotion, int fill);
    int (*current)(void** context);
    int (*enter)(void* context);
    int (*set)(uint64_t address, unsigned value, size_t count, void* stream);
    int (*capturing)(void* stream, int* status);
    bool complete = true;

    Driver() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW);
        const auto find = [&](auto& function, const char* name) {
            void* found = library == nullptr ? nullptr : dlsym(library, name);
            function = reinterpret_cast<std::decay_t<decltype(function)>>(found);
            complete &= found != nullptr;
        };
        find(launch, "cuLaunchKernelEx");
        find(encode, "cuTensorMapEncodeTiled");
        find(current, "cuCtxGetCurrent");
        find(enter, "cuCtxSetCurrent");
        find(set, "cuMemsetD32Async");
        find(capturing, "cuStreamIsCapturing");
    }
};

const Driver& driver() {
    static const Driver found;
    return found;
}

// ---- a plan

constexpr size_t MAP_BYTES = 128;
constexpr size_t KEPT_MAPS = 8;      // of each argument, by address: memory that a pool lends comes back at a few
constexpr size_t MOST = 64;          // arguments of a launch
constexpr size_t MAP_ROOM = 8;       // tensor maps among them
constexpr size_t MOST_BYTES = 32768;   // of an argument
constexpr double SMALLEST = 0x1p-150;  // an alpha no larger than this is 0 in float32

struct alignas(64) Map {
    std::array<char, MAP_BYTES> bytes;
};
struct Template {
    int type, swizzle;
    uint64_t sizes[2], stride;
    uint32_t box[2];
    std::mutex lock;
    std::array<uint64_t, KEPT_MAPS> addresses;
    std::array<Map, KEPT_MAPS> maps;
    size_t next = 0;

    Template() { addresses.fill(1); }  // on 16 bytes begins every matrix that has a map

    // Write the tensor map of the matrix at an address.
    int write(Map& to, uint64_t address) {
        const std::lock_guard<std::mutex> held(lock);
        auto found = std::find(addresses.begin(), addresses.end(), address);
        if (found == addresses.end()) {
            const uint32_t steps[2] = {1, 1};
            Map made;
            const int status = driver().encode(&made, type, 2, reinterpret_cast<void*>(address), sizes, &stride, box, steps, 0,
                                               swizzle, PROMOTION_256B, 0);
            if (status) return status;
            found = addresses.begin() + next;
            next = (next + 1) % KEPT_MAPS;
            *found = address;
            maps[found - addresses.begin()] = made;
        }
        to = maps[found - addresses.begin()];
        return 0;
    }
};

enum Kind : uint64_t { ADDRESS, SCALAR, MAP, BYTES };
struct Written {
    uint64_t word, operand, plus;  // the word of an argument that is an operand's address, with bytes behind it
};
struct Argument {
    Kind kind;
    uint64_t index = 0, plus = 0;  // the slot with bytes behind its address, a scalar's number, or bytes that are one word
    std::unique_ptr<Template> map;
    std::vector<Map> bytes;          // of an argument that never changes but for
    std::vector<Written> addresses;  // those of a group's operands
};
enum When : uint64_t { ALWAYS, ALPHA, BETA, NO_BETA };
struct Launch {
    void* function;
    unsigned grid[3], block[3], shared;
    bool overlaps;
    When when;
    std::vector<Argument> arguments;
};

struct Words {
    const uint64_t *at, *end;

    uint64_t next(uint64_t limit = UINT64_MAX) {
        if (at == end || *at >= limit) throw std::invalid_argument("malformed plan");
        return *at++;
    }
    unsigned small() { return static_cast<unsigned>(next(1ull << 32)); }
};

void put(std::vector<Map>& bytes, uint64_t place, uint64_t word) {
    std::memcpy(bytes[0].bytes.data() + 8 * place, &word, 8);
}

Argument argument_of(Words& words) {
    Argument made{static_cast<Kind>(words.next(BYTES + 1)), 0, 0, nullptr, {}, {}};
    if (made.kind == BYTES) {
        const uint64_t whole = (words.next(MOST_BYTES) + 7) / 8;
        made.addresses.resize(words.next(whole + 1));
        if (whole == 1 && made.addresses.empty()) {
            made.index = words.next();
            return made;
        }
        made.bytes.resize(8 * whole / MAP_BYTES + 1);
        for (uint64_t i = 0; i < whole; i++) put(made.bytes, i, words.next());
        for (Written& one : made.addresses) one = {words.next(whole), words.next(UINT32_MAX), words.next()};
        return made;
    }
    made.index = words.next(made.kind == SCALAR ? 3 : TOPRUNG_SLOTS);
    if (made.kind != SCALAR) made.plus = words.next();
    if (made.kind != MAP) return made;
    made.map = std::make_unique<Template>();
    const bool half = words.next(2) == 0;
    made.map->type = half ? FLOAT16 : FLOAT32;
    made.map->swizzle = half ? SWIZZLE_128B : SWIZZLE_NONE;
    for (uint64_t* size : {&made.map->sizes[1], &made.map->sizes[0], &made.map->stride}) *size = words.next();
    for (uint32_t* size : {&made.map->box[1], &made.map->box[0]}) *size = words.small();
    return made;
}

Launch launch_of(Words& words) {
    Launch made{};
    made.function = reinterpret_cast<void*>(words.next());
    for (unsigned& size : made.grid) size = words.small();
    for (unsigned& size : made.block) size = words.small();
    made.shared = words.small();
    made.overlaps = words.next(2) != 0;
    made.when = static_cast<When>(words.next(NO_BETA + 1));
    size_t maps = 0, groups = 0;
    uint64_t left = words.next(MOST + 1);
    made.arguments.reserve(left);
    for (; left > 0; left--) {
        made.arguments.push_back(argument_of(words));
        maps += made.arguments.back().kind == MAP;
        groups += !made.arguments.back().addresses.empty();
    }
    if (maps > MAP_ROOM || groups > 1) throw std::invalid_argument("malformed plan");
    return made;
}

std::vector<Launch> launches_of(Words& words, uint64_t count) {
    std::vector<Launch> made;
    for (; count > 0; count--) made.push_back(launch_of(words));
    return made;
}

struct Flags {
    uint64_t context, stream, address, bytes;
};
std::mutex flags_lock;
auto& all_flags = *new std::vector<Flags>;  // never destroyed: threads may multiply while the process ends

// Return a number for a stream that no other stream has: the default stream of each thread has one handle, 2, for all of them.
uint64_t number_of(uint64_t stream) {
    static std::atomic<uint64_t> last{uint64_t{1} << 63};  // no address: a number is never given to another thread, whose work may still run
    static thread_local const uint64_t mine = ++last;
    return stream == 2 ? mine : stream;
}

}  // namespace

struct toprung_plan {
    void* context;
    uint64_t workspace_bytes, flags_bytes;
    bool scales;  // `scaling` is launched in place of `launches` where alpha is 0 in float32
    std::vector<Launch> launches, scaling;
    uint64_t operands = 0;  // of a group: index of the last operand that a launch reads, plus one
};

toprung_plan* toprung_plan_new(const uint64_t* words, size_t count) {
    if (!driver().complete) return nullptr;
    try {
        Words left{words, words + count};
        auto made = std::make_unique<toprung_plan>();
        made->context = reinterpret_cast<void*>(left.next());
        made->workspace_bytes = left.next();
        made->flags_bytes = left.next();
        made->scales = left.next(2) != 0;
        const uint64_t launches = left.next(), scaling = left.next();
        made->launches = launches_of(left, launches);
        made->scaling = launches_of(left, scaling);
        for (const auto* some : {&made->launches, &made->scaling})
            for (const Launch& one : *some)
                for (const Argument& argument : one.arguments)
                    for (const Written& read : argument.addresses) made->operands = std::max(made->operands, read.operand + 1);
        return left.at == left.end ? made.release() : nullptr;
    } catch (const std::exception&) {
        return nullptr;
    }
}

void toprung_plan_free(toprung_plan* plan) { delete plan; }

uint64_t toprung_operands(const toprung_plan* plan) { return plan->operands; }

void toprung_fill(int64_t* words, const toprung_form* forms, size_t count, int64_t size) {
    for (; count > 0; count--, forms++)
        words[forms->word] = std::min(forms->limit, forms->base + forms->step * ((forms->times * size + forms->divisor - 1) / forms->divisor));
}

void toprung_flags(uint64_t context, uint64_t stream, uint64_t address, uint64_t bytes) {
    stream = number_of(stream);
    const std::lock_guard<std::mutex> held(flags_lock);
    for (Flags& one : all_flags)
        if (one.context == context && one.stream == stream) {
            one = {context, stream, address, bytes};
            return;
        }
    all_flags.push_back({context, stream, address, bytes});
}

int toprung_launch(toprung_plan* plan, const uint64_t* given, double alpha, double beta, void* stream) {
    const Driver& cuda = driver();
    uint64_t at[TOPRUNG_SLOTS];
    std::copy_n(given, TOPRUNG_SLOTS, at);
    const float numbers[3] = {static_cast<float>(alpha), static_cast<float>(beta), alpha != 0 ? 1.0f : 0.0f};

    void* before = nullptr;
    if (const int status = cuda.current(&before)) return status;
    const bool away = before != plan->context;  // another device's context is current, or none: it is restored afterwards
    if (away)
        if (const int status = cuda.enter(plan->context)) return status;
    struct Back {
        const Driver* cuda;
        void* context;
        ~Back() {
            if (cuda != nullptr) cuda->enter(context);
        }
    } const back{away ? &cuda : nullptr, before};

    const bool scaled = plan->scales && std::fabs(alpha) <= SMALLEST;
    if (plan->flags_bytes && !scaled && !at[TOPRUNG_FLAGS]) {
        int captured = 0;  // an error counts as captured: the default stream may not be asked while another one is
        if (at[TOPRUNG_WORKSPACE] && (cuda.capturing(stream, &captured) || captured)) {
            // a graph has flags of its own: it may run beside the stream
            at[TOPRUNG_FLAGS] = at[TOPRUNG_WORKSPACE] + (plan->workspace_bytes + 255) / 256 * 256;
            if (const int status = cuda.set(at[TOPRUNG_FLAGS], 0, plan->flags_bytes / 4, stream)) return status;
        } else {
            const std::lock_guard<std::mutex> held(flags_lock);
            for (const Flags& one : all_flags)
                if (one.context == reinterpret_cast<uint64_t>(plan->context) && one.stream == number_of(reinterpret_cast<uint64_t>(stream)) &&
                    one.bytes >= plan->flags_bytes)
                    at[TOPRUNG_FLAGS] = one.address;
            if (!at[TOPRUNG_FLAGS]) return TOPRUNG_NO_FLAGS;
        }
    }

    bool begun = false;
    const auto refused = [&](int status) { return begun ? TOPRUNG_UNFINISHED : status; };
    for (const Launch& one : scaled ? plan->scaling : plan->launches) {
        if (one.when == ALPHA ? alpha == 0 : one.when != ALWAYS && (beta != 0) != (one.when == BETA)) continue;
        // the driver copies arguments during the call: they may lie on the stack
        uint64_t cells[MOST];
        Map maps[MAP_ROOM];
        std::vector<Map> group;
        void* values[MOST];
        size_t count = 0, map_count = 0;
        for (const Argument& argument : one.arguments) {
            void*& value = values[count];
            uint64_t& cell = cells[count++];
            switch (argument.kind) {
                case ADDRESS:
                    cell = at[argument.index] + argument.plus;
                    value = &cell;
                    break;
                case SCALAR:
                    std::memcpy(&cell, &numbers[argument.index], sizeof(float));
                    value = &cell;
                    break;
                case MAP:
                    value = &maps[map_count];
                    if (const int status = argument.map->write(maps[map_count++], at[argument.index] + argument.plus)) return refused(status);
                    break;
                case BYTES:
                    cell = argument.index;
                    value = argument.bytes.empty() ? static_cast<void*>(&cell) : const_cast<Map*>(argument.bytes.data());
                    if (argument.addresses.empty()) break;
                    group = argument.bytes;
                    for (const Written& one : argument.addresses) put(group, one.word, given[TOPRUNG_SLOTS + one.operand] + one.plus);
                    value = group.data();
                    break;
            }
        }
        Attribute overlap{OVERLAP, 0, {1}};
        const Config config{{one.grid[0], one.grid[1], one.grid[2]}, {one.block[0], one.block[1], one.block[2]}, one.shared, stream,
                            one.overlaps ? &overlap : nullptr, one.overlaps};
        if (const int status = cuda.launch(&config, one.function, values, nullptr)) return refused(status);
        begun = true;
    }
    return 0;
}
