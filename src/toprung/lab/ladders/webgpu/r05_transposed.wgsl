// C = alpha * A * B + beta * C
// row-major: B is K x N (ldb), C is M x N (ldc). A comes transposed: AT is K x M (lda)
//
//                m0                      n0
//            +---+####+---+          +---+####+---+
//     AT  k0 |   |####|   |   B   k0 |   |####|   |      both tiles are BK rows cut out of a matrix
//            +---+####+---+          +---+####+---+      that is walked downwards
//                  BM                      BN
//
// Workgroup: DN x DM invocations, DM = BM / TM, DN = BN / 4, for a BM x BN block of C. BK is free.
// Preconditions: M, N, K are whole tiles; ldb and ldc are multiples of 4.
// Idea: A is transposed beforehand by a small kernel of its own, so that both tiles load the same
// way, along rows as long as the tile is wide, and BK no longer needs to equal BM and BN. As is
// written down its columns, one float at a time: a tile is an array of one type, and what is stored
// as floats cannot be read as vectors. PADA keeps these writes out of each other's banks.
// For each multiply-add: 4/BM + 4/BN bytes of buffers, 4/TM + 4/TN bytes of workgroup memory.

struct Call { M: u32, N: u32, K: u32, alpha: f32, lda: u32, ldb: u32, beta: f32, ldc: u32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read> AT: array<f32>;
@group(0) @binding(2) var<storage, read> B: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> C: array<vec4f>;

var<workgroup> As: array<array<f32, BK + PADA>, BM>; // As[m][k]
var<workgroup> Bs: array<array<vec4f, BN / 4u>, BK>; // Bs[k][n / 4]

@compute @workgroup_size(DN, DM)
fn gemm(@builtin(local_invocation_id) at: vec3u, @builtin(workgroup_id) group: vec3u) {
    let tn = at.x; // in vectors
    let tm = at.y;
    let tid = at.y * DN + at.x;
    let n0 = group.x * (BN / 4u);
    let m0 = group.y * BM;
    let ldb = p.ldb / 4u;
    let ldc = p.ldc / 4u;

    var acc: array<vec4f, TM>;

    for (var k0 = 0u; k0 < p.K; k0 += BK) {
        /* unroll */ for (var i = 0u; i < LA; i++) {
            let l = tid + i * DM * DN;
            As[l % BM][l / BM] = AT[(k0 + l / BM) * p.lda + m0 + l % BM];
        }
        /* unroll */ for (var i = 0u; i < LB; i++) {
            let l = tid + i * DM * DN;
            Bs[l / (BN / 4u)][l % (BN / 4u)] = B[(k0 + l / (BN / 4u)) * ldb + n0 + l % (BN / 4u)];
        }
        workgroupBarrier(); // the tiles are complete

        for (var k = 0u; k < BK; k++) {
            let b = Bs[k][tn];
            /* unroll */ for (var i = 0u; i < TM; i++) {
                acc[i] = fma(vec4f(As[tm + i * DM][k]), b, acc[i]);
            }
        }
        workgroupBarrier(); // nobody reads them any more
    }

    /* unroll */ for (var i = 0u; i < TM; i++) {
        let c = (m0 + tm + i * DM) * ldc + n0 + tn;
        var result = p.alpha * acc[i];
        if (p.beta != 0.0) { result = fma(vec4f(p.beta), C[c], result); } // beta = 0 never reads C
        C[c] = result;
    }
}
