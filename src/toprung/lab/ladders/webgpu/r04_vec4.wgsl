// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//              n..n+3
//            +-|==|----+
//         tm | oooo    |           one invocation (tn, tm) owns 4 columns side by side in
//            |  :      |  BM       rows tm, tm + DM, tm + 2 DM, ...
//            | oooo    |
//            +---------+
//                BN
//
// Workgroup: DN x DM invocations, DM = BM / TM, DN = BN / 4, for a BM x BN block of C.
// BM = BN = BK.
// Preconditions: M, N, K are whole tiles; leading dimensions are multiples of 4.
// Idea: wider types. No pointer can be cast in WGSL: the buffers are
// bound as arrays of vec4f, the tiles are such arrays too, and four steps
// of k are written out, since a lane of a vector wants a constant index.
// For each multiply-add: 4/BM + 4/BN bytes of buffers, 4/TM + 4/TN bytes of workgroup memory.

struct Call { M: u32, N: u32, K: u32, alpha: f32, lda: u32, ldb: u32, beta: f32, ldc: u32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read> A: array<vec4f>;
@group(0) @binding(2) var<storage, read> B: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> C: array<vec4f>;

var<workgroup> As: array<array<vec4f, BK / 4u>, BM>; // As[m][k / 4]
var<workgroup> Bs: array<array<vec4f, DN>, BK>;      // Bs[k][n / 4]

@compute @workgroup_size(DN, DM)
fn gemm(@builtin(local_invocation_id) at: vec3u, @builtin(workgroup_id) group: vec3u) {
    let tn = at.x;
    let tm = at.y;
    let n = group.x * DN + tn; // in vectors, as all that counts columns below
    let m = group.y * BM + tm;
    let lda = p.lda / 4u;
    let ldb = p.ldb / 4u;
    let ldc = p.ldc / 4u;

    var acc: array<vec4f, TM>;

    for (var k0 = 0u; k0 < p.K; k0 += BK) {
        /* unroll */ for (var i = 0u; i < TM; i++) {
            As[tm + i * DM][tn] = A[(m + i * DM) * lda + k0 / 4u + tn];
            Bs[tm + i * DM][tn] = B[(k0 + tm + i * DM) * ldb + n];
        }
        workgroupBarrier(); // the tiles are complete

        /* unroll */ for (var k = 0u; k < BK / 4u; k++) {
            let b0 = Bs[4u * k][tn];
            let b1 = Bs[4u * k + 1u][tn];
            let b2 = Bs[4u * k + 2u][tn];
            let b3 = Bs[4u * k + 3u][tn];
            /* unroll */ for (var i = 0u; i < TM; i++) {
                let a = As[tm + i * DM][k];
                acc[i] = fma(vec4f(a.w), b3, fma(vec4f(a.z), b2,
                         fma(vec4f(a.y), b1, fma(vec4f(a.x), b0, acc[i]))));
            }
        }
        workgroupBarrier(); // nobody reads them any more
    }

    /* unroll */ for (var i = 0u; i < TM; i++) {
        let c = (m + i * DM) * ldc + n;
        var result = p.alpha * acc[i];
        if (p.beta != 0.0) { result = fma(vec4f(p.beta), C[c], result); } // beta = 0 never reads C
        C[c] = result;
    }
}
