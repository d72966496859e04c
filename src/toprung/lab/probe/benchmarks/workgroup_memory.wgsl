// out[item] <- sum over loops and steps of two vectors of a tile in workgroup memory
//
//     tile | 0 | 1 | 2 | ... | LOCAL - 1 |      item i reads place i + s and place i - s in step s: neighbours read neighbours
//
// src: LOCAL vectors; out: a vector an item. Preconditions: LOCAL is a power of two.
// Idea: reads of workgroup memory that are as wide as WGSL has them, each used in one addition, which costs less than the read.

struct Call { loops: i32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read> src: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4f>;

var<workgroup> tile: array<vec4f, LOCAL>;

@compute @workgroup_size(LOCAL)
fn probe(@builtin(local_invocation_index) lane: u32, @builtin(global_invocation_id) id: vec3u) {
    tile[lane] = src[lane];
    workgroupBarrier();
    var x = vec4f();
    var y = vec4f();
    for (var n = 0u; n < u32(p.loops); n++) {
        for (var s = 0u; s < STEPS; s++) {
            x += tile[(lane + s + n) & (LOCAL - 1u)];
            y += tile[(lane - s - n) & (LOCAL - 1u)];
        }
    }
    out[id.x] = x + y;
}
