// Tensor Cores truncate their sums towards zero: a k-block of 32 products loses about this share of its sum, whatever the data
// (benchmarks/split_model.py). B's lo carries that share of hi, so the product hi.lo adds what hi.hi loses. Elements without lo
// stay as they are, so that exact sums stay exact.
#ifndef CUT_SHARE
#define CUT_SHARE 7.5e-8f
#endif
inline float corrected(float share, float hi, float lo) { return lo != 0.0f ? fmaf(share, hi, lo) : 0.0f; }
