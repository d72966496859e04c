// The fast entry of toprung.matmul: a product like an earlier one goes from Python's arguments to the driver in here.
//
// An extension module for Python's limited API, linked with launch.cpp. blas/calls.py puts again() in the place of its own function of
// that name. What is unknown here goes there, so Python stays the one place that decides. Every function is called with the GIL; a
// launch gives it away.

#define Py_LIMITED_API 0x030B0000  // Python 3.11
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "launch.h"

namespace {

// ---- DLPack 1 with its C exchange, as dlpack.h declares them

struct Tensor {
    void* data;
    int32_t device, number, dims;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset;

    uint64_t address() const { return reinterpret_cast<uint64_t>(data) + offset; }
};
struct Managed {
    uint32_t version[2];
    void* context;
    void (*free)(Managed*);
    uint64_t flags;
    Tensor tensor;
};
struct Exchange {
    uint32_t version[2];
    Exchange* older;
    int (*allocate)(Tensor* like, Managed** made, void* context, void (*fail)(void*, const char*, const char*));
    int (*to_managed)(void* object, Managed** made);
    int (*to_object)(Managed* tensor, void** made);
    int (*read)(void* object, Tensor* made);
    int (*stream)(int32_t device, int32_t number, void** made);
};
constexpr uint8_t FLOAT = 2;
constexpr int DIMS = 8;  // arrays of more dimensions are Python's

struct Ref {
    PyObject* it;
    explicit Ref(PyObject* given) : it(given) {}
    Ref(const Ref&) = delete;
    ~Ref() { Py_XDECREF(it); }
};

// ---- what Python tells

struct Library {
    PyTypeObject* type;  // of its arrays, exactly: a subclass may do what it likes
    const Exchange* exchange;
    PyObject *depth, *levels, *recording;  // of PyTorch: number of dispatch modes, names of forward_ad, is_grad_enabled
};
std::vector<Library> libraries;

struct Option {
    PyObject* values[3];  // precision, own, device
};
std::vector<Option> options;
constexpr size_t MOST_OPTIONS = 64;

PyObject *cache, *kin, *miss, *python, *started, *last;                   // of calls.py and receipt.py
PyObject *native, *inside, *left, *needs_gradient, *is_negative, *level;  // names of attributes

// OnDevice.native[0]: what starts a call
struct Start {
    toprung_plan* plan;
    uint64_t lent;     // bytes of scratch memory
    uint64_t packed;   // address of the terms of a prepacked B
    int64_t reach[6];  // bytes from the addresses of A, B and C to their lowest elements, and to the ends of their highest
};

// ---- the key of a call

// Return the number of a call's options; -1 if they must be looked at.
int option_of(PyObject* const* given) {
    for (size_t i = 0; i < options.size(); i++)
        if (std::memcmp(options[i].values, given, sizeof options[i].values) == 0) return static_cast<int>(i);
    const bool device_is_plain = given[2] == Py_None || PyUnicode_CheckExact(given[2]);
    if (!PyUnicode_CheckExact(given[0]) || !PyBool_Check(given[1]) || !device_is_plain) return -1;
    for (size_t i = 0; i < options.size(); i++) {
        const Option& one = options[i];
        if (one.values[1] == given[1] && PyObject_RichCompareBool(one.values[0], given[0], Py_EQ) == 1 &&
            PyObject_RichCompareBool(one.values[2], given[2], Py_EQ) == 1)
            return static_cast<int>(i);
    }
    if (options.size() == MOST_OPTIONS) return -1;
    options.push_back({{given[0], given[1], given[2]}});
    for (int i = 0; i < 3; i++) Py_INCREF(given[i]);
    return static_cast<int>(options.size() - 1);
}

// Return 1 for a true object, 0 for a false one or -1 for an error, and drop it.
int truth(PyObject* found) {
    const Ref held(found);
    return found == nullptr ? -1 : found == Py_True ? 1 : found == Py_False ? 0 : PyObject_IsTrue(found);
}

long number(PyObject* found) {
    const Ref held(found);
    return found == nullptr ? -2 : PyLong_AsLong(found);
}

const Library* library_of(PyObject* array) {
    for (const Library& one : libraries)
        if (one.type == Py_TYPE(array)) return &one;
    return nullptr;
}

// Return true while PyTorch must see whatever happens to any tensor.
bool is_watching(const Library& library) {
    return number(PyObject_CallNoArgs(library.depth)) != 0 || number(PyObject_GetItem(library.levels, level)) != -1;
}

// Return true if PyTorch need not see a product of an array: it records no gradient, and the signs in its memory are its own.
bool is_plain(const Library& library, PyObject* array) {
    const int gradient = truth(PyObject_GetAttr(array, needs_gradient));
    return (gradient == 0 || (gradient == 1 && truth(PyObject_CallNoArgs(library.recording)) == 0)) &&
           truth(PyObject_CallMethodObjArgs(array, is_negative, nullptr)) == 0;
}

struct Key {
    uint64_t words[1 + 3 * (2 + 2 * DIMS)];
    size_t count = 0;

    void operator+=(uint64_t word) { words[count++] = word; }
    PyObject* bytes() const { return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(words), 8 * count); }
};

// Read what decides a call into its key, and its arrays, of which the third may be missing; return their library. Null: Python must
// look at them.
const Library* read(PyObject* const* given, Tensor* tensors, Key& key) {
    const Library* library = library_of(given[0]);
    if (library == nullptr || (library->depth != nullptr && is_watching(*library))) return nullptr;
    const int option = option_of(given + 3);
    if (option < 0) return nullptr;
    key += option;
    for (int i = 0; i < 3; i++) {
        PyObject* array = given[i];
        if (i == 2 && array == Py_None) break;
        const Library* its = library_of(array);
        Tensor& tensor = tensors[i];
        if (its == nullptr || its->exchange != library->exchange || (its->depth != nullptr && !is_plain(*its, array)) ||
            its->exchange->read(array, &tensor) != 0 || tensor.data == nullptr || tensor.dims > DIMS || (tensor.dims > 0 && tensor.strides == nullptr))
            return nullptr;
        key += static_cast<uint64_t>(tensor.device) << 32 | static_cast<uint32_t>(tensor.number);
        const uint64_t type = (static_cast<uint64_t>(tensor.lanes) << 8 | tensor.bits) << 8 | tensor.code;
        key += (type << 8 | (tensor.address() & 15)) << 8 | static_cast<uint8_t>(tensor.dims);
        for (int dim = 0; dim < tensor.dims; dim++) {
            key += tensor.shape[dim];
            key += tensor.strides[dim];
        }
    }
    return library;
}

// ---- calls that differ from others in one size alone

// Dimensions of A, B and C with the size along each axis, counted from the last, as MOVING in blas/ranges.py; FIXED if there is none.
constexpr int AXES = 3, FIXED = -DIMS;
constexpr int MOVING[AXES][3] = {{-2, FIXED, -2}, {-1, -2, FIXED}, {-3, -3, -3}};

// Write what the key of a call shares with those of all calls that differ in the size along an axis alone; return that size, at most 1 if
// there can be no range.
int64_t kindred(Key& key, int axis) {
    uint64_t size = 0, *at = &key.words[1];
    for (int i = 0; at < key.words + key.count; i++) {  // device, type and number of dimensions of an array, then size and stride of each
        const int dims = static_cast<int>(at[1] & 255), moving = dims + MOVING[axis][i];
        at += 2;
        if (dims != 2 && dims != 3) return 0;
        if (dims == 3 && at[1] == at[2] * at[4]) at[1] = -1;  // it follows from the others
        if (moving >= 0 && size == 0) size = at[2 * moving];
        if (moving >= 0 && size == at[2 * moving]) at[2 * moving] = -1;  // a batch of one is shared by all, and stays one
        at += 2 * dims;
    }
    key.words[0] |= uint64_t(1 + axis) << 32;  // no key of a call has such an option
    return static_cast<int64_t>(size);
}

// kindred(key, axis) -> what the key shares; None if there can be no range
PyObject* kindred_of(PyObject*, PyObject* given) {
    const char* content;
    Py_ssize_t bytes;
    int axis;
    if (!PyArg_ParseTuple(given, "y#i", &content, &bytes, &axis)) return nullptr;
    Key key;
    key.count = std::min<size_t>(bytes, sizeof key.words) / 8;
    std::memcpy(key.words, content, 8 * key.count);
    return kindred(key, axis) > 1 ? key.bytes() : Py_NewRef(Py_None);
}

// Return the call of a range, made for an unknown key whose size the range contains; Py_None if there is no such range.
PyObject* call_inside(const Key& words, PyObject* key, PyObject* like) {
    for (int axis = 0; axis < AXES; axis++) {
        Key shared = words;
        const int64_t size = kindred(shared, axis);
        if (size < 2) continue;
        const Ref name(shared.bytes()), found(name.it == nullptr ? nullptr : PyObject_GetItem(kin, name.it));
        if (found.it == nullptr) return nullptr;
        if (found.it == Py_None) continue;
        const Ref number(PyLong_FromLongLong(size));
        PyObject* made = PyObject_CallMethodObjArgs(found.it, inside, number.it, key, like, nullptr);
        if (made == nullptr || made != Py_None) return made;
        Py_DECREF(made);
    }
    return Py_NewRef(Py_None);
}

void free_plan(PyObject* capsule) { toprung_plan_free(static_cast<toprung_plan*>(PyCapsule_GetPointer(capsule, nullptr))); }

// filled(words, forms, size) -> the words of a size: those of another one, with the forms that depend on the size
PyObject* filled(PyObject*, PyObject* given) {
    const char *words, *forms;
    Py_ssize_t bytes, form_bytes;
    long long size;
    if (!PyArg_ParseTuple(given, "y#y#L", &words, &bytes, &forms, &form_bytes, &size)) return nullptr;
    PyObject* made = PyBytes_FromStringAndSize(words, bytes);
    if (made != nullptr)
        toprung_fill(reinterpret_cast<int64_t*>(PyBytes_AsString(made)), reinterpret_cast<const toprung_form*>(forms),
                     form_bytes / sizeof(toprung_form), size);
    return made;
}

// start(words) -> a Start by what a range has for each size, which is lent, reach and the words of a plan; and what keeps that plan
PyObject* start_of(PyObject*, PyObject* given) {
    const auto* words = reinterpret_cast<const uint64_t*>(PyBytes_AsString(given));
    if (words == nullptr) return nullptr;
    Start start{nullptr, words[0], 0, {}};
    constexpr size_t HEAD = 1 + sizeof start.reach / sizeof *start.reach;
    std::memcpy(start.reach, &words[1], sizeof start.reach);
    start.plan = toprung_plan_new(words + HEAD, PyBytes_Size(given) / 8 - HEAD);
    if (start.plan == nullptr) return PyErr_Format(PyExc_ValueError, "malformed plan");
    return Py_BuildValue("y#N", &start, static_cast<Py_ssize_t>(sizeof start), PyCapsule_New(start.plan, nullptr, free_plan));
}

// ---- the launch

// Scratch memory of the arrays' library, whose allocator orders its reuse by the current stream.
struct Lent {
    Managed* made = nullptr;

    Lent(const Exchange& exchange, const Tensor& like, uint64_t bytes) {
        int64_t count = (bytes + 3) / 4;
        Tensor wanted{nullptr, like.device, like.number, 1, FLOAT, 32, 1, &count, nullptr, 0};
        if (bytes && exchange.allocate(&wanted, &made, nullptr, [](void*, const char*, const char*) {}) != 0) made = nullptr;
    }
    Lent(const Lent&) = delete;
    ~Lent() {
        if (made != nullptr && made->free != nullptr) made->free(made);
    }
};

// Launch a plan without the GIL; `prepare` makes the stream's flags where it has none yet. Returns 0, the driver's error, or
// TOPRUNG_NO_FLAGS with Python's error.
int launch(toprung_plan* plan, PyObject* prepare, const uint64_t* at, double alpha, double beta, void* stream) {
    for (int attempt = 0;; attempt++) {
        int status;
        Py_BEGIN_ALLOW_THREADS
        status = toprung_launch(plan, at, alpha, beta, stream);
        Py_END_ALLOW_THREADS
        if (status != TOPRUNG_NO_FLAGS || attempt == 1) return status;
        const Ref handle(PyLong_FromVoidPtr(stream)), done(PyObject_CallFunctionObjArgs(prepare, handle.it, nullptr));
        if (done.it == nullptr) return status;
    }
}

// Put a product into its library's current stream; false if Python must try, and say why it cannot.
bool launch(const Library& library, PyObject* prepare, const Start& start, const Tensor& a, const Tensor& b, const Tensor& c) {
    void* stream = nullptr;
    if (library.exchange->stream(a.device, a.number, &stream) != 0) return false;
    const Lent lent(*library.exchange, a, start.lent);
    if (start.lent && lent.made == nullptr) return false;
    uint64_t at[TOPRUNG_SLOTS] = {};
    at[TOPRUNG_A] = a.address();
    at[TOPRUNG_B] = b.address();
    at[TOPRUNG_C] = c.address();
    at[TOPRUNG_PACKED] = start.packed;
    if (lent.made != nullptr) at[TOPRUNG_WORKSPACE] = lent.made->tensor.address();
    return launch(start.plan, prepare, at, 1, 0, stream) == 0;
}

bool is_clear(const Start& start, const Tensor& a, const Tensor& b, const Tensor& c) {
    const int64_t at_a = a.address(), at_b = b.address(), low = c.address() + start.reach[4], high = c.address() + start.reach[5];
    return (high <= at_a + start.reach[0] || at_a + start.reach[1] <= low) &&
           (high <= at_b + start.reach[2] || at_b + start.reach[3] <= low);
}

// calls.again: a, b, out, precision, own, device -> the result and a key, or MISS and the key to remember the call by. With a seventh
// argument the call is looked for there alone, and Python's function is not asked.
PyObject* again(PyObject*, PyObject* const* given, Py_ssize_t count) {
    if (count != 6 && count != 7) return PyErr_Format(PyExc_TypeError, "again takes 6 or 7 arguments, not %zd", count);
    Tensor tensors[3];
    Key words;
    const Library* library = read(given, tensors, words);
    if (library == nullptr) {
        PyErr_Clear();
        if (count == 7) return PyTuple_Pack(2, miss, Py_None);
        return PyObject_CallFunctionObjArgs(python, given[0], given[1], given[2], given[3], given[4], given[5], nullptr);
    }
    const auto& [a, b, out] = tensors;
    const bool into = given[2] != Py_None;
    const Ref key(words.bytes());
    if (key.it == nullptr) return nullptr;
    const Ref known(PyObject_GetItem(count == 7 ? given[6] : cache, key.it));
    // the call keeps the plan while the GIL is given away
    const Ref call(known.it == Py_None && count == 6 ? call_inside(words, key.it, given[0]) : Py_XNewRef(known.it));
    if (call.it == nullptr) return nullptr;
    if (call.it == Py_None) return PyTuple_Pack(2, miss, key.it);

    const Ref by(PyObject_GetAttr(call.it, native));
    if (by.it == nullptr) return nullptr;
    const char* content = by.it == Py_None ? nullptr : PyBytes_AsString(PyTuple_GetItem(by.it, 0));
    if (content != nullptr) {
        Start start;
        std::memcpy(&start, content, sizeof start);
        const Ref made(into ? Py_NewRef(given[2]) : PyObject_CallNoArgs(PyTuple_GetItem(by.it, 1)));
        if (made.it == nullptr) return nullptr;
        if ((into ? is_clear(start, a, b, out) : library->exchange->read(made.it, &tensors[2]) == 0) &&
            launch(*library, PyTuple_GetItem(by.it, 3), start, a, b, out)) {
            if (PyObject_SetAttr(last, left, PyTuple_GetItem(by.it, 2)) != 0) return nullptr;
            return PyTuple_Pack(2, made.it, key.it);
        }
    }
    PyErr_Clear();
    const Ref at_a(PyLong_FromUnsignedLongLong(a.address())), at_b(PyLong_FromUnsignedLongLong(b.address()));
    return PyObject_CallFunctionObjArgs(started, call.it, key.it, given[0], given[1], given[2], at_a.it, at_b.it, nullptr);
}

// ---- the launcher for Python

constexpr int ARGUMENTS = 14, NEEDED = 8, QUEUE = 8, WORKSPACE = 9, OPERANDS = 12;
constexpr const char* NAMES[ARGUMENTS] = {"a",    "offset_a", "b",         "offset_b", "c",      "offset_c", "alpha",
                                          "beta", "queue",    "workspace", "addend",   "packed", "operands", "flags"};

// native_plan.launcher packs it.
struct Bound {
    toprung_plan* plan;
    uint64_t own;       // the stream where none is given
    uint64_t sizes[2];  // bytes of an element of A and of B
};

// Return an integer, also one that NumPy or the driver's bindings wrap, modulo 2^64; None is 0.
uint64_t word(PyObject* given) {
    if (given == Py_None) return 0;
    const Ref whole(PyLong_Check(given) ? Py_NewRef(given) : PyNumber_Long(given));
    return whole.it == nullptr ? 0 : PyLong_AsUnsignedLongLongMask(whole.it);
}

// A Run of backends/plan.py. `self` is a Bound and three functions: one makes the flags of a stream, one (None if the plan needs none)
// runs it with scratch memory of the session's, and one raises the driver's error.
PyObject* run(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
    PyObject* all[ARGUMENTS] = {};
    bool fits = count <= ARGUMENTS;
    for (Py_ssize_t i = 0; fits && i < count; i++) all[i] = given[i];
    for (Py_ssize_t i = 0; names != nullptr && fits && i < PyTuple_Size(names); i++) {
        int at = 0;
        while (at < ARGUMENTS && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, i), NAMES[at]) != 0) at++;
        fits = at < ARGUMENTS && all[at] == nullptr;
        if (fits) all[at] = given[count + i];
    }
    for (int i = 0; i < ARGUMENTS; i++) {
        fits = fits && (all[i] != nullptr || i >= NEEDED);
        if (all[i] == nullptr) all[i] = Py_None;
    }
    if (!fits) return PyErr_Format(PyExc_TypeError, "a run takes a, offset_a, b, offset_b, c, offset_c, alpha, beta, and options");

    Bound bound;
    std::memcpy(&bound, PyBytes_AsString(PyTuple_GetItem(self, 0)), sizeof bound);
    if (all[WORKSPACE] == Py_None && PyTuple_GetItem(self, 2) != Py_None) {
        const Ref arguments(PyTuple_New(ARGUMENTS - 2));  // all but the scratch memory, and the flags
        for (int i = 0; arguments.it != nullptr && i < ARGUMENTS - 2; i++)
            PyTuple_SetItem(arguments.it, i, Py_NewRef(all[i < WORKSPACE ? i : i + 1]));
        return arguments.it == nullptr ? nullptr : PyObject_CallObject(PyTuple_GetItem(self, 2), arguments.it);
    }
    std::vector<uint64_t> at(TOPRUNG_SLOTS);
    at[TOPRUNG_A] = word(all[0]) + bound.sizes[0] * word(all[1]);
    at[TOPRUNG_B] = word(all[2]) + bound.sizes[1] * word(all[3]);
    at[TOPRUNG_C] = word(all[4]) + 4 * word(all[5]);
    at[TOPRUNG_WORKSPACE] = word(all[WORKSPACE]);
    at[TOPRUNG_ADDEND] = word(all[10]);
    at[TOPRUNG_PACKED] = word(all[11]);
    at[TOPRUNG_FLAGS] = word(all[13]);
    if (Py_buffer view; all[OPERANDS] != Py_None && PyObject_GetBuffer(all[OPERANDS], &view, PyBUF_SIMPLE) == 0) {
        at.resize(TOPRUNG_SLOTS + view.len / 8);
        std::memcpy(at.data() + TOPRUNG_SLOTS, view.buf, 8 * (view.len / 8));
        PyBuffer_Release(&view);
    }
    if (at.size() - TOPRUNG_SLOTS < toprung_operands(bound.plan))
        return PyErr_Format(PyExc_IndexError, "a group of %zu operands lacks some that the plan reads", at.size() - TOPRUNG_SLOTS);
    const double alpha = PyFloat_AsDouble(all[6]), beta = PyFloat_AsDouble(all[7]);
    void* stream = reinterpret_cast<void*>(all[QUEUE] == Py_None ? bound.own : word(all[QUEUE]));
    if (PyErr_Occurred()) return nullptr;
    const int status = launch(bound.plan, PyTuple_GetItem(self, 1), at.data(), alpha, beta, stream);
    if (PyErr_Occurred()) return nullptr;
    if (status == 0) Py_RETURN_NONE;
    return PyObject_CallFunction(PyTuple_GetItem(self, 3), "i", status);
}
PyMethodDef run_definition = {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(run)), METH_FASTCALL | METH_KEYWORDS, nullptr};

// launcher(self of run) -> run
PyObject* launcher(PyObject*, PyObject* self) { return PyCFunction_NewEx(&run_definition, self, nullptr); }

// ---- the module

// install(cache, kin, MISS, again, started, last): objects of calls.py, and the thread's last receipt
PyObject* install(PyObject*, PyObject* given) {
    if (!PyArg_ParseTuple(given, "OOOOOO", &cache, &kin, &miss, &python, &started, &last)) return nullptr;
    for (PyObject* one : {cache, kin, miss, python, started, last}) Py_INCREF(one);
    native = PyUnicode_InternFromString("native");
    inside = PyUnicode_InternFromString("inside");
    left = PyUnicode_InternFromString("left");
    needs_gradient = PyUnicode_InternFromString("requires_grad");
    is_negative = PyUnicode_InternFromString("is_neg");
    level = PyUnicode_InternFromString("_current_level");
    Py_RETURN_NONE;
}

// know(type, capsule, modes, names of forward_ad, is_grad_enabled) -> False if the library's version of the exchange is unknown
PyObject* know(PyObject*, PyObject* given) {
    PyObject *type, *capsule;
    Library made{};
    if (!PyArg_ParseTuple(given, "OO|OOO", &type, &capsule, &made.depth, &made.levels, &made.recording)) return nullptr;
    auto* exchange = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    while (exchange != nullptr && exchange->version[0] > 1) exchange = exchange->older;
    if (PyErr_Occurred()) return nullptr;
    if (exchange == nullptr || exchange->version[0] != 1 || exchange->read == nullptr) Py_RETURN_FALSE;
    made.type = reinterpret_cast<PyTypeObject*>(type);
    made.exchange = exchange;
    for (PyObject* one : {type, capsule, made.depth, made.levels, made.recording}) Py_XINCREF(one);
    std::erase_if(libraries, [&](const Library& one) { return one.type == made.type; });
    libraries.push_back(made);
    Py_RETURN_TRUE;
}

PyMethodDef functions[] = {
    {"again", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(again)), METH_FASTCALL, nullptr},
    {"filled", filled, METH_VARARGS, nullptr},
    {"install", install, METH_VARARGS, nullptr},
    {"kindred", kindred_of, METH_VARARGS, nullptr},
    {"know", know, METH_VARARGS, nullptr},
    {"launcher", launcher, METH_O, nullptr},
    {"start", start_of, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "entry", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_entry() { return PyModule_Create(&module); }
