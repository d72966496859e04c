// C = beta * C          row-major: C is M x N (ldc)
//
// What is left of C = alpha * A * B + beta * C when alpha = 0 or K = 0: A and B are not read, and with beta = 0 neither is C.
// One invocation an element. Any sizes, any leading dimension.

struct Call { M: u32, N: u32, beta: f32, ldc: u32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read_write> C: array<f32>;

@compute @workgroup_size(BN, BM)
fn scale(@builtin(global_invocation_id) id: vec3u) {
    let n = id.x;
    let m = id.y;
    if (m >= p.M || n >= p.N) { return; }
    let c = m * p.ldc + n;
    var result = 0.0;
    if (p.beta != 0.0) { result = p.beta * C[c]; }
    C[c] = result;
}
