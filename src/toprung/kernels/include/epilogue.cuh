// What becomes of a sum on its way into C, C = f(alpha * A * B + beta * D).
//
// Without EPILOGUE D is C itself, read where it is written, and f changes nothing. With EPILOGUE 1 D is an array of its own, a bias or a
// matrix, and with EPILOGUE 2 a row that all rows of C share, without gaps: ``down_d``, ``on_d`` and ``stride_d`` floats from one row, column, matrix to the next, 0 where it repeats. With beta = 0 D
// is not read. ACTIVATION is f, numbered as in helpers/move.cl.

#ifndef EPILOGUE
#define EPILOGUE 0
#endif
#ifndef ACTIVATION
#define ACTIVATION 0
#endif
#if EPILOGUE
#define ADDED_PARAMETERS , const float *D, long long down_d, long long on_d, long long stride_d
#define ADDED(matrix, row, col) Added{D + (matrix) * stride_d + (row) * down_d + (col) * on_d, down_d, on_d}
#else
#define ADDED_PARAMETERS
#define ADDED(matrix, row, col) Added{}
#endif

struct Added { // D, from the element on that a block's or a thread's part of C begins with
#if EPILOGUE
    const float *first;
    long long down, on;
    inline float one(const float *, int row, int col) const { return first[row * /*!d-of-element*/down + col * on]; }
    inline float2 two(const float *, int row, int col) const {
        const float *at = first + row * down + col * on;
        return on == 1 && (ulong)at % 8 == 0 ? *(const float2 *)at : make_float2(at[0], at[on]);
    }
    inline float4 four(const float *, int row, int col) const {
        const float *at = first + row * down + col * on;
        return on == 1 && (ulong)at % 16 == 0 ? *(const float4 *)at : make_float4(at[0], at[on], at[2 * on], at[3 * on]);
    }
    inline Added from(int row, int col) const { return Added{first + row * down + col * on, down, on}; }

    // A thread's part of a row of D, two columns at a time, the pairs at ``column(0)`` to ``column(N / 2 - 1)``, as far as ``cols`` goes.
    // All loads stand before the first store: behind a store to C, which might be the same memory, each would wait for memory.
    template <int N, class Column> inline void fetch(float (&d)[N], int row, int cols, Column column) const {
        const float *at = first + (EPILOGUE == 2 ? 0 : row * down);
        bool pairs = (EPILOGUE == 2 || on == 1) && (ulong)at % 8 == 0;
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            int col = column(i / 2);
            if (pairs && col + 1 < cols) {
                float2 both = *(const float2 *)(at + col);
                d[i] = both.x, d[i + 1] = both.y;
            } else {
                d[i] = col < cols ? at[EPILOGUE == 2 ? col : col * on] : 0.0f;
                d[i + 1] = col + 1 < cols ? at[EPILOGUE == 2 ? col + 1 : (col + 1) * on] : 0.0f;
            }
        }
    }
#else
    inline float one(const float *c, int, int) const { return *c; }
    inline float2 two(const float *c, int, int) const { return *(const float2 *)c; }
    inline float4 four(const float *c, int, int) const { return *(const float4 *)c; }
    inline Added from(int, int) const { return Added{}; }
    template <int N, class Column> inline void fetch(float (&)[N], int, int, Column) const {}
#endif
};

inline float activated(float x) {
#if ACTIVATION == 1
    return x < 0.0f ? 0.0f : x; // a NaN stays one
#elif ACTIVATION == 2
    return x / (1.0f + expf(-1.5957691216057308f * x * (1.0f + /*!gelu*/0.044715f * x * x)));
#else
    return x;
#endif
}
