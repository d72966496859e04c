#ifdef CONSUMERS // of hopper_fp32x
inline void consumers_meet() { named_barrier(15, 128 * CONSUMERS); }
inline void group_sync() { named_barrier(1 + threadIdx.x / 128, 128); }
inline uint by_residual(uint two) { return pair_of(wide(two & 0xffff) / 2048, wide(two >> 16) / 2048); }
inline void global_proxy_fence() { self->unseen = self->stale = false; }
#define global_proxy_fence() FENCE(global_proxy_fence)
inline uint acquired(const uint *word) {
    others_first(), self->stale = true;
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

#else // of hopper_sgemm
inline void consumers_meet() { named_barrier(2, 32 * WARPS); }
inline float4 lds(uint at) { return *(const float4 *)at_byte(at); }
inline void sts(uint at, float x, float y, float z, float w) { *(float4 *)at_byte(at) = make_float4(x, y, z, w); }
inline void pad() {}
inline uint peek(const uint *flag) { // blocks run one after the other: a flag of a later one never comes
    if (uint v = __atomic_load_n(flag, __ATOMIC_SEQ_CST)) return v;
    fprintf(stderr, "block %d waits for one that has not begun\n", blockIdx.x);
    abort();
}
inline void poke(uint *flag, uint v) { published(0, 256), __atomic_store_n(flag, v, __ATOMIC_SEQ_CST); }
#endif
#define consumers_meet() FENCE(consumers_meet)
