// The product without its guard: losses of fp16 terms are far below what a normwise promise allows, and combine.cu computes again what
// is not finite. A row with an Inf or a NaN makes all of its results NaN or Inf, as lo = x - hi is NaN there.

#define may_overflow(a, b, K) false
#define may_lose(a, b, K) false
