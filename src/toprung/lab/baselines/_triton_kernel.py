"""A matrix product in Triton: one program a tile of C, K in steps, edges by masks. Imported only where Triton is installed."""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a, b, c, M, N, K, alpha, a_row, a_col, b_row, b_col, c_row,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BAND: tl.constexpr,
    WHOLE: tl.constexpr, WHOLE_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """C = α·op(A)·op(B); a transpose is a pair of strides changed over."""
    # programs that run together share bands of BAND tiles of rows, so that what they read of B stays in the L2 cache
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_band = BAND * tiles_n
    first = tl.program_id(0) // in_band * BAND
    height = min(tiles_m - first, BAND)
    place = tl.program_id(0) % in_band
    row = (first + place % height) * BM
    col = place // height * BN

    m, n, k = row + tl.arange(0, BM), col + tl.arange(0, BN), tl.arange(0, BK)
    if WHOLE:  # without the remainder the compiler sees that neighbours are neighbours, and loads wide
        m_read, n_read = m, n
    else:  # rows and columns beyond the edge read some valid element; what they make is not stored
        m_read, n_read = m % M, n % N
    x = a + m_read[:, None] * a_row + k[None, :] * a_col
    y = b + k[:, None] * b_row + n_read[None, :] * b_col
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        if WHOLE_K:
            left, right = tl.load(x), tl.load(y)
        else:
            left = tl.load(x, mask=k[None, :] < K - start, other=0.0)
            right = tl.load(y, mask=k[:, None] < K - start, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
        x += BK * a_col
        y += BK * b_row
    tl.store(c + m[:, None] * c_row + n[None, :], alpha * total, mask=(m[:, None] < M) & (n[None, :] < N))
