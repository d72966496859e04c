// Three products of terms, for each k-block of 32:
//
//      partial  = hi.hi            from zero, promoted: added to sums in fp32 registers
//      cross   += hi.lo + lo.hi    in the Tensor Cores' accumulator for all of K, added to sums at its end
//
// Tensor Cores truncate as they add, so that what stays in them long drifts towards zero. The cross terms are 2^-11 of the result: they
// may stay. The one idea: partial sums are promoted while the Tensor Cores work on the cross terms.
//
// a, b: descriptors of a stage's 64 rows of A and BN of B, each 32 hi and 32 lo; 16 of K further: 32 bytes, 2 in a descriptor; lo: 4.

inline void start_hi_hi(float (&partial)[BN / 2], ulong a, ulong b) {
    pin(partial);
    wgmma_fence();
    wgmma<BN>(partial, a, b, 0);
    wgmma<BN>(partial, a + 2, b + 2, 1);
    wgmma_commit();
}

inline void start_cross(float (&cross)[BN / 2], ulong a, ulong b, int accumulate) { // 0: from zero
    pin(cross);
    wgmma_fence();
    wgmma<BN>(cross, a, b + 4, accumulate);
    wgmma<BN>(cross, a + 2, b + 6, 1);
    wgmma<BN>(cross, a + 4, b, 1);
    wgmma<BN>(cross, a + 6, b + 2, 1);
    wgmma_commit();
}

inline void promote(float (&sum)[BN / 2], float (&partial)[BN / 2]) {
    pin(partial);
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] += partial[i];
}

inline void add_cross(float (&sum)[BN / 2], const float (&cross)[BN / 2]) { // lo was multiplied by RESIDUAL
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = fmaf(cross[i], 1.0f / RESIDUAL, sum[i]);
}
