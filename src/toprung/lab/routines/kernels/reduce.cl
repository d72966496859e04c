// y = alpha * (sum of the rows of parts) + beta * y      parts: slices x M, row-major, tight; y: M elements, incy apart
//
//     parts  | slice 0       |
//            | slice 1       |  ->  y      one work-item an element; slices are added from the first to the last, so that the
//            | ...           |             same call gives the same bits
//
// With no slices this is y = beta * y. beta = 0 never reads y.

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
reduce(const uint M, const uint slices, const float alpha, __global const float *parts, const float beta, __global float *y,
       const int incy)
{
    const uint m = get_global_id(0);
    if (m >= M) return;
    float sum = 0.0f;
    for (uint s = 0; s < slices; ++s) sum += parts[(index_t)s * M + m];
    float result = slices ? alpha * sum : 0.0f;
    if (beta != 0.0f) result += beta * y[(index_t)m * incy];
    y[(index_t)m * incy] = result;
}
