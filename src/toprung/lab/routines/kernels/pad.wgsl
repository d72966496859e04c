// dst = src in its upper left corner, zeros elsewhere          row-major: src rows x cols (ld), dst dst_rows x dst_cols (dst_ld)
//
//     +-----+          +-----+---+
//     | src |    ->    | src | 0 |      A smaller dst crops: what lies outside it is left out.
//     +-----+          +-----+ 0 |
//                      |  0  0   |
//                      +---------+
//
// One invocation an element of dst. Any sizes, any leading dimensions.

struct Call { rows: u32, cols: u32, ld: u32, dst_rows: u32, dst_cols: u32, dst_ld: u32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read> src: array<f32>;
@group(0) @binding(2) var<storage, read_write> dst: array<f32>;

@compute @workgroup_size(BN, BM)
fn pad(@builtin(global_invocation_id) id: vec3u) {
    let col = id.x;
    let row = id.y;
    if (row >= p.dst_rows || col >= p.dst_cols) { return; }
    var value = 0.0;
    if (row < p.rows && col < p.cols) { value = src[row * p.ld + col]; }
    dst[row * p.dst_ld + col] = value;
}
