inline uint pair_of(float low, float high) {
    return bits_as<unsigned short>((_Float16)low) | (uint)bits_as<unsigned short>((_Float16)high) << 16;
}
inline float from_half(uint half) { return wide((unsigned short)half); }
