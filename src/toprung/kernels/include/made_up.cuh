// Tensor Cores cut what they add towards zero: a sum of 32 products loses this share of itself, about the same whatever they are, as
// benchmarks/split_model.py shows. B's lo makes up for it. Elements that have no lo are left as they are: exact sums stay exact.
#ifndef CUT_SHARE
#define CUT_SHARE 7.5e-8f
#endif
inline float made_up(float share, float hi, float lo) { return lo != 0.0f ? fmaf(share, hi, lo) : 0.0f; }
