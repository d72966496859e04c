// KIND 0: fill out; 1: out[item] <- sum of what the item read of src; 2: out <- src
//
//     |  slice 0  |  slice 1  | ...  | slice G-1 |     G slices of SLICE vectors, one a workgroup and pass
//        group p     group p+JUMP                      in pass p of group g: slice (g + p * JUMP) mod G
//
// src, out: G * SLICE vectors; sums: a vector an item. Preconditions: SLICE % (LOCAL * 8) = 0, VEC = 4, JUMP and G have no common
// divisor. Idea: every group reads its slice eight vectors at a time, written out because an array of them would be checked and may
// not stay in registers, so that enough is under way; the next pass takes another group's slice, so that what is re-read comes from the cache all share and not from one of its own. Filled by the device itself with
// numbers that the host can compute from their place.

struct Call { passes: i32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read> src: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4f>;

fn number(place: u32) -> f32 {
    var i = place * 2654435761u;
    i ^= i >> 15u;
    i *= 2246822519u;
    i ^= i >> 13u;
    return f32(i32(i >> 8u)) * 1.1920928955078125e-7 - 1.0; // in [-1, 1), exact
}

@compute @workgroup_size(LOCAL)
fn probe(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) all: vec3u) {
    let groups = all.x;
    if (KIND == 0u) {
        let first = group.x * SLICE;
        for (var i = lane; i < SLICE; i += LOCAL) {
            let at = 4u * (first + i);
            out[first + i] = vec4f(number(at), number(at + 1u), number(at + 2u), number(at + 3u));
        }
        return;
    }
    var sum = vec4f();
    for (var n = 0u; n < u32(p.passes); n++) {
        let slice = (group.x + n * JUMP) % groups;
        var at = slice * SLICE + lane;
        for (var i = 0u; i < SLICE; i += 8u * LOCAL) {
            let v0 = src[at];
            let v1 = src[at + LOCAL];
            let v2 = src[at + 2u * LOCAL];
            let v3 = src[at + 3u * LOCAL];
            let v4 = src[at + 4u * LOCAL];
            let v5 = src[at + 5u * LOCAL];
            let v6 = src[at + 6u * LOCAL];
            let v7 = src[at + 7u * LOCAL];
            if (KIND == 1u) {
                sum += ((v0 + v1) + (v2 + v3)) + ((v4 + v5) + (v6 + v7));
            } else {
                out[at] = v0;
                out[at + LOCAL] = v1;
                out[at + 2u * LOCAL] = v2;
                out[at + 3u * LOCAL] = v3;
                out[at + 4u * LOCAL] = v4;
                out[at + 5u * LOCAL] = v5;
                out[at + 6u * LOCAL] = v6;
                out[at + 7u * LOCAL] = v7;
            }
            at += 8u * LOCAL;
        }
    }
    if (KIND == 1u) { out[group.x * LOCAL + lane] = sum; }
}
