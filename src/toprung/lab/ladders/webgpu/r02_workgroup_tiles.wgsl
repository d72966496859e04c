// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//                k0                    n0
//            +---+####+---+        +---+--+---+
//     A   m0 |   |####|   |        |   |  |   |          both tiles are staged in workgroup memory,
//            +---+####+---+   B k0 +---+##+---+   ->  C  where BN (or BM) invocations
//                                  |   |##|   |          read each element
//                                  +---+--+---+
//
// Workgroup: BN x BM invocations, one for each element of a BM x BN block of C. BM = BN = BK.
// Preconditions: M, N, K are whole tiles.
// Idea: tiles in workgroup memory. An element comes from a storage buffer once for BN (or BM)
// invocations. All of them must reach a barrier, so none may return early: the edges are padded.
// For each multiply-add: 4/BM + 4/BN bytes of buffers, 8 bytes of workgroup memory.

struct Call { M: u32, N: u32, K: u32, alpha: f32, lda: u32, ldb: u32, beta: f32, ldc: u32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read> A: array<f32>;
@group(0) @binding(2) var<storage, read> B: array<f32>;
@group(0) @binding(3) var<storage, read_write> C: array<f32>;

var<workgroup> As: array<array<f32, BK>, BM>; // As[m][k]
var<workgroup> Bs: array<array<f32, BN>, BK>; // Bs[k][n]

@compute @workgroup_size(DN, DM)
fn gemm(@builtin(local_invocation_id) at: vec3u, @builtin(workgroup_id) group: vec3u) {
    let tn = at.x;
    let tm = at.y;
    let n = group.x * BN + tn;
    let m = group.y * BM + tm;

    var acc = 0.0;

    for (var k0 = 0u; k0 < p.K; k0 += BK) {
        As[tm][tn] = A[m * p.lda + k0 + tn];
        Bs[tm][tn] = B[(k0 + tm) * p.ldb + n];
        workgroupBarrier(); // the tiles are complete

        /* unroll */ for (var k = 0u; k < BK; k++) { acc = fma(As[tm][k], Bs[k][tn], acc); }
        workgroupBarrier(); // nobody reads them any more
    }

    let c = m * p.ldc + n;
    var result = p.alpha * acc;
    if (p.beta != 0.0) { result = fma(p.beta, C[c], result); } // beta = 0 never reads C
    C[c] = result;
}
