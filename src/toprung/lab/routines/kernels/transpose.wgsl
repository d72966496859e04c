// dst = transpose of src, zeros beyond it      row-major: src rows x cols (ld), dst dst_rows x dst_cols (dst_ld),
//                                              dst_rows >= cols, dst_cols >= rows
//     +-------+          +-----+
//     | a b c |          | a d |
//     | d e f |    ->    | b e |
//     +-------+          | c f |
//                        +-----+
//
// A work-group turns one BM x BM block through workgroup memory, so that reads and writes both run along rows; the extra column
// keeps the reads down a column of the block out of each other's banks. Any sizes, any leading dimensions.

struct Call { rows: u32, cols: u32, ld: u32, dst_rows: u32, dst_cols: u32, dst_ld: u32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read> src: array<f32>;
@group(0) @binding(2) var<storage, read_write> dst: array<f32>;

var<workgroup> block: array<array<f32, BM + 1u>, BM>;

@compute @workgroup_size(BN, BM)
fn transpose(@builtin(local_invocation_id) at: vec3u, @builtin(workgroup_id) group: vec3u) {
    let row0 = group.x * BM; // of src; the block's column in dst
    let col0 = group.y * BM;

    var value = 0.0;
    if (row0 + at.y < p.rows && col0 + at.x < p.cols) { value = src[(row0 + at.y) * p.ld + col0 + at.x]; }
    block[at.y][at.x] = value;
    workgroupBarrier();
    if (col0 + at.y < p.dst_rows && row0 + at.x < p.dst_cols) {
        dst[(col0 + at.y) * p.dst_ld + row0 + at.x] = block[at.x][at.y];
    }
}
