// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//                n
//            +---|-----+
//         tm |   o     |           one invocation (tn, tm) owns column tn
//            |   :     |  BM       in rows tm, tm + DM, tm + 2 DM, ...
//    tm + DM |   o     |
//            +---------+
//                BN
//
// Workgroup: BN x DM invocations, DM = BM / TM, for a BM x BN block of C. BM = BN = BK.
// Preconditions: M, N, K are whole tiles.
// Idea: more work an invocation. One element of B, read from workgroup memory once, serves TM
// multiplications. Marked loops are unrolled before the text is compiled: registers have no
// addresses, so acc lives in them only if each index is a constant.
// For each multiply-add: 4/BM + 4/BN bytes of buffers, 4 + 4/TM bytes of workgroup memory.

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

    var acc: array<f32, TM>;

    for (var k0 = 0u; k0 < p.K; k0 += BK) {
        /* unroll */ for (var i = 0u; i < TM; i++) {
            As[tm + i * DM][tn] = A[(m + i * DM) * p.lda + k0 + tn];
            Bs[tm + i * DM][tn] = B[(k0 + tm + i * DM) * p.ldb + n];
        }
        workgroupBarrier(); // the tiles are complete

        /* unroll */ for (var k = 0u; k < BK; k++) {
            let b = Bs[k][tn];
            /* unroll */ for (var i = 0u; i < TM; i++) {
                acc[i] = fma(As[tm + i * DM][k], b, acc[i]);
            }
        }
        workgroupBarrier(); // nobody reads them any more
    }

    /* unroll */ for (var i = 0u; i < TM; i++) {
        let c = (m + i * DM) * p.ldc + n;
        var result = p.alpha * acc[i];
        if (p.beta != 0.0) { result = fma(p.beta, C[c], result); } // beta = 0 never reads C
        C[c] = result;
    }
}
