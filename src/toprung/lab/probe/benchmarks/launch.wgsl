// out[0] <- value
//
// One invocation. Idea: next to nothing, so that what is measured is the launch; the number shows that the launch took place.

struct Call { value: i32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read_write> out: array<i32>;

@compute @workgroup_size(1)
fn probe() {
    out[0] = p.value;
}
