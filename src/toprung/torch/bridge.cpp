// Overrides of aten's products that leave a product to PyTorch without entering Python.
//
// bridge.py compiles and loads this file; switch.py puts it over the Python kernels of overloads.py. A product passes
//
//     PyTorch's dispatcher -> Override -> route() --THEIRS--> the kernel that was there before (PyTorch's own)
//                                            |-----OURS----> start(): the launcher of plans, launch.cpp, with the plan of the kind,
//                                            |               or of a range of sizes that its kind lies in
//                                            \----PYTHON---> the Python kernel, which takes it or leaves it, and tells settle()
//
// so products.py stays the one place that decides. A kind of product that it has left for good, or has a plan for, is found here by
// its key from then on. No Python header is included and the GIL is never taken here; the Python kernel takes it when it is called.

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/gelu.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/CPUAllocator.h>

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../native/launch.h"

// Binaries of the wheel run with glibc 2.28 and the libstdc++ of its time (manylinux_2_28). What GCC 12 would import from newer ones
// is defined here: a flag of glibc 2.32, for which 0 means atomic counts throughout, and two members of C++20.
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
extern "C" {
[[gnu::visibility("hidden")]] char __libc_single_threaded = 0;
}
#endif
#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 11 && _GLIBCXX_USE_CXX11_ABI
template std::string std::stringbuf::str() const&;
template std::string std::stringbuf::str() &&;
#endif

// PyTorch 2.11 keeps the kernel of a SafeKernelFunction private; an explicit instantiation may name private members.
template <c10::KernelFunction c10::SafeKernelFunction::*Member>
struct Kernel {
    friend const c10::KernelFunction& kernel_of(const c10::SafeKernelFunction& safe) { return safe.*Member; }
};
const c10::KernelFunction& kernel_of(const c10::SafeKernelFunction& safe);
template struct Kernel<&c10::SafeKernelFunction::kernel_>;

namespace {

using at::Scalar;
using at::Tensor;
using c10::DispatchKeySet;
using Count = std::atomic<int64_t>;

// ---- what Python tells: the settings that are active, with their counters

// bridge.State in Python has the same fields. Python never frees one: a product may hold it while other settings become active.
struct State {
    Count number;  // of the decisions that hold; a new one makes all verdicts unknown
    double least;  // multiply-adds of the smallest product that is taken
    int64_t ops;   // bit i: the operator of number i in settings.ALL is taken
    int64_t reproducible;
    int64_t always;  // 1: every product that is large enough enters Python, which counts it by module
    int64_t eager;   // 1: the first product of its kind enters Python, too
    Count small, precision, deterministic, once;  // products left, by the reason
};
std::atomic<State*> active{nullptr};

// ---- the table: kind of product -> verdict

constexpr size_t DIMS = 3;                  // tensors of more dimensions are no operands: PyTorch raises its error
constexpr uint64_t ODD = 0x9E3779B97F4A7C15u, SPREAD = 0x61C88647u;  // factors of the hash; the second fits an instruction
constexpr int WORDS = 2 + 4 * 2 * DIMS;  // State::number, bits of small values, and pairs of size and stride of four tensors

struct Key {
    std::array<int64_t, WORDS> words;
    int count = 0;  // 0: no key; bridge.Key in Python has the same fields
    uint64_t hash;  // of all words but the number; the high bits depend on all of them

    bool operator==(const Key& other) const {
        return hash == other.hash && count == other.count && std::memcmp(words.data(), other.words.data(), count * sizeof(int64_t)) == 0;
    }
};

// What starts products of a kind. bridge.Taking in Python has the same fields, and frees one after toprung_forget when it has no users.
struct Range;
struct Taking {
    toprung_plan* plan;
    Count taken, users;  // products, and threads that are starting one
    int64_t lent;        // bytes of scratch memory
    int64_t fused;       // 1: the launches add the bias and compute the activation
    int64_t reach[6];    // bytes from the addresses of A, B and C to their lowest elements, and to the ends of their highest
    char name[32];       // for a profiler
    Range* range;        // null for one of Python's; else it was made here, and the table is one more user of it
    int64_t size;
};

// Held for some tens of nanoseconds and never while anything is called, so no order of locks can deadlock. A std::mutex costs sixty
// instructions more.
struct Lock {
    std::atomic_flag held;
    void lock() { while (held.test_and_set(std::memory_order_acquire)) sched_yield(); }
    void unlock() { held.clear(std::memory_order_release); }
};

// REFUSABLE and TAKEN: left where the program asks for TF32 or determinism
enum Verdict : int { UNKNOWN = 0, LEFT = 1, REFUSABLE = 2, TAKEN = 3 };

// Sizes along an axis for which a kind of product has one plan but for some words. bridge.Range in Python has the same fields, and frees
// one after toprung_forget when it has no users.
struct Range {
    int64_t first, last, verdict;  // TAKEN, LEFT, or UNKNOWN for sizes that Python decides
    const int64_t* words;          // Taking::lent, Taking::reach and a plan, of one of the sizes
    int64_t count;
    const toprung_form* forms;  // of the words that differ
    int64_t form_count;
    int64_t fused;
    char name[32];
    Count users;  // a Taking each
};

struct Kind {
    Key key;
    Verdict verdict;
    Count* count;   // of products left; Python frees it after toprung_forget
    Taking* taking;  // null unless TAKEN
    int64_t calls;   // calls that are still LEFT, without Python
    uint64_t used;  // Shard::uses at the last look-up
    // Ranges of a key that leaves out the size along an axis: the first that contains a size decides. The verdict is LEFT until
    // Python sets them (toprung_cover), then TAKEN.
    std::vector<Range*> ranges = {};
};

// Products by Takings that are gone, until Python asks.
struct Counted {
    Lock lock;
    std::map<std::pair<Range*, int64_t>, int64_t> products;  // by range and size

    void add(Taking& taking) {
        const int64_t taken = taking.taken.exchange(0, std::memory_order_relaxed);
        const std::lock_guard<Lock> held(lock);
        if (taken) products[{taking.range, taking.size}] += taken;
    }
};
Counted& counted = *new Counted;

// Have one user less of a Taking; the last frees one that was made here.
void leave(Taking* taking) {
    Range* const range = taking->range;  // Python may free its own as soon as it has no users
    if (taking->users.fetch_sub(1, std::memory_order_acq_rel) != 1 || range == nullptr) return;
    counted.add(*taking);
    toprung_plan_free(taking->plan);
    delete taking;
    range->users.fetch_sub(1, std::memory_order_release);
}

constexpr size_t ROOM = 16;  // kinds of a shard
struct Shard {
    Lock lock;
    std::vector<Kind> kinds;
    uint64_t uses = 0;

    Kind* find(const Key& key) {
        for (Kind& kind : kinds) {
            if (!(kind.key == key)) continue;
            kind.used = ++uses;
            return &kind;
        }
        return nullptr;
    }

    // Overwrite a kind, whose Taking the table uses no more.
    static void put(Kind& kind, const Kind& made) {
        Taking* const before = kind.taking;
        kind = made;
        if (before != nullptr && before->range != nullptr) leave(before);
    }

    [[gnu::noinline]] void replace(const Kind& made) {
        Kind* kind = find(made.key);
        kinds.reserve(ROOM);
        if (kind == nullptr && kinds.size() < ROOM) kind = &kinds.emplace_back();
        // The least recently used makes room. Those that Python took, and keys with ranges, are last: a product that is taken again
        // only after a call that was PyTorch's would change its bits.
        const auto worth = [](const Kind& one) { return std::pair(one.verdict == TAKEN && (!one.taking || !one.taking->range), one.used); };
        if (kind == nullptr) kind = &*std::ranges::min_element(kinds, {}, worth);
        put(*kind, made);
        kind->used = ++uses;
    }
};
constexpr int SHARDS = 1 << 10;
Shard* const shards = new Shard[SHARDS];  // never destroyed: threads may multiply while the process ends

void unlock_all() {
    counted.lock.unlock();
    for (int i = 0; i < SHARDS; i++) shards[i].lock.unlock();
}
// A fork while another thread holds a lock would leave it held in the child.
[[maybe_unused]] const int at_fork = pthread_atfork(
    [] {
        for (int i = 0; i < SHARDS; i++) shards[i].lock.lock();
        counted.lock.lock();
    },
    unlock_all, unlock_all);

Shard& shard_of(const Key& key) { return shards[key.hash >> 54]; }

// The product for which this thread is in the Python kernel: settle() is about it.
struct Product;
thread_local const Product* pending = nullptr;
struct Pending {
    const Product* before = pending;
    explicit Pending(const Product* product) { pending = product; }
    ~Pending() { pending = before; }
};

// ---- a product as it was asked for: the arguments of any of the overloads, in the order of their types

struct Asked {
    const Tensor* tensors[4];
    const Scalar* scalars[2];
    int tensor_count = 0, scalar_count = 0;
    at::ScalarType dtype = at::kFloat;
    int activation = 0;  // 0: none, 1: ReLU, 2: GELU

    void operator+=(const Tensor& tensor) { tensors[tensor_count++] = &tensor; }
    void operator+=(const Scalar& scalar) { scalars[scalar_count++] = &scalar; }
    void operator+=(at::ScalarType type) { dtype = type; }
    void operator+=(bool gelu) { activation = gelu ? 2 : 1; }
};

// Members that a tensor's public methods read, after each has checked whether it is overridden.
struct Fields : c10::TensorImpl {
    static constexpr auto custom = &Fields::matches_policy;
    static constexpr auto shape = &Fields::sizes_and_strides_;
    static constexpr auto offset = &Fields::storage_offset_;
};

// Write what decides a product into a key, as products.multiply does: A, B, a bias that is only read, and a result that was given.
// Returns false, with no key, for tensors that PyTorch refuses, or nearly.
bool keyed(Key& key, int64_t number, uint64_t head, const Tensor* const (&tensors)[4]) {
    const auto place = std::bit_cast<uint16_t>(tensors[0]->device());
    head = head << 16 | place;
    uint64_t hash = 0;
    int64_t* word = &key.words[2];
#pragma GCC unroll 4
    for (const Tensor* given : tensors) {
        head <<= 7;
        if (given == nullptr) continue;
        const c10::TensorImpl& tensor = *given->unsafeGetTensorImpl();
        const c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
        const c10::impl::SizesAndStrides& shape = tensor.*Fields::shape;
        const size_t dims = shape.size();
        if (dims > DIMS || (tensor.*Fields::custom)(c10::TensorImpl::SizesStridesPolicy::CustomStrides)) return false;
        if (storage == nullptr || std::bit_cast<uint16_t>(storage->device()) != place) return false;
        if (tensor.dtype() != caffe2::TypeMeta::Make<float>() || storage->data() == nullptr) return false;
        const auto address = reinterpret_cast<uintptr_t>(storage->data()) + sizeof(float) * (tensor.*Fields::offset);
        head |= 64 | (address & 15) << 2 | dims;
        const int64_t *sizes = shape.sizes_data(), *strides = shape.strides_data();
        const auto add = [&, at = word](int dim) {
            at[2 * dim] = sizes[dim];
            at[2 * dim + 1] = strides[dim];
            hash = (hash + sizes[dim]) * SPREAD + uint64_t{8} * strides[dim];
        };
        word += 2 * dims;
        if (dims > 2) add(2);
        if (dims > 1) add(1);
        if (dims > 0) add(0);
    }
    head &= ~(uint64_t{15} << 2 << 7);  // the bias is read by its elements, wherever it begins
    key.words[0] = number;
    key.words[1] = static_cast<int64_t>(head);
    key.hash = (hash ^ head) * ODD;
    key.count = static_cast<int>(word - key.words.data());
    return true;
}

enum Route { THEIRS, OURS, PYTHON };

struct Product {
    const Tensor* tensors[4] = {};  // A, B, a bias that is not the result, and a result that was given, else null
    double alpha = 1, beta = 0;
    Key key;                   // empty if it has none
    Taking* taking = nullptr;  // for OURS, with one user more than before
    int axis = -1;             // for PYTHON, if many sizes along it were met, and no range has this one
};

// ---- products that differ from others in one size alone

enum Axis { ROWS, DEPTH, BATCH, AXES };
constexpr int FRESH = 3;  // different sizes from which on Python is asked for a range

// Return a product's size along an axis, and write its key without that. Returns 0 where a range would make no sense.
int64_t kindred(Key& kin, const Product& product, int axis) {
    const auto& [a, b, bias, result] = product.tensors;
    const int64_t dims_a = a->dim(), dims_b = b->dim();
    if (dims_a < 2 || dims_b < 1 || (axis == BATCH && (dims_a < 3 || dims_b < 3))) return 0;
    const int64_t size = a->sizes()[axis == ROWS ? dims_a - 2 : axis == DEPTH ? dims_a - 1 : 0];
    if (size < 2) return 0;
    kin = product.key;
    kin.words[1] |= int64_t{1 + axis} << 60;  // no key of a product has such a head
    int64_t* word = &kin.words[2];
    for (int i = 0; i < 4; i++) {
        const Tensor* tensor = product.tensors[i];
        if (tensor == nullptr) continue;
        const int64_t dims = tensor->dim();
        // a batch's stride that follows from the others; that of a bias of one column does not, as it repeats along rows
        if (dims == 3 && word[1] == word[2] * word[4] && (i != 2 || (dims_b == 3 && word[4] == b->size(2)))) word[1] = -1;
        int64_t at = axis == BATCH ? (dims == 3 ? 0 : -1) : axis == DEPTH ? (i == 0 ? dims - 1 : i == 1 ? (dims == 1 ? 0 : dims - 2) : -1)
                                                                          : (i == 1 ? -1 : i == 0 || dims_b > 1 ? dims - 2 : dims - 1);
        if (at >= 0 && word[2 * at] == size) word[2 * at] = -1;
        word += 2 * dims;
    }
    uint64_t hash = 0;
    for (int i = 1; i < kin.count; i++) hash = (hash ^ kin.words[i]) * ODD;
    kin.hash = hash ^ hash >> 32;
    kin.hash *= ODD;
    return size;
}

// Return what starts products of a size, with two users: the table, and this thread; null if the launcher has no such plan.
Taking* made_for(Range& range, int64_t size) {
    std::vector<int64_t> words(range.words, range.words + range.count);
    toprung_fill(words.data(), range.forms, range.form_count, size);
    constexpr int HEAD = 7;
    toprung_plan* const plan = toprung_plan_new(reinterpret_cast<const uint64_t*>(words.data()) + HEAD, range.count - HEAD);
    if (plan == nullptr) return nullptr;
    auto* made = new Taking{plan, 0, 2, words[0], range.fused, {}, {}, &range, size};
    std::copy_n(&words[1], HEAD - 1, made->reach);
    std::copy_n(range.name, sizeof range.name, made->name);
    return made;
}

// Decide a product whose kind is new or was met once. A range that contains its size decides; else Python does, if the kind was met
// with many sizes, or again. Layers of one shape meet a new size several times per step: Python's allowance of calls covers those.
[[gnu::noinline]] Route fresh(State* state, Product& product, bool again) {
    bool passes = false;
    Range* range = nullptr;
    for (int axis = 0; axis < AXES && range == nullptr && !state->reproducible; axis++) {
        Key kin;
        const int64_t size = kindred(kin, product, axis);
        if (!size) continue;
        Shard& shard = shard_of(kin);
        std::unique_lock<Lock> held(shard.lock);
        Kind* const known = shard.find(kin);
        if (known == nullptr) {
            shard.replace({kin, LEFT, nullptr, nullptr, FRESH - 2, 0});
            continue;
        }
        if (again && known->verdict != TAKEN) continue;  // it has been counted
        const auto found = std::ranges::find_if(known->ranges, [&](Range* one) { return one->first <= size && size <= one->last; });
        if (found == known->ranges.end()) {
            if (known->calls <= 0 && product.axis < 0) product.axis = axis;
            passes = passes || (known->verdict == TAKEN && known->calls > 0);
            known->calls -= known->calls > 0;
            continue;
        }
        range = *found;
        if (range->verdict == UNKNOWN) return PYTHON;
        if (range->verdict != TAKEN) continue;
        range->users.fetch_add(1, std::memory_order_relaxed);
        held.unlock();
        product.taking = made_for(*range, size);
        if (product.taking == nullptr) {
            range->users.fetch_sub(1, std::memory_order_release);
            return PYTHON;
        }
    }
    const bool asks = state->eager || product.axis >= 0 || (again && !passes);
    if (range == nullptr && asks) return PYTHON;
    Shard& shard = shard_of(product.key);
    const std::lock_guard<Lock> held(shard.lock);
    if (product.taking == nullptr) {  // most kinds of a program whose sizes change never come again: Python need not know them
        shard.replace({product.key, LEFT, &state->once, nullptr, range == nullptr ? 0 : std::numeric_limits<int64_t>::max(), 0});
        state->once.fetch_add(1, std::memory_order_relaxed);
        return THEIRS;
    }
    // as in toprung_settle: what was forgotten meanwhile stays so
    if (product.key.words[0] != state->number.load(std::memory_order_relaxed)) product.taking->users.fetch_sub(1, std::memory_order_relaxed);
    else shard.replace({product.key, TAKEN, nullptr, product.taking, 0, 0});
    return OURS;
}

// Return the active settings for a product that they may take; null, and count it, where it is PyTorch's by its size.
__attribute__((always_inline)) inline State* admitted(const Asked& asked) {
    State* state = active.load(std::memory_order_acquire);
    if (state == nullptr || asked.dtype != at::kFloat) return nullptr;
    const bool adds = asked.scalar_count != 0;
    const c10::IntArrayRef sizes = asked.tensors[adds + 1]->sizes();
    const double work = static_cast<double>(asked.tensors[adds]->numel()) * static_cast<double>(sizes.size() > 1 ? sizes.back() : 1);
    if (work >= state->least && work != 0) return state;
    state->small.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
}

// Decide who computes a product, and count what is PyTorch's. What it calls is inlined: every product passes it.
__attribute__((flatten, noinline)) Route route(State* state, const Asked& asked, int op, bool in_place, bool has_out, Product& product) {
    const bool adds = asked.scalar_count != 0;
    auto& [a, b, bias, result] = product.tensors;
    a = asked.tensors[adds];
    b = asked.tensors[adds + 1];
    if (!(state->ops >> op & 1)) return THEIRS;
    if (has_out) result = asked.tensors[asked.tensor_count - 1];
    uint64_t head = op << 2 | asked.activation;
    if (adds) {
        const Scalar &beta = *asked.scalars[0], &alpha = *asked.scalars[1];
        if (beta.isComplex() || alpha.isComplex() || (product.alpha = static_cast<float>(alpha.toDouble())) == 0) return THEIRS;
        product.beta = static_cast<float>(beta.toDouble());  // as kernels have it: what is 0 there reads no bias
        head |= product.beta == 0 ? 64 : product.beta == 1 ? 128 : 192;
        const bool over = in_place || (has_out && asked.tensors[0]->is_same(*result));
        if (over) head |= 256;
        (over ? result : bias) = asked.tensors[0];
    }
    Key& key = product.key;
    if (state->always || !keyed(key, state->number.load(std::memory_order_relaxed), head, product.tensors)) {
        const auto f32 = caffe2::TypeMeta::Make<float>();
        return a->dtype() == f32 && b->dtype() == f32 ? PYTHON : THEIRS;
    }
    bool known = false, again = false;
    {
        Shard& shard = shard_of(key);
        const std::lock_guard<Lock> held(shard.lock);
        if (Kind* kind = shard.find(key); kind != nullptr) {
            again = kind->verdict == LEFT && kind->calls == 0;
            known = !again;
            if (kind->verdict == LEFT && known) {
                kind->calls--;
                kind->count->fetch_add(1, std::memory_order_relaxed);
                return THEIRS;
            }
            // counted under the lock: after toprung_forget, which takes it too, no look-up returns this Taking
            if ((product.taking = kind->taking) != nullptr) product.taking->users.fetch_add(1, std::memory_order_relaxed);
        }
    }
    if (!known)
        if (const Route found = fresh(state, product, again); found != OURS) return found;
    Route found = product.taking == nullptr ? PYTHON : OURS;
    const auto backend = a->is_cuda() ? at::Float32Backend::CUDA : at::Float32Backend::MKLDNN;
    const auto precision = at::globalContext().float32Precision(backend, at::Float32Op::MATMUL);
    if (precision != at::Float32Precision::NONE && precision != at::Float32Precision::IEEE) {
        state->precision.fetch_add(1, std::memory_order_relaxed);
        found = THEIRS;
    } else if (at::globalContext().deterministicAlgorithms() && !state->reproducible) {
        state->deterministic.fetch_add(1, std::memory_order_relaxed);
        found = THEIRS;
    } else if (found == OURS && result != nullptr) {
        const auto address = [](const Tensor& tensor) { return reinterpret_cast<int64_t>(tensor.const_data_ptr()); };
        const int64_t(&reach)[6] = product.taking->reach;
        const int64_t low = address(*result) + reach[4], high = address(*result) + reach[5];
        const bool clear = (high <= address(*a) + reach[0] || address(*a) + reach[1] <= low) &&
                           (high <= address(*b) + reach[2] || address(*b) + reach[3] <= low);
        // a product into the memory of its bias would be written over what is to be added
        if (!clear || (bias != nullptr && bias->storage().data() == result->storage().data())) found = THEIRS;
    }
    if (found != OURS && product.taking != nullptr) leave(product.taking);
    return found;
}

// Put a product into the current stream, as products.started does; `made` is the result where none was given. Returns false if that
// cannot be: Python tries again and says why.
bool start(const Product& product, int activation, Tensor& made) {
    Taking& its = *product.taking;
    struct User {
        Taking& its;
        ~User() { leave(&its); }
    } const user{its};
    const auto& [a, b, bias, result] = product.tensors;
    const c10::Device device = a->device();
    at::RecordFunction recorded(at::RecordScope::USER_SCOPE);
    if (recorded.isActive()) recorded.before(std::string(its.name));
    try {
        const c10::DeviceGuard guard(device);
        // as at::detail::empty_cuda does, which is not in every build of PyTorch; a graph that is captured has a pool of its own there
        c10::Allocator* allocator =
            device.is_cuda() ? at::detail::getCUDAHooks().getCUDADeviceAllocator() : c10::GetCPUAllocator();
        if (result == nullptr) {
            c10::SmallVector<int64_t, DIMS> shape(a->sizes().begin(), a->sizes().end() - 1);
            if (b->dim() > 1) shape.push_back(b->size(-1));
            const auto key = device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
            made = at::detail::empty_generic(shape, allocator, DispatchKeySet(key), at::kFloat, std::nullopt);
        } else {
            made = *result;
        }
        const c10::DataPtr lent = its.lent ? allocator->allocate(its.lent) : c10::DataPtr();
        void* stream = nullptr;
        if (device.is_cuda()) {
            const c10::impl::VirtualGuardImpl streams(device.type());
            stream = streams.getStreamNativeHandle(streams.getStream(device));
        }
        uint64_t at[TOPRUNG_SLOTS] = {};
        at[TOPRUNG_A] = reinterpret_cast<uint64_t>(a->const_data_ptr());
        at[TOPRUNG_B] = reinterpret_cast<uint64_t>(b->const_data_ptr());
        at[TOPRUNG_C] = reinterpret_cast<uint64_t>(made.mutable_data_ptr());
        at[TOPRUNG_WORKSPACE] = reinterpret_cast<uint64_t>(lent.get());
        const bool apart = bias != nullptr && !its.fused;
        if (bias != nullptr && its.fused) at[TOPRUNG_ADDEND] = reinterpret_cast<uint64_t>(bias->const_data_ptr());
        const int status = toprung_launch(its.plan, at, product.alpha, apart ? 0 : product.beta, stream);
        TORCH_CHECK(status != TOPRUNG_UNFINISHED || bias != nullptr || product.beta == 0,
                    "toprung: the device refused a launch after earlier ones of the product, and what the result held is lost");
        if (status) return false;
        if (apart && product.beta != 0) made.add_(*bias, product.beta);  // a kernel that reads C while it writes it is slow
        if (activation == 1 && !its.fused) made.relu_();
        if (activation == 2 && !its.fused) at::gelu_(made, "tanh");  // as PyTorch's own does on a GPU
    } catch (const c10::OutOfMemoryError&) {
        return false;
    }
    its.taken.fetch_add(1, std::memory_order_relaxed);
    return true;
}

// ---- the overrides

// Written before its override is registered, and read alone from then on.
struct Overload {
    explicit Overload(c10::OperatorHandle found) : handle(std::move(found)) {}

    c10::OperatorHandle handle;
    c10::KernelFunction original, python;
    int op = 0;
    bool in_place = false;
};

template <class Signature>
struct Override;

template <class Return, class... Args>
struct Override<Return(Args...)> final : c10::OperatorKernel {
    const std::shared_ptr<const Overload> overload;
    explicit Override(std::shared_ptr<const Overload> its) : overload(std::move(its)) {}

    Return operator()(DispatchKeySet keys, Args... args) {
        const Overload& its = *overload;  // switch.py keeps this kernel for a minute after disable(), which any thread may call
        Asked asked;
        ((asked += args), ...);
        State* const state = admitted(asked);
        Product product;
        const Route found = state == nullptr ? THEIRS : route(state, asked, its.op, its.in_place, std::is_reference_v<Return>, product);
        if (found == THEIRS) return its.original.template call<Return, Args...>(its.handle, keys, std::forward<Args>(args)...);
        if (Tensor made; found == OURS && start(product, asked.activation, made)) {
            if constexpr (std::is_reference_v<Return>)
                return const_cast<Tensor&>(*asked.tensors[its.in_place ? 0 : asked.tensor_count - 1]);  // as the caller passed it
            else
                return made;
        }
        const auto held = overload;  // Python may wait for longer than that
        const Pending here(product.key.count ? &product : nullptr);
        return its.python.template call<Return, Args...>(its.handle, keys, std::forward<Args>(args)...);
    }
};

using Put = c10::RegistrationHandleRAII (*)(const std::shared_ptr<const Overload>&, c10::DispatchKey);

template <class Signature>
c10::RegistrationHandleRAII put(const std::shared_ptr<const Overload>& its, c10::DispatchKey key) {
    return c10::Dispatcher::singleton().registerImpl(
        its->handle.operator_name(), key,
        c10::KernelFunction::makeFromUnboxedFunctor<false, Override<Signature>>(std::make_unique<Override<Signature>>(its)),
        c10::impl::CppSignature::make<Signature>(),  // PyTorch refuses another than its own kernels have
        nullptr, "toprung");
}

using Type = at::ScalarType;
const std::map<std::string, Put> FORMS = {
    // names by overloads.py -> signature
    {"mm", put<Tensor(const Tensor&, const Tensor&)>},
    {"mm_out", put<Tensor&(const Tensor&, const Tensor&, Tensor&)>},
    {"mm_dtype", put<Tensor(const Tensor&, const Tensor&, Type)>},
    {"mm_dtype_out", put<Tensor&(const Tensor&, const Tensor&, Type, Tensor&)>},
    {"addmm", put<Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&)>},
    {"addmm_out", put<Tensor&(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&, Tensor&)>},
    {"addmm_", put<Tensor&(Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&)>},
    {"addmm_dtype", put<Tensor(const Tensor&, const Tensor&, const Tensor&, Type, const Scalar&, const Scalar&)>},
    {"addmm_dtype_out", put<Tensor&(const Tensor&, const Tensor&, const Tensor&, Type, const Scalar&, const Scalar&, Tensor&)>},
    {"activation", put<Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&, bool)>},
    {"activation_out", put<Tensor&(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&, bool, Tensor&)>},
};

struct Silent : c10::WarningHandler {
    void process(const c10::Warning&) override {}
};

struct Place {
    std::shared_ptr<Overload> overload;
    std::optional<c10::RegistrationHandleRAII> registration;
};
auto& places = *new std::map<std::pair<std::string, c10::DispatchKey>, Place>;  // never destroyed, as the shards are not

}  // namespace

// ---- what bridge.py calls, under the lock of switch.py but for settle and collect

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Keep the kernel that an overload has now as the one for products that are left; to be called before Python's is registered.
EXPORTED void toprung_keep(const char* name, const char* overload, const char* key) {
    const auto at = c10::parseDispatchKey(key);
    const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    auto& its = places[{std::string(name) + "." + overload, at}].overload = std::make_shared<Overload>(handle);
    its->original = kernel_of(handle.getComputedKernelForDispatchKey(at));
}

// Put the override over Python's kernel. Returns false where it cannot be: an overload has another signature in this PyTorch.
EXPORTED bool toprung_override(const char* name, const char* overload, const char* key, const char* form, int op) {
    Silent silent;  // PyTorch warns of an override that replaces a kernel
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    const auto at = c10::parseDispatchKey(key);
    Place& place = places.at({std::string(name) + "." + overload, at});
    place.overload->python = kernel_of(place.overload->handle.getComputedKernelForDispatchKey(at));
    place.overload->op = op;
    place.overload->in_place = std::string(form) == "addmm_";
    try {
        place.registration.emplace(FORMS.at(form)(place.overload, at));
    } catch (const std::exception&) {
        return false;
    }
    return true;
}

// Take all overrides of a key away, so that Python's kernels are the ones on top.
EXPORTED void toprung_restore(const char* key) {
    for (auto& [where, place] : places)
        if (where.second == c10::parseDispatchKey(key)) place.registration.reset();
}

// Have settings hold from now on; null: every product is PyTorch's.
EXPORTED void toprung_activate(State* state) { active.store(state, std::memory_order_release); }

// Remember a verdict on the product for which this thread is in the Python kernel, if it was decided under these settings.
// `taking`: what starts such products, for TAKEN; `calls`: so many are LEFT before Python is asked again.
EXPORTED void toprung_settle(const State* state, Count* count, int verdict, Taking* taking, int64_t calls) {
    if (pending == nullptr) return;
    Shard& shard = shard_of(pending->key);
    const std::lock_guard<Lock> held(shard.lock);
    // Read under the lock: a number that has not changed yet is forgotten by a call that has still to come to this shard.
    if (pending->key.words[0] != state->number.load(std::memory_order_relaxed)) return;
    shard.replace({pending->key, static_cast<Verdict>(verdict), count, taking, calls, 0});
}

// Return the axis along which this thread's product, now in the Python kernel, was met with many sizes, if no range contains its own;
// write the key of products that differ along it. Return -1 if there is none.
EXPORTED int toprung_axis(Key* kin) {
    return pending != nullptr && pending->axis >= 0 && kindred(*kin, *pending, pending->axis) ? pending->axis : -1;
}

// Remember ranges of sizes for products of a key; the first that contains a size decides. Of other sizes the next ``calls`` calls are
// left to PyTorch before Python is entered again.
EXPORTED void toprung_cover(const State* state, const Key* kin, Range* const* ranges, int64_t count, int64_t calls) {
    Shard& shard = shard_of(*kin);
    const std::lock_guard<Lock> held(shard.lock);
    if (kin->words[0] != state->number.load(std::memory_order_relaxed)) return;
    shard.replace({*kin, TAKEN, nullptr, nullptr, calls, 0, {ranges, ranges + count}});
}

// Write the products by ranges since the last time, by range and size, and return how many there are; at most `room`: more are left.
EXPORTED int64_t toprung_counted(Range** ranges, int64_t* sizes, int64_t* products, int64_t room) {
    for (int i = 0; i < SHARDS; i++) {
        const std::lock_guard<Lock> held(shards[i].lock);
        for (Kind& kind : shards[i].kinds)
            if (kind.taking != nullptr && kind.taking->range != nullptr) counted.add(*kind.taking);
    }
    const std::lock_guard<Lock> held(counted.lock);
    int64_t count = 0;
    for (; count < room && !counted.products.empty(); count++) {
        const auto first = counted.products.begin();
        std::tie(ranges[count], sizes[count]) = first->first;
        products[count] = first->second;
        counted.products.erase(first);
    }
    return count;
}

// Forget the verdicts of a number that its State has no more, and have Python decide such kinds under the one that it has now. None of
// their counters, and no Taking, is used from then on.
EXPORTED void toprung_forget(int64_t number, int64_t now) {
    for (int i = 0; i < SHARDS; i++) {
        const std::lock_guard<Lock> held(shards[i].lock);
        for (Kind& kind : shards[i].kinds) {
            if (kind.key.words[0] != number) continue;
            kind.key.words[0] = now;
            Shard::put(kind, {kind.key, LEFT, nullptr, nullptr, 0, kind.used});
        }
    }
}

// Return a counter and set it to 0.
EXPORTED int64_t toprung_drained(Count* counter) { return counter->exchange(0, std::memory_order_relaxed); }

// Return true once no thread starts a product by the Taking or Range of these users any more; after toprung_forget none ever will.
EXPORTED bool toprung_idle(const Count* users) { return users->load(std::memory_order_acquire) == 0; }
