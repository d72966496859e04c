// C = alpha * A * B + beta * C
// row-major: B is K x N (ldb), C is M x N (ldc). A comes transposed: AT is K x M (lda)
//
//     a team, DN lanes of a subgroup, which share TM rows
//     +----+----+----+----+
//     | k  |k+1 |k+2 |... |     lane l holds A's column k + l in registers;
//     +----+----+----+----+     for step l all of them take it from there
//
// Workgroup: DN * DM invocations in one dimension, DM = BM / TM, DN = BN / TN,
// for a BM x BN block of C. DN divides a subgroup.
// Preconditions: M, N, K are whole tiles; all leading dimensions are multiples of 4;
// BK is a multiple of DN.
// Idea: subgroups. A goes from the buffer into registers, and from lane to
// lane by shuffles: workgroup memory holds B alone, half of what rung 7
// takes, and loses half of its reads. A workgroup has one dimension, because
// only then is a lane's place in its subgroup its place in the workgroup.
// For each multiply-add: 4/BM + 4/BN bytes of buffers, 4/TM bytes of workgroup memory.

enable subgroups;
struct Call { M: u32, N: u32, K: u32, alpha: f32, lda: u32, ldb: u32, beta: f32, ldc: u32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read> AT: array<vec4f>;
@group(0) @binding(2) var<storage, read> B: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> C: array<vec4f>;

var<workgroup> Bs: array<array<vec4f, BN / 4u>, BK>; // Bs[k][n / 4]

@compute @workgroup_size(DN * DM)
fn gemm(@builtin(local_invocation_index) tid: u32, @builtin(subgroup_invocation_id) lane: u32,
        @builtin(workgroup_id) group: vec3u) {
    let tn = tid % DN; // in vectors, as are tm, m0, n0 and the leading dimensions
    let tm = tid / DN;
    let first = lane - lane % DN; // the team's first lane
    let n0 = group.x * (BN / 4u);
    let m0 = group.y * (BM / 4u);
    let lda = p.lda / 4u;
    let ldb = p.ldb / 4u;
    let ldc = p.ldc / 4u;

    var acc: array<array<vec4f, TN / 4u>, TM>;

    for (var k0 = 0u; k0 < p.K; k0 += BK) {
        /* unroll */ for (var i = 0u; i < LB; i++) {
            let l = tid + i * DM * DN;
            Bs[l / (BN / 4u)][l % (BN / 4u)] = B[(k0 + l / (BN / 4u)) * ldb + n0 + l % (BN / 4u)];
        }
        workgroupBarrier(); // the tile is complete

        for (var k = 0u; k < BK; k += DN) {
            var mine: array<vec4f, TM / 4u>;
            /* unroll */ for (var i = 0u; i < TM / 4u; i++) {
                mine[i] = AT[(k0 + k + tn) * lda + m0 + tm + i * DM];
            }
            for (var l = 0u; l < DN; l++) {
                var b: array<vec4f, TN / 4u>;
                /* unroll */ for (var j = 0u; j < TN / 4u; j++) { b[j] = Bs[k + l][tn + j * DN]; }
                /* unroll */ for (var i = 0u; i < TM / 4u; i++) {
                    let a = subgroupShuffle(mine[i], first + l);
                    /* unroll */ for (var j = 0u; j < TN / 4u; j++) {
                        acc[4u * i][j] = fma(vec4f(a.x), b[j], acc[4u * i][j]);
                        acc[4u * i + 1u][j] = fma(vec4f(a.y), b[j], acc[4u * i + 1u][j]);
                        acc[4u * i + 2u][j] = fma(vec4f(a.z), b[j], acc[4u * i + 2u][j]);
                        acc[4u * i + 3u][j] = fma(vec4f(a.w), b[j], acc[4u * i + 3u][j]);
                    }
                }
            }
        }
        workgroupBarrier(); // nobody reads it any more
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
