// Slices of K, for a C of few tiles: a tile of a slice has ``depth`` of K, and reduce.cu adds the slices' results up.

// where a slice begins, its length, and its k-blocks of 32 (0: A and B are not read)
struct Slice {
    int first, depth, k_blocks;
};

inline Slice slice_of(int slice, int depth, int K, float alpha) {
    int first = slice * depth, mine = min(depth, K - first);
    return Slice{first, mine, alpha == 0.0f ? 0 : (mine + 31) / 32};
}
