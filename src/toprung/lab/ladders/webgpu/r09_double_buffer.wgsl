// C = alpha * A * B + beta * C
// row-major: B is K x N (ldb), C is M x N (ldc). A comes transposed: AT is K x M (lda)
//
//                    tn          tn + DN
//                 +-|==|--------|==|----+
//         tm    = | oooo        oooo    |      one invocation (tn, tm) owns TM x TN elements
//               = | oooo        oooo    |      in 4 x 4 pieces:
//    tm + DM    = | oooo        oooo    |      TM / 4 groups of 4 rows DM groups apart,
//                 +---------------------+      TN / 4 vectors of columns DN vectors apart
//
// Workgroup: DN x DM invocations, DM = BM / TM, DN = BN / TN, for a BM x BN block of C.
// Preconditions: M, N, K are whole tiles; all leading dimensions are multiples of 4.
// Idea: two buffers. While one pair of tiles is computed with, the next is on its way,
// and one barrier a tile is enough.
// For each multiply-add: 4/BM + 4/BN bytes of buffers, 4/TM + 4/TN bytes of workgroup memory.

struct Call { M: u32, N: u32, K: u32, alpha: f32, lda: u32, ldb: u32, beta: f32, ldc: u32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read> AT: array<vec4f>;
@group(0) @binding(2) var<storage, read> B: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> C: array<vec4f>;

var<workgroup> As: array<array<array<vec4f, BM / 4u>, BK>, 2>; // As[buffer][k][m / 4]
var<workgroup> Bs: array<array<array<vec4f, BN / 4u>, BK>, 2>; // Bs[buffer][k][n / 4]

// BK rows of AT and of B, from row k0 on, into a buffer of workgroup memory
fn stage(to: u32, k0: u32, m0: u32, n0: u32, tid: u32) {
    /* unroll */ for (var i = 0u; i < LA; i++) {
        let l = tid + i * DM * DN;
        As[to][l / (BM / 4u)][l % (BM / 4u)] =
            AT[(k0 + l / (BM / 4u)) * (p.lda / 4u) + m0 + l % (BM / 4u)];
    }
    /* unroll */ for (var i = 0u; i < LB; i++) {
        let l = tid + i * DM * DN;
        Bs[to][l / (BN / 4u)][l % (BN / 4u)] =
            B[(k0 + l / (BN / 4u)) * (p.ldb / 4u) + n0 + l % (BN / 4u)];
    }
}

@compute @workgroup_size(DN, DM)
fn gemm(@builtin(local_invocation_id) at: vec3u, @builtin(workgroup_id) group: vec3u) {
    let tn = at.x; // in vectors, as are tm, m0, n0 and the leading dimensions
    let tm = at.y;
    let tid = at.y * DN + at.x;
    let n0 = group.x * (BN / 4u);
    let m0 = group.y * (BM / 4u);
    let ldc = p.ldc / 4u;

    var acc: array<array<vec4f, TN / 4u>, TM>;

    var now = 0u; // the buffer that is complete
    stage(0u, 0u, m0, n0, tid);
    workgroupBarrier();

    for (var k0 = 0u; k0 < p.K; k0 += BK) {
        // p is uniform: all invocations go the same way
        if (k0 + BK < p.K) { stage(1u - now, k0 + BK, m0, n0, tid); }

        for (var k = 0u; k < BK; k++) {
            var b: array<vec4f, TN / 4u>;
            /* unroll */ for (var j = 0u; j < TN / 4u; j++) { b[j] = Bs[now][k][tn + j * DN]; }
            /* unroll */ for (var i = 0u; i < TM / 4u; i++) {
                let a = As[now][k][tm + i * DM];
                /* unroll */ for (var j = 0u; j < TN / 4u; j++) {
                    acc[4u * i][j] = fma(vec4f(a.x), b[j], acc[4u * i][j]);
                    acc[4u * i + 1u][j] = fma(vec4f(a.y), b[j], acc[4u * i + 1u][j]);
                    acc[4u * i + 2u][j] = fma(vec4f(a.z), b[j], acc[4u * i + 2u][j]);
                    acc[4u * i + 3u][j] = fma(vec4f(a.w), b[j], acc[4u * i + 3u][j]);
                }
            }
        }
        workgroupBarrier(); // the next tiles are complete, nobody reads these any more
        now = 1u - now;
    }

    /* unroll */ for (var i = 0u; i < TM; i++) {
        /* unroll */ for (var j = 0u; j < TN / 4u; j++) {
            let c = (4u * (m0 + tm + i / 4u * DM) + i % 4u) * ldc + n0 + tn + j * DN;
            var result = p.alpha * acc[i][j];
            // beta = 0 never reads C
            if (p.beta != 0.0) { result = fma(vec4f(p.beta), C[c], result); }
            C[c] = result;
        }
    }
}
