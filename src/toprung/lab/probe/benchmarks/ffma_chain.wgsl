// x <- x * x + c, CHAINS = 8 times side by side
//
//     x[0] .. x[7], c    private: nothing is read or written while it counts
//
// start, step, out: one float an invocation. Preconditions: -1.95 < step < -1.6 and |start| <= 1, which keeps |x| < 2.
// Idea: multiply-adds that depend on nothing but the one before: the rate of the arithmetic itself. The sequence is chaotic, so the
// numbers stay as random as the first, no compiler can shorten it, and one operation left out changes the result altogether.

struct Call { loops: i32 }
@group(0) @binding(0) var<uniform> p: Call;
@group(0) @binding(1) var<storage, read> start: array<f32>;
@group(0) @binding(2) var<storage, read> step: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(LOCAL)
fn probe(@builtin(global_invocation_id) id: vec3u) {
    let c = vec4f(step[id.x]);
    var x = start[id.x] * (vec4f(1.0) - 0.0625 * vec4f(0.0, 1.0, 2.0, 3.0));
    var y = start[id.x] * (vec4f(1.0) - 0.0625 * vec4f(4.0, 5.0, 6.0, 7.0));

    for (var n = 0i; n < p.loops; n++) {
        for (var k = 0u; k < REPEAT / 4u; k++) { // four written out: the loop's own counting is a tenth of it
            x = fma(x, x, c);
            y = fma(y, y, c);
            x = fma(x, x, c);
            y = fma(y, y, c);
            x = fma(x, x, c);
            y = fma(y, y, c);
            x = fma(x, x, c);
            y = fma(y, y, c);
        }
    }

    out[id.x] = ((((((x.x + x.y) + x.z) + x.w) + y.x) + y.y) + y.z) + y.w;
}
