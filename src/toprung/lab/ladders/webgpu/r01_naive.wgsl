// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//                 n                    n
//            . . .|. . .          . . . . . .
//     A  m - - - - - - -  x  B    . . .|. . .   ->   C  one invocation, one element
//            . . . . . .          . . .|. . .
//
// Workgroup: BN x BM invocations, one for each element of a BM x BN block of C.
// Any M, N, K, any leading dimension.
// Idea: none yet. Every operand of every multiplication comes from a storage buffer.
// For each multiply-add: 8 bytes of buffers, 0 bytes of workgroup memory.

struct Call { M: u32, N: u32, K: u32, alpha: f32, lda: u32, ldb: u32, beta: f32, ldc: u32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read> A: array<f32>;
@group(0) @binding(2) var<storage, read> B: array<f32>;
@group(0) @binding(3) var<storage, read_write> C: array<f32>;

@compute @workgroup_size(DN, DM)
fn gemm(@builtin(global_invocation_id) id: vec3u) {
    let n = id.x;
    let m = id.y;
    if (m >= p.M || n >= p.N) { return; } // the last workgroups overhang C

    var acc = 0.0;
    for (var k = 0u; k < p.K; k++) { acc = fma(A[m * p.lda + k], B[k * p.ldb + n], acc); }

    let c = m * p.ldc + n;
    var result = p.alpha * acc;
    if (p.beta != 0.0) { result = fma(p.beta, C[c], result); } // beta = 0 never reads C
    C[c] = result;
}
