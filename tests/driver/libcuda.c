/* Stand-in for NVIDIA's driver library: one H200 that computes nothing and writes down what it is asked to do.
 *
 * Built as libcuda.so.1, it serves whoever looks there for the driver, by cuGetProcAddress or by name. Device memory is host
 * memory at the same addresses in every process, so copies are real. The log (TOPRUNG_DRIVER_LOG) has a line for each call that
 * gives the device work or waits for it. Addresses, streams and events have names in place of numbers; those without one are
 * counted anew behind each heading. What a real driver refuses of a launch is refused here, too.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SAY(...) return fprintf(out(), __VA_ARGS__), CUDA_SUCCESS
#define GIVE(where, what) return *(where) = (what), CUDA_SUCCESS
#define UNUSED __attribute__((unused))
#define MEMORY 150109880320ull

/* Names. A thing's kind is its letter: m, device memory; h, page-locked memory; s, stream; e, event. */

typedef struct {
    char kind, name[16];
    uint64_t at, size;
    int number, freed;
} Thing;

static Thing things[65536];
static int made, numbers[128], alive[128], meets;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t meeting;
static __thread CUcontext current;
static __thread CUstreamCaptureMode capture_mode;
#define ENDS (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED ? "" : ", would end a capture")
static int loaded, unloaded;

static FILE *out(void) {
    static FILE *file;
    if (!file) setlinebuf(file = fopen(getenv("TOPRUNG_DRIVER_LOG"), "w"));
    return file;
}

static Thing *find(uint64_t at) {
    for (Thing *one = things + made; one-- > things;)
        if (at - one->at < one->size) return one;
    return NULL;
}

static const char *named(uint64_t at) {
    static __thread char texts[4][64];
    static __thread unsigned turn;
    char *text = texts[turn++ % 4];
    Thing *found = find(at);
    if (!found) return sprintf(text, "%lx", at), text;
    if (!*found->name && !found->number) found->number = ++numbers[(int)found->kind];
    int length = *found->name ? sprintf(text, "%s", found->name) : sprintf(text, "%c%d", found->kind, found->number);
    if (at > found->at) length += sprintf(text + length, "+%lx", at - found->at);
    if (found->freed) strcpy(text + length, " FREED");
    return text;
}

static const char *S(const void *handle) { return (uintptr_t)handle > 2 ? named((uintptr_t)handle) : handle ? "legacy" : "null"; }

static const char *H(const void *host) { return find((uint64_t)host) ? named((uint64_t)host) : "host"; }

static uint32_t hashed(const void *data, size_t size) {
    uint32_t hash = 2166136261u;
    for (const uint8_t *at = data; size--; at++) hash = (hash ^ *at) * 16777619u;
    return hash;
}

/* Return a new thing's address. Memory is mapped; the next begins 2 MiB behind its end, at least. */
static uint64_t make(char kind, size_t size) {
    static uint64_t next[128];
    pthread_mutex_lock(&lock);
    uint64_t at = ((uint64_t)(kind - 'a' + 32) << 40) + 0xa500000000 + next[(int)kind];
    next[(int)kind] += (size + 0x3fffff) & ~0x1fffffull;
    things[made++] = (Thing){kind, "", at, size, 0, 0}, alive[(int)kind]++;
    pthread_mutex_unlock(&lock);
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (kind != 's' && kind != 'e' && mmap((void *)at, size, PROT_READ | PROT_WRITE, how, -1, 0) != (void *)at) abort();
    return at;
}

static CUresult drop(uint64_t at) {
    Thing *found = find(at);
    if (!found || found->at != at || found->freed) SAY("FREED what is not there: %lx\n", at);
    alive[(int)found->kind]--;
    GIVE(&found->freed, 1);
}

/* For tests: a line, or with # a heading; memory with a name; launches that wait for each other before they read arguments */

void driver_note(const char *text) {
    fprintf(out(), "%s\n", text);
    for (int i = 0; *text == '#' && i < made; i++) things[i].number = numbers[(int)things[i].kind] = 0;
}

uint64_t driver_array(size_t size, const char *name) {
    uint64_t at = make('m', size);
    strncpy(find(at)->name, name, sizeof find(at)->name - 1);
    alive['m'] -= *name != 0;
    return at;
}

void driver_end(void) {
    fprintf(out(), "left: %d m, %d h, %d s, %d e", alive['m'], alive['h'], alive['s'], alive['e']);
    fprintf(out(), ", %d of %d modules, capture mode %d\n", loaded - unloaded, loaded, capture_mode);
}

void driver_meet(int threads) {
    if ((meets = threads)) pthread_barrier_init(&meeting, NULL, threads);
}

/* Kernels. A cubin is an ELF file, whose sections .nv.info.NAME have attributes: format, number, size, value. */

typedef struct {
    char name[256];
    int count, threads, shared, dynamic;
    uint32_t code, cluster[3];
    struct { int offset, size; } parameters[64];
} Function;

static Function functions[4096];
static int function_count;

/* For tests: a kernel of no module, with parameters of these sizes */
CUfunction driver_function(const char *name, const int *sizes, int count) {
    Function *f = functions + function_count++;
    *f = (Function){.count = count, .threads = 1024, .cluster = {1, 1, 1}};
    strncpy(f->name, name, sizeof f->name - 1);
    for (int i = 0; i < count; i++) f->parameters[i].size = sizes[i];
    return (CUfunction)f;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    const char *code = image;
    const Elf64_Ehdr *head = image;
    if (memcmp(code, ELFMAG, 4)) return CUDA_ERROR_INVALID_IMAGE;
    if (head->e_machine != EM_CUDA) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    const Elf64_Shdr *all = (const Elf64_Shdr *)(code + head->e_shoff), *end = all + head->e_shnum;
    Function *first = functions + function_count;
    for (const Elf64_Shdr *one = all; one < end; one++) {
        const char *name = code + all[head->e_shstrndx].sh_offset + one->sh_name, *at = code + one->sh_offset;
        if (strncmp(name, ".nv.info.", 9)) continue;
        Function *f = functions + function_count++;
        *f = (Function){.threads = 1024, .cluster = {1, 1, 1}, .code = *(const uint32_t *)(code + 12)};
        strncpy(f->name, name + 9, sizeof f->name - 1);
        for (const char *stop = at + one->sh_size; at < stop; at += *at == 4 ? 4 + *(uint16_t *)(at + 2) : 4) {
            const uint32_t *value = (const uint32_t *)(at + 4);
            int ordinal = value[1] & 0xffff;
            if (at[1] == 0x17) { /* a parameter: index, ordinal and offset, size */
                f->parameters[ordinal].offset = value[1] >> 16, f->parameters[ordinal].size = value[2] >> 18;
                if (ordinal >= f->count) f->count = ordinal + 1;
            } else if (at[1] == 0x05 || at[1] == 0x10) /* most threads of a block, or their very number */
                f->threads = value[0] * value[1] * value[2];
            else if (at[1] == 0x3d)
                memcpy(f->cluster, value, sizeof f->cluster);
        }
    }
    for (const Elf64_Shdr *one = all; one < end; one++)
        for (Function *f = first; f < functions + function_count; f++) {
            const char *name = code + all[head->e_shstrndx].sh_offset + one->sh_name;
            if (!strncmp(name, ".nv.shared.", 11) && !strcmp(name + 11, f->name)) f->shared = one->sh_size;
        }
    loaded++;
    if (*ENDS) fprintf(out(), "load a module%s\n", ENDS);
    GIVE(module, (CUmodule)first);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    for (Function *f = (Function *)module; f < functions + function_count; f++)
        if (!strcmp(f->name, name)) GIVE(function, (CUfunction)f);
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleUnload(CUmodule module UNUSED) {
    if (*ENDS) fprintf(out(), "unload a module%s\n", ENDS);
    GIVE(&unloaded, unloaded + 1);
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) {
    Function *f = (Function *)function;
    GIVE(value, which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK    ? f->threads
                : which == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES      ? f->shared
                : which == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH ? (int)f->cluster[0]
                                                                    : 0);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
    if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) GIVE(&((Function *)function)->dynamic, value);
    SAY("attribute %d of %s: %d\n", which, ((Function *)function)->name, value);
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
    Function *f = (Function *)function;
    if (index >= (size_t)f->count) return CUDA_ERROR_INVALID_VALUE;
    if (size) *size = f->parameters[index].size;
    GIVE(offset, f->parameters[index].offset);
}

/* Write words of 8 bytes, those that repeat once, and what remains. */
static void write_argument(const void *value, int size) {
    const uint64_t *words = value;
    uint64_t rest = 0;
    fputs(" |", out());
    for (int i = 0, same = 1; i < size / 8; i++, same = 1) {
        while (i + 1 < size / 8 && words[i + 1] == words[i]) same++, i++;
        fprintf(out(), same > 1 ? " %s*%d" : " %s", named(words[i]), same);
    }
    memcpy(&rest, words + size / 8, size % 8);
    if (size % 8) fprintf(out(), " %lx", rest);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **values, void **extra) {
    Function *f = (Function *)function;
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    if (meets) pthread_barrier_wait(&meeting);
    pthread_mutex_lock(&lock);
    fprintf(out(), "launch %s %08x grid %u,%u,%u block %u,%u,%u shared %u %s", f->name, f->code, c->gridDimX, c->gridDimY,
            c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes, S(c->hStream));
    for (unsigned i = 0; i < c->numAttrs; i++)
        fprintf(out(), " attribute %d=%d", c->attrs[i].id, c->attrs[i].value.programmaticStreamSerializationAllowed);
    for (int i = 0; i < f->count; i++) write_argument(values[i], f->parameters[i].size);
    int wrong = (int)(c->blockDimX * c->blockDimY * c->blockDimZ) > f->threads || extra || c->gridDimX % f->cluster[0] ||
                c->gridDimY % f->cluster[1] || c->gridDimZ % f->cluster[2] || c->gridDimY > 65535 || c->gridDimZ > 65535 ||
                !(c->gridDimX && c->gridDimY && c->gridDimZ) || (int)c->sharedMemBytes > (f->dynamic ? f->dynamic : 49152);
    fputs(wrong ? " REFUSED\n" : "\n", out());
    pthread_mutex_unlock(&lock);
    return wrong ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        CUstream stream, void **values, void **extra) {
    return cuLaunchKernelEx(&(CUlaunchConfig){x, y, z, bx, by, bz, shared, stream, NULL, 0}, f, values, extra);
}

/* A map's words: address, columns, rows, bytes of a row, box; then type and all else, packed. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *size,
                                const cuuint64_t *stride, const cuuint32_t *box, const cuuint32_t *step,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
    if (rank != 2 || (uint64_t)address % 16 || stride[0] % 16) return CUDA_ERROR_INVALID_VALUE;
    uint64_t other = type | interleave << 8 | swizzle << 12 | promotion << 16 | fill << 20 | step[0] << 24 | step[1] << 28;
    cuuint64_t words[16] = {(uint64_t)address, size[0], size[1], stride[0], box[0], box[1], other};
    return memcpy(map->opaque, words, sizeof words), CUDA_SUCCESS;
}

/* Memory, streams, events. Nothing is captured; ENDS is written behind what would end a capture, whichever thread's. */

CUresult cuMemAlloc(CUdeviceptr *at, size_t size) {
    *at = make('m', size);
    SAY("allocate %s %zu%s\n", named(*at), size, ENDS);
}

CUresult cuMemHostAlloc(void **at, size_t size, unsigned flags UNUSED) {
    if (*ENDS) fprintf(out(), "allocate page-locked memory%s\n", ENDS);
    GIVE(at, (void *)make('h', size));
}

/* Write down a call that would end a capture, with nothing else of it. */
static void unsafe(const char *what) {
    if (*ENDS) fprintf(out(), "%s%s\n", what, ENDS);
}

CUresult cuMemFree(CUdeviceptr at) { return drop(at); }
CUresult cuMemFreeHost(void *at) { return unsafe("free"), drop((uint64_t)at); }
CUresult cuMemGetInfo(size_t *free, size_t *total) { unsafe("ask for memory"); GIVE(free, *total = MEMORY); }

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr address) {
    if (which != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL || !find(address)) return CUDA_ERROR_INVALID_VALUE;
    GIVE((int *)value, 0);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    memcpy((void *)to, from, size);
    SAY("copy %s <- %s %zu %08x %s%s\n", named(to), H(from), size, hashed(from, size), S(stream), ENDS);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    memcpy(to, (void *)from, size);
    SAY("copy %s <- %s %zu %s%s\n", H(to), named(from), size, S(stream), ENDS);
}

CUresult cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, CUstream stream) {
    for (size_t i = 0; i < count; i++) ((unsigned *)at)[i] = value;
    SAY("set %s %u*%zu %s\n", named(at), value, count, S(stream));
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags UNUSED) { unsafe("make a stream"); GIVE(stream, (CUstream)make('s', 1)); }
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int p UNUSED) { return cuStreamCreate(stream, flags); }
CUresult cuEventCreate(CUevent *event, unsigned flags UNUSED) { unsafe("make an event"); GIVE(event, (CUevent)make('e', 1)); }
CUresult cuStreamDestroy(CUstream stream) { return unsafe("end a stream"), drop((uint64_t)stream); }
CUresult cuEventDestroy(CUevent event) { return unsafe("end an event"), drop((uint64_t)event); }
CUresult cuStreamSynchronize(CUstream stream) { SAY("synchronize %s%s\n", S(stream), ENDS); }
CUresult cuEventSynchronize(CUevent event) { SAY("synchronize %s%s\n", S(event), ENDS); }
CUresult cuCtxSynchronize(void) { SAY("synchronize all\n"); }
CUresult cuEventRecord(CUevent event, CUstream stream) { SAY("record %s in %s%s\n", S(event), S(stream), ENDS); }
CUresult cuStreamWaitEvent(CUstream s, CUevent event, unsigned flags UNUSED) { SAY("%s waits for %s%s\n", S(s), S(event), ENDS); }
CUresult cuStreamIsCapturing(CUstream stream UNUSED, CUstreamCaptureStatus *is) { GIVE(is, CU_STREAM_CAPTURE_STATUS_NONE); }

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUstreamCaptureMode before = capture_mode;
    capture_mode = *mode;
    GIVE(mode, before);
}

/* The device, with one context */

static const int attributes[][2] = {
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},           {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},                   {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448}, {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},                 {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},                   {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
};

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device UNUSED) {
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i][0] == (int)which) GIVE(value, attributes[i][1]);
    GIVE(value, 0);
}

CUresult cuInit(unsigned flags UNUSED) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { GIVE(version, 13000); }
CUresult cuDeviceGetCount(int *count) { GIVE(count, 1); }
CUresult cuDeviceGet(CUdevice *device, int number) { GIVE(device, number); }
CUresult cuDeviceGetName(char *name, int room, CUdevice device UNUSED) { return strncpy(name, "NVIDIA H200", room), CUDA_SUCCESS; }
CUresult cuDeviceTotalMem(size_t *size, CUdevice device UNUSED) { GIVE(size, MEMORY); }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device UNUSED) {
    unsafe("begin a context");
    GIVE(context, (CUcontext)functions);
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device UNUSED) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { GIVE(context, current); }
CUresult cuCtxSetCurrent(CUcontext context) { GIVE(&current, context); }
CUresult cuCtxGetDevice(CUdevice *device) { GIVE(device, 0); }
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) { GIVE(least, *greatest = 0); }
CUresult cuGetErrorName(CUresult error UNUSED, const char **text) { GIVE(text, "an error"); }
CUresult cuGetErrorString(CUresult error UNUSED, const char **text) { GIVE(text, "of the stand-in"); }

/* NVRTC asks for one, and does without. */
CUresult cuGetExportTable(const void **table UNUSED, const CUuuid *which UNUSED) { return CUDA_ERROR_NOT_FOUND; }

/* Functions exist in versions, of which cuda.h names the newest. */
CUresult cuGetProcAddress(const char *name, void **found, int version UNUSED, cuuint64_t flags UNUSED,
                          CUdriverProcAddressQueryResult *status) {
    char versioned[128];
    void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    *found = NULL;
    for (int i = 4; i && !*found; i--) {
        snprintf(versioned, sizeof versioned, i > 1 ? "%s_v%d" : "%s", name, i);
        *found = dlsym(self, versioned);
    }
    if (status) *status = *found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
