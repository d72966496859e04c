// Copies, loads and stores of shared memory, each of which is noted, and matrix instructions that take A from registers.

template <int BYTES> inline void copy_async(uint to, const float *from, int valid) {
    writes(to, BYTES), self->copies.push_back({to, BYTES});
    later([=] {
        memset(at_byte(to), 0, BYTES);
        if (valid) memcpy(at_byte(to), from, valid);
    });
}
template <int BYTES> inline void copy_async_if(uint to, const float *from, bool there) { copy_async<BYTES>(to, from, there ? BYTES : 0); }
inline void copies_wait() {
    make_own_copies();
    for (auto [to, bytes] : self->copies) writes(to, bytes);
    self->copies.clear();
}
template <class T> inline T read_at(uint at) {
    reads(at, sizeof(T));
    return *(T *)at_byte(at);
}
template <class T> inline void write_at(uint at, T v) { writes(at, sizeof v), memcpy(at_byte(at), &v, sizeof v); }
inline float4 shared_four(uint at) { return read_at<float4>(at); }
inline float2 shared_two(uint at) { return read_at<float2>(at); }
inline uint shared_half(uint at) { return read_at<unsigned short>(at); }
inline float shared_one(uint at) { return read_at<float>(at); }
inline void shared_put(uint at, uint a, uint b, uint c, uint d) { write_at(at, make_uint4(a, b, c, d)); }
inline void shared_put(uint at, uint a, uint b) { write_at(at, uint2{a, b}); }
inline void shared_put(uint at, float4 v) { write_at(at, v); }
inline void shared_put_half(uint at, uint v) { write_at(at, (unsigned short)v); }
inline void shared_put(uint at, float v) { write_at(at, v); }
inline float shared_of(uint at, uint rank) { return *(float *)(blocks[rank].memory + at); }
inline void bulk_store(float *to, uint from, uint bytes) {
    asynchronously_read(from, bytes), reads(from, bytes), self->stores.push_back({from, bytes});
    later([=] { memcpy(to, at_byte(from), bytes); });
}
inline void bulk_wait() {
    make_own_copies();
    for (auto [from, bytes] : self->stores) reads(from, bytes);
    self->stores.clear();
}

inline uint fragments[16][1024][4];
template <int N> inline void wgmma_rs(float (&d)[N / 2], const uint (&a)[4], word b, int accumulate) {
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 32;
    for (int i = 0; i < 4; ++i) fragments[rank][threadIdx.x][i] = a[i];
    multiplies(), warp_meets();
    for (int col = threadIdx.x % 128; col < N; col += 128)
        for (int half = 0; half < 2; ++half) asynchronously_read((uint)((const char *)eight_of(b, col, half) - mine->memory), 16);
    for (int i = 0; i < N / 2; ++i) {
        UnitSum sum;
        if (accumulate) sum.add(d[i]);
        for (int half = 0; half < 2; ++half) {
            const unsigned short *y = eight_of(b, i / 4 * 8 + lane % 4 * 2 + (i & 1), half);
            for (int k = 0; k < 8; ++k) {
                uint x = fragments[rank][first + lane / 4 * 4 + k / 2][(i & 2) / 2 + half * 2];
                sum.add((double)wide(k % 2 ? x >> 16 : x & 0xffff) * wide(y[k]));
            }
        }
        d[i] = sum.total();
    }
    warp_meets();
}
