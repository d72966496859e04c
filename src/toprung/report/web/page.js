"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const ROUNDING = 2 ** -24, SAMPLE = 0.03, ROUNDS = 4, CHECKED = 8, GRADE = 16, OPENED = 6;
const rungs = data.rungs, edits = {}, chosen = {}, rows = {}, trials = {};
let gpu = null, opening = null, current = rungs[0], job = 0, operands = null, figures = null, shared = null;

// small things

const el = (name, set = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(set)) key in made && key !== "list" ? made[key] = value : made.setAttribute(key, value);
    made.append(...children);
    return made;
};
const median = values => {
    const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1;
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};
const figure = value => value >= 100 ? Math.round(value).toLocaleString("en") : value >= 1 ? value.toPrecision(3) : value.toPrecision(2);
const up = (value, multiple) => Math.ceil(value / multiple) * multiple;
const say = text => { $("status").textContent = text; };
const state = word => { document.documentElement.dataset.state = word; };
class Stopped extends Error {}
class Refused extends Error {
    constructor(text, messages = []) { super(text); this.messages = messages; }
}

// the adapter

const missing = (why, what) => {
    $("missing").hidden = false;
    $("missing-why").textContent = why;
    $("missing-what").replaceChildren(...what.map(line => el("li", {}, line)));
    for (const id of ["climb", "run", "versus", "vary", "stop"]) $(id).disabled = true;
    $("device").hidden = true;
    say("no WebGPU here");
    state("missing");
};
const ADVICE = [
    "Chrome or Edge 113 and later have WebGPU on Windows, macOS and ChromeOS, and on Android from 121; bring the browser up to date.",
    "Safari has it from version 26, on macOS, iOS and iPadOS; Firefox from 141 on Windows and from 145 on macOS.",
    "On Linux open chrome://flags, enable “Unsafe WebGPU Support” and “Vulkan”, and start the browser again; a Vulkan driver must be installed (vulkaninfo says whether one is).",
    "Turn on “Use graphics acceleration when available” in the browser's settings; chrome://gpu says what is blocked and why.",
    "Without a GPU: chromium --enable-unsafe-webgpu --enable-features=Vulkan --use-vulkan=swiftshader --use-webgpu-adapter=swiftshader --enable-unsafe-swiftshader computes on the CPU.",
];

const open = async () => {
    if (!navigator.gpu) throw new Refused(window.isSecureContext
        ? "The browser has no navigator.gpu: it is older than WebGPU, or WebGPU is switched off."
        : "WebGPU needs a secure page: open the file itself, or serve it through https.");
    const adapter = await navigator.gpu.requestAdapter({powerPreference: "high-performance"});
    if (!adapter) throw new Refused("The browser knows WebGPU but found no adapter: the GPU or its driver is on its list of excluded ones, or there is no driver.");
    const wanted = ["timestamp-query", "subgroups"].filter(name => adapter.features.has(name));
    const names = ["maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupSizeX",
        "maxComputeWorkgroupSizeY", "maxStorageBufferBindingSize", "maxBufferSize"];
    const limits = Object.fromEntries(names.map(name => [name, adapter.limits[name]]));
    const device = await adapter.requestDevice({requiredFeatures: wanted, requiredLimits: limits});
    const info = adapter.info ?? {};
    const label = info.description || info.device || [info.vendor, info.architecture].filter(Boolean).join(" ") || "GPU";
    const software = Boolean(info.isFallbackAdapter) || /swiftshader|llvmpipe|software|basic render/i.test(`${info.vendor} ${info.architecture} ${info.device} ${info.description}`);
    const opened = {device, limits: device.limits, info, label, kind: software ? "cpu" : "gpu", stamped: wanted.includes("timestamp-query"),
        subgroup: wanted.includes("subgroups") ? (info.subgroupMinSize || 4) : 0, pipelines: new Map(), lost: false};
    if (opened.stamped) {
        opened.queries = device.createQuerySet({type: "timestamp", count: 2});
        opened.resolved = device.createBuffer({size: 16, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC});
    }
    device.lost.then(reason => {
        opened.lost = true;
        if (gpu !== opened) return;
        gpu = operands = figures = null;
        job++;
        buttons(false);
        say(`The GPU was lost (${reason.message || reason.reason}). Press Climb to open it again; if it happens again, take a smaller size.`);
        state("lost");
    });
    device.onuncapturederror = event => say(`The GPU refuses: ${event.error.message}`);
    return opened;
};
const ready = async () => {
    if (gpu) return gpu;
    opening ??= open();
    try {
        gpu = await opening;
    } finally {
        opening = null;
    }
    $("gpu").textContent = gpu.label;
    drawTile(); // a tile that this GPU can run
    return gpu;
};

// kernels: what wgpu's backend does, in the browser

// backends/unrolled.py says what and why; a test compares the two
const MARK = "/* unroll */", LARGEST = 1 << 20;
const unrolled = (text, constants) => {
    const given = text.split("\n");
    if (!text.includes(MARK) || constants.UNROLL === 0) return {text, lines: given.map((_, i) => i + 1)};
    text = given.map((line, i) => `${line.split("//")[0].trimEnd()}\0${i + 1}`).join("\n");
    for (let at; (at = text.indexOf(MARK)) >= 0;) {
        const line = parseInt(text.slice(text.indexOf("\0", at) + 1), 10), refuse = why => { throw new Refused("does not compile", [{line, text: why}]); };
        const loop = /^\/\* unroll \*\/ for \(var (\w+) = 0u; \1 < (\w+(?: [*/] \w+)*); \1\+\+\) \{/.exec(text.slice(at));
        if (!loop) refuse("what is unrolled has the form for (var i = 0u; i < TM / 4u; i++) { … }");
        const words = ["*", ...loop[2].split(" ")], start = at + loop[0].length;
        let count = 1, end = start;
        for (let i = 0; i < words.length; i += 2) {
            const factor = /^[0-9]+u?$/.test(words[i + 1]) ? parseInt(words[i + 1], 10) : constants[words[i + 1]];
            if (!factor) refuse(`${words[i + 1]} is no constant of the tile, or 0`);
            count = words[i] === "*" ? count * factor : Math.floor(count / factor);
        }
        for (let depth = 1; (depth += {"{": 1, "}": -1}[text[end]] ?? 0); end++) if (end === text.length) refuse("its body does not end");
        const body = text.slice(start, end);
        if (/\b(?:break|continue)\b/.test(body)) refuse("a loop that is unrolled has no break and no continue");
        if (text.length + count * body.length > LARGEST) refuse(`unrolled, the text would have more than ${LARGEST.toLocaleString("en")} characters`);
        text = text.slice(0, at) + Array.from({length: count}, (_, n) => `{ const ${loop[1]} = ${n}u;${body}}`).join(" ") + text.slice(end + 1);
    }
    const pairs = text.split("\n").map(line => line.split("\0"));
    return {text: pairs.map(([line]) => line).join("\n"), lines: pairs.map(([, number]) => Number(number))};
};
const composed = (source, defines) => {
    const {text, lines} = unrolled(source, defines);
    let end = 0;
    for (const match of text.matchAll(/^(?:enable|requires|diagnostic)\b[^;]*;/gm)) end = match.index + match[0].length;
    const constants = Object.entries(defines).map(([name, value]) => `const ${name} = ${value}u;`).join(" ");
    return {whole: `${text.slice(0, end)}${constants} ${text.slice(end)}`, lines};
};
const build = async (text, defines, entry) => {
    const {whole, lines} = composed(text, defines), key = `${entry}\n${whole}`;
    if (gpu.pipelines.has(key)) return gpu.pipelines.get(key);
    const {device} = gpu;
    device.pushErrorScope("validation");
    const module = device.createShaderModule({code: whole});
    const info = await module.getCompilationInfo();
    const errors = info.messages.filter(m => m.type === "error").map(m => ({line: lines[m.lineNum - 1] ?? 0, text: m.message}));
    const bindings = [...whole.matchAll(/@group\(0\)\s*@binding\((\d+)\)\s*var<\s*(uniform|storage)\s*(?:,\s*(read_write|read)\s*)?>/g)];
    const layout = device.createBindGroupLayout({entries: bindings.map(([, number, space, access]) => ({
        binding: Number(number), visibility: GPUShaderStage.COMPUTE,
        buffer: {type: space === "uniform" ? "uniform" : access === "read_write" ? "storage" : "read-only-storage"},
    }))});
    let pipeline = null, failure = "";
    if (!errors.length) {
        try {
            pipeline = await device.createComputePipelineAsync({
                layout: device.createPipelineLayout({bindGroupLayouts: [layout]}), compute: {module, entryPoint: entry},
            });
        } catch (error) {
            failure = error.message;
        }
    }
    const scope = await device.popErrorScope();
    if (errors.length) throw new Refused("does not compile", errors);
    if (!pipeline) throw new Refused(failure || scope?.message || "no pipeline", [{line: 0, text: failure || scope?.message}]);
    const made = {pipeline, layout, bindings: bindings.length};
    gpu.pipelines.set(key, made);
    return made;
};
const buffer = bytes => {
    if (bytes > gpu.limits.maxStorageBufferBindingSize) throw new Refused(`a matrix of ${bytes.toLocaleString("en")} bytes is more than the browser gives: take a smaller size`);
    return gpu.device.createBuffer({size: Math.max(4, bytes), usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST});
};
const bound = (kernel, scalars, buffers, grid, helper = false) => {
    const {device} = gpu, bytes = new ArrayBuffer(up(4 * scalars.length, 16)), view = new DataView(bytes);
    if (Math.max(...grid) > gpu.limits.maxComputeWorkgroupsPerDimension) throw new Refused("more workgroups in a row than the browser allows: take a larger tile or a smaller size");
    scalars.forEach((value, i) => typeof value === "object" ? view.setFloat32(4 * i, value.f, true) : view.setUint32(4 * i, value, true));
    const uniform = device.createBuffer({size: bytes.byteLength, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST});
    device.queue.writeBuffer(uniform, 0, bytes);
    const entries = [{binding: 0, resource: {buffer: uniform}}, ...buffers.map((b, i) => ({binding: i + 1, resource: {buffer: b}}))];
    if (kernel.bindings !== entries.length) throw new Refused(`the kernel declares ${kernel.bindings} bindings and is given ${entries.length}`, [{line: 0, text: "leave the bindings as they are"}]);
    return {pipeline: kernel.pipeline, group: device.createBindGroup({layout: kernel.layout, entries}), grid, helper};
};
const f = value => ({f: value});

// the launches of a rung on C = A · B of a size: the same as lab/routines/gemm.py makes
const steps = async (rung, text, tile, n) => {
    const d = tile.defines, bk = d.BK ?? 1, whole = rung.whole, before = [], after = [], scratch = [];
    const matrix = (m, rows, cols) => ({buffer: m, rows, cols, ld: cols});
    const fresh = (rows, cols) => { const m = matrix(buffer(4 * rows * cols), rows, cols); scratch.push(m.buffer); return m; };
    const copy = async (name, src, dst) => bound(await build(data.helpers[name], data.plain, name), [src.rows, src.cols, src.ld, dst.rows, dst.cols, dst.ld],
        [src.buffer, dst.buffer], [Math.ceil(dst.cols / data.plain.BN), Math.ceil(dst.rows / data.plain.BM)], true);
    const isWhole = (m, rows, cols) => m.rows % rows === 0 && m.cols % cols === 0 && m.ld % tile.widest === 0;
    let a = matrix(operands.a, n, n), b = matrix(operands.b, n, n);
    const c = matrix(operands.c, n, n);
    if (rung.transposed.includes("A")) {
        const at = fresh(up(a.cols, bk), up(a.rows, d.BM));
        before.push(await copy("transpose", a, at));
        a = at;
    } else if (whole.includes("A") && !isWhole(a, d.BM, bk)) {
        const padded = fresh(up(a.rows, d.BM), up(a.cols, bk));
        before.push(await copy("pad", a, padded));
        a = padded;
    }
    if (whole.includes("B") && !isWhole(b, bk, d.BN)) {
        const padded = fresh(up(b.rows, bk), up(b.cols, d.BN));
        before.push(await copy("pad", b, padded));
        b = padded;
    }
    let target = c;
    if (whole.includes("C") && !isWhole(c, d.BM, d.BN)) {
        target = fresh(up(n, d.BM), up(n, d.BN));
        after.push(await copy("pad", target, c));
    }
    const [M, N] = whole.includes("C") ? [target.rows, target.cols] : [n, n], K = whole.includes("B") ? up(n, bk) : n;
    const kernel = await build(text, {...d, ...rung.options}, "gemm");
    const main = bound(kernel, [M, N, K, f(1), a.ld, b.ld, f(0), target.ld], [a.buffer, b.buffer, target.buffer], [up(N, d.BN) / d.BN, up(M, d.BM) / d.BM]);
    const padded = target === c ? null : {buffer: target.buffer, elements: target.rows * target.cols};
    return {all: [...before, main, ...after], main: [main], helped: before.length + after.length > 0, padded, free: () => scratch.forEach(m => m.destroy())};
};

// measuring

const seen = async () => {
    if (!document.hidden) return;
    const before = $("status").textContent;
    say("Paused: this tab is in the background, where a browser slows everything down.");
    state("paused");
    await new Promise(resolve => {
        const back = () => { if (!document.hidden) { document.removeEventListener("visibilitychange", back); resolve(); } };
        document.addEventListener("visibilitychange", back);
    });
    say(before);
    state("climbing");
};
const once = async (launches, calls) => {
    const {device, stamped} = gpu, encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass(stamped ? {timestampWrites: {querySet: gpu.queries, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1}} : {});
    for (let i = 0; i < calls; i++) {
        for (const step of launches) {
            pass.setPipeline(step.pipeline);
            pass.setBindGroup(0, step.group);
            pass.dispatchWorkgroups(...step.grid);
        }
    }
    pass.end();
    let out = null;
    if (stamped) {
        out = device.createBuffer({size: 16, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST});
        encoder.resolveQuerySet(gpu.queries, 0, 2, gpu.resolved, 0);
        encoder.copyBufferToBuffer(gpu.resolved, 0, out, 0, 16);
    }
    const start = performance.now();
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
    const host = (performance.now() - start) / 1e3;
    if (!out) return host / calls;
    await out.mapAsync(GPUMapMode.READ);
    const [first, last] = new BigUint64Array(out.getMappedRange()), stamps = Number(last - first) * 1e-9;
    out.destroy();
    // browsers round time stamps, and some drivers get them wrong: the host's clock says whether to believe them
    return (stamps > 0.2 * host && stamps < 1.05 * host ? stamps : host) / calls;
};
const sample = async (launches, calls, mine) => {
    for (;;) {
        await seen();
        if (mine !== job) throw new Stopped();
        let hidden = false;
        const note = () => { hidden ||= document.hidden; };
        document.addEventListener("visibilitychange", note);
        const seconds = await once(launches, calls);
        document.removeEventListener("visibilitychange", note);
        if (mine !== job) throw new Stopped();
        if (!hidden) return seconds;
    }
};
const read = async (from, Type, bytes) => {
    const {device} = gpu, out = device.createBuffer({size: bytes, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST});
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(from, 0, out, 0, bytes);
    device.queue.submit([encoder.finish()]);
    await out.mapAsync(GPUMapMode.READ);
    const found = new Type(out.getMappedRange().slice(0));
    out.destroy();
    return found;
};

// random operands, and the float64 product in some rows
const prepare = n => {
    if (operands?.n === n) return;
    for (const name of ["a", "b", "c"]) operands?.[name].destroy();
    let seed = 20121;
    const fill = () => Float32Array.from({length: n * n}, () => {
        seed = Math.imul(seed, 1664525) + 1013904223 | 0;
        return seed / 2 ** 31;
    });
    const A = fill(), B = fill(), some = [...new Set([0, 1, n - 1, ...Array.from({length: CHECKED - 3}, (_, i) => Math.floor((i + 0.5) * n / (CHECKED - 3)))])];
    const reference = some.map(row => {
        const sum = new Float64Array(n), size = new Float64Array(n);
        for (let k = 0; k < n; k++) {
            const left = A[row * n + k];
            for (let j = 0; j < n; j++) {
                const product = left * B[k * n + j];
                sum[j] += product;
                size[j] += Math.abs(product);
            }
        }
        return {row, sum, size};
    });
    operands = {n, reference, a: buffer(4 * n * n), b: buffer(4 * n * n), c: buffer(4 * n * n), poison: new Uint32Array(n * n).fill(0x7fc0fade)};
    gpu.device.queue.writeBuffer(operands.a, 0, A);
    gpu.device.queue.writeBuffer(operands.b, 0, B);
};
const verify = async (launches, padded) => {
    const {n, reference, c, poison} = operands;
    gpu.device.queue.writeBuffer(c, 0, poison);
    if (padded) gpu.device.queue.writeBuffer(padded.buffer, 0, new Uint32Array(padded.elements).fill(poison[0])); // else it is zeros
    await once(launches, 1);
    const found = await read(c, Float32Array, 4 * n * n), limit = Math.min(n + 2, GRADE) * ROUNDING;
    const unwritten = found.findIndex(Number.isNaN);
    const problems = unwritten < 0 ? [] : [`C[${Math.floor(unwritten / n)}, ${unwritten % n}] was not written, or is NaN`];
    let grade = 0, error = 0, norm = 0, most = 0;
    const relative = [];
    for (const {row, sum, size} of reference) {
        for (let j = 0; j < n; j++) {
            const off = Math.abs(found[row * n + j] - sum[j]), ratio = off / size[j];
            if (!(ratio <= limit) && problems.length < 3) problems.push(`C[${row}, ${j}] is ${found[row * n + j]}, and should be ${sum[j]}`);
            grade = Math.max(grade, ratio / ROUNDING);
            most = Math.max(most, off / Math.abs(sum[j]));
            relative.push(off / Math.abs(sum[j]));
            error += off * off;
            norm += sum[j] * sum[j];
        }
    }
    const json = value => Number.isFinite(value) ? value : null;
    return {right: !problems.length, grade: json(grade), frobenius: json(Math.sqrt(error / norm)), max_relative: json(most), median_relative: json(median(relative)), problems};
};

// what the GPU can do: the microbenchmarks of `toprung probe`
const timed = async (make, work, mine) => {
    let loops = 1, seconds = 0, launch;
    const enough = gpu.kind === "cpu" ? 0.02 : 0.01;
    for (;;) {
        launch = await make(loops);
        seconds = await sample([launch], 1, mine);
        if (seconds > enough || loops >= 1 << 14) break;
        loops *= seconds > enough / 8 ? 2 : 8;
    }
    const more = [seconds, await sample([launch], 1, mine), await sample([launch], 1, mine)];
    return work(loops) / Math.min(...more);
};
// the fewest workgroups that give nine tenths of the speed of many: about as many as the GPU has units to run them on
const groupsToFill = async (kernel, loops, buffers, most, mine) => {
    const speeds = [];
    for (let power = 1; power <= most; power *= 2) {
        for (const g of power > 1 && power < most ? [power, 1.5 * power] : [power]) {
            const launch = bound(kernel, [loops], buffers, [g]);
            speeds.push([g, g / Math.min(await sample([launch], 1, mine), await sample([launch], 1, mine))]);
        }
    }
    const best = Math.max(...speeds.map(([, s]) => s));
    return speeds.find(([, s]) => s >= 0.9 * best)[0];
};
const probe = async mine => {
    const cpu = gpu.kind === "cpu", local = Math.min(256, gpu.limits.maxComputeInvocationsPerWorkgroup), made = [];
    const take = bytes => { const b = buffer(bytes); made.push(b); return b; };
    const found = {};
    {
        const groups = cpu ? 8 : 1024, items = groups * local, out = take(4 * items), start = take(4 * items), step = take(4 * items);
        gpu.device.queue.writeBuffer(start, 0, new Float32Array(items).fill(0.5));
        gpu.device.queue.writeBuffer(step, 0, new Float32Array(items).fill(-1.75));
        const kernel = await build(data.probes.ffma_chain, {CHAINS: 8, REPEAT: 64, LOCAL: local}, "probe");
        let ran = 1;
        found.multiply = await timed(loops => (ran = loops, bound(kernel, [loops], [start, step, out], [groups])), loops => 2 * 8 * 64 * loops * items, mine);
        const [value] = await read(out, Float32Array, 4 * items), ends = [false, true].map(fused => {
            let sum = 0;
            for (let i = 0; i < 8; i++) {
                let x = Math.fround(0.5 * (1 - 0.0625 * i));
                for (let k = 0; k < 64 * ran; k++) x = Math.fround((fused ? x * x : Math.fround(x * x)) - 1.75);
                sum = Math.fround(sum + x);
            }
            return sum;
        });
        found.busy = await groupsToFill(kernel, ran, [start, step, out], groups, mine);
        found.fused = ends[0] === ends[1] ? null : value === ends[1] ? true : value === ends[0] ? false : null;
    }
    for (const [name, mib, passes] of [["memory", cpu ? 16 : 128, 1], ["cache", cpu ? 1 : 4, 8]]) {
        const bytes = Math.min(mib << 20, gpu.limits.maxStorageBufferBindingSize), slice = local * 8 * (cpu || name === "cache" ? 1 : 8), groups = Math.floor(bytes / (16 * slice));
        const from = take(bytes), none = take(16), out = take(16 * local * groups);
        const defines = {SLICE: slice, VEC: 4, LOCAL: local, DEEP: 8, JUMP: 10007};
        const fill = await build(data.probes.bandwidth, {...defines, KIND: 0}, "probe"), kernel = await build(data.probes.bandwidth, {...defines, KIND: 1}, "probe");
        await once([bound(fill, [1], [none, from], [groups])], 1);
        found[name] = await timed(loops => bound(kernel, [loops * passes], [from, out], [groups]), loops => loops * passes * groups * slice * 16, mine);
    }
    {
        const groups = cpu ? 32 : 1024, items = 64 * groups, tile = take(16 * 64), out = take(16 * items);
        const kernel = await build(data.probes.workgroup_memory, {LOCAL: 64, STEPS: 64}, "probe");
        found.workgroup = await timed(loops => bound(kernel, [loops], [tile, out], [groups]), loops => 2 * 16 * items * loops * 64, mine);
    }
    made.forEach(b => b.destroy());
    found.cache = Math.max(found.cache, found.memory);
    return found;
};

// estimates

const value = (text, names) => { // + - * / and brackets over numbers and a tile's parameters
    const words = text.match(/\d+(?:\.\d+)?|[A-Z]+|[-+*/()]/g) ?? [];
    let at = 0;
    const atom = () => {
        const word = words[at++];
        if (word === "(") { const inner = sum(); at++; return inner; }
        return /^\d/.test(word) ? Number(word) : names[word] ?? NaN;
    };
    const product = () => { let x = atom(); while ("*/".includes(words[at] ?? "?")) x = words[at++] === "*" ? x * atom() : x / atom(); return x; };
    const sum = () => { let x = product(); while ("+-".includes(words[at] ?? "?")) x = words[at++] === "+" ? x + product() : x - product(); return x; };
    return sum();
};
const counts = (text, tile) => {
    const match = /For each multiply-add: (.*?) bytes of buffers, (.*?) bytes of workgroup memory/.exec(text.replace(/\n\/\/ /g, " "));
    return match ? {buffers: value(match[1], tile.defines), workgroup: value(match[2], tile.defines)} : {buffers: NaN, workgroup: NaN};
};
const NAMES = {multiply: "multiply-adds", memory: "memory, each matrix once", cache: "reads of buffers, through the caches", workgroup: "reads of workgroup memory"};
const model = (text, tile, n) => {
    const {buffers, workgroup} = counts(text, tile);
    const groups = Math.ceil(n / tile.defines.BM) * Math.ceil(n / tile.defines.BN);
    if (!figures) return {buffers, workgroup, groups, filled: 1, seconds: NaN, limiter: "", levels: {}};
    const filled = Math.min(1, groups / figures.busy); // a workgroup runs on one unit: with fewer of them some have nothing to do
    const levels = {multiply: 2 * n ** 3 / figures.multiply / filled, memory: 12 * n * n / figures.memory, cache: buffers * n ** 3 / figures.cache, workgroup: workgroup * n ** 3 / figures.workgroup / filled};
    const known = Object.entries(levels).filter(([, s]) => s > 0), [limiter, seconds] = known.reduce((a, b) => b[1] > a[1] ? b : a, ["multiply", 0]);
    return {buffers, workgroup, groups, filled, levels, limiter, seconds};
};
const speed = (seconds, n) => 2 * n ** 3 / seconds / 1e9;
const ceiling = n => speed(Math.max(2 * n ** 3 / figures.multiply, 12 * n * n / figures.memory), n);

// tiles and texts in use

const fits = tile => !gpu || (tile.local <= gpu.limits.maxComputeWorkgroupStorageSize && tile.items[0] * tile.items[1] <= gpu.limits.maxComputeInvocationsPerWorkgroup
    && tile.items[0] <= gpu.limits.maxComputeWorkgroupSizeX && tile.items[1] <= gpu.limits.maxComputeWorkgroupSizeY && tile.subgroup <= gpu.subgroup);
const needsSubgroups = rung => rung.tiles.every(t => t.subgroup > 0);
const refusal = rung => needsSubgroups(rung) && gpu && !gpu.subgroup ? "this adapter, or this browser, has no subgroups" : rung.tiles.some(fits) ? "" : "no tile of it fits this adapter";
const tileOf = rung => {
    if (chosen[rung.stem]) return chosen[rung.stem];
    const own = (rung.own[gpu?.kind ?? "gpu"] ?? rung.own.gpu).map(i => rung.tiles[i]);
    return own.find(fits) ?? rung.tiles.find(fits) ?? own[0];
};
const textOf = rung => edits[rung.stem] ?? rung.text;
const before = rung => rungs[rungs.indexOf(rung) - 1];
const rowOf = rung => rows[rung.stem];
const show = tile => Object.entries(tile.given).map(([k, v]) => `${k}=${v}`).join(" ");

// climbing

const buttons = busy => {
    for (const id of ["climb", "run", "versus", "vary"]) $(id).disabled = busy;
    $("stop").disabled = !busy;
};
const work = async action => {
    const mine = ++job;
    try {
        buttons(true);
        state("climbing"); // before a GPU is opened: who looks meanwhile must not see what was before
        try {
            await ready();
        } catch (error) {
            missing(error.message, ADVICE);
            return;
        }
        sizes();
        await action(mine, Number($("size").value));
        if (mine === job) { say("Done."); state("done"); }
    } catch (error) {
        if (error instanceof Stopped || mine !== job) return; // whoever stopped it has said why, a lost GPU too
        say(error instanceof Refused && error.messages.length ? "That does not compile: see the errors below." : error.message);
        state("failed");
    } finally {
        if (mine === job && document.documentElement.dataset.state !== "missing") buttons(false);
        draw();
    }
};
const attempt = async (rung, n, mine) => {
    const row = rows[rung.stem] = {rung, n, tile: tileOf(rung), text: textOf(rung), yours: textOf(rung) !== rung.text, seconds: [], kernel: [], calls: 1, state: "building", failure: ""};
    draw();
    const reason = refusal(rung);
    if (reason) { row.state = "absent"; row.failure = reason; draw(); return row; }
    try {
        row.launches = await steps(rung, row.text, row.tile, n);
        row.verdict = await verify(row.launches.all, row.launches.padded);
        if (mine !== job) throw new Stopped();
        if (!row.verdict.right) {
            row.state = "wrong";
            row.failure = row.verdict.problems[0];
        } else {
            const first = await sample(row.launches.all, 1, mine);
            row.calls = Math.max(1, Math.min(500, Math.ceil(SAMPLE / first)));
            row.seconds.push(row.calls > 1 ? await sample(row.launches.all, row.calls, mine) : first);
            row.state = "timed";
        }
        showErrors(rung, []);
    } catch (error) {
        if (error instanceof Stopped || gpu?.lost || !gpu) throw new Stopped();
        row.state = "failed";
        row.failure = error.message;
        if (error instanceof Refused) { row.errors = error.messages; showErrors(rung, error.messages); }
    }
    draw();
    return row;
};
const again = async (some, mine) => {
    for (let turn = 0; turn < ROUNDS; turn++) {
        for (const row of some) {
            if (row.state !== "timed") continue;
            say(`Timing in turns: ${turn + 1} of ${ROUNDS}, rung ${row.rung.number}`);
            row.seconds.push(await sample(row.launches.all, row.calls, mine));
            row.kernel.push(row.launches.helped ? await sample(row.launches.main, row.calls, mine) : row.seconds.at(-1));
            draw();
        }
    }
};
const measured = async (mine, rung) => {
    if (figures) return;
    say("Measuring what your GPU can do …");
    figures = await probe(mine);
    drawFigures();
    draw();
};
const ofEstimate = row => speedOf(row) / speed(model(row.text, row.tile, row.n).seconds, row.n);
// a rung beyond its estimate may mean that something else ran while the figures were taken: they are taken once more, and the better kept
const remeasured = async mine => {
    if (!Object.values(rows).some(row => speedOf(row) && ofEstimate(row) > 1.02)) return;
    say("A rung passed its estimate: measuring again what your GPU can do …");
    const second = await probe(mine);
    for (const level of ["multiply", "memory", "cache", "workgroup", "busy"]) figures[level] = Math.max(figures[level], second[level]);
    drawFigures();
    draw();
};
// a large GPU has too little to do at the size that suits a small one: what the page climbs at unasked grows until rung 1 takes a while
const grown = (n, seconds) => n >= 1024 && n < 4096 && seconds < 0.003 ? 2 * n : n;
const climb = (asked = true) => work(async (mine, n) => {
    for (const stem of Object.keys(rows)) { rows[stem].launches?.free(); delete rows[stem]; }
    say("Making operands, and the float64 product of some rows …");
    prepare(n);
    for (const rung of rungs) {
        say(`Rung ${rung.number} of ${rungs.length}: ${rung.idea}`);
        let row = await attempt(rung, n, mine);
        while (!asked && !shared && rung === rungs[0] && row.seconds.length) {
            const more = grown(n, median(row.seconds));
            if (more === n || ![...$("size").options].some(o => Number(o.value) === more)) break;
            row.launches.free();
            n = more;
            $("size").value = String(n);
            prepare(n);
            row = await attempt(rung, n, mine);
        }
        if (rung === rungs[0]) await measured(mine);
    }
    await again(Object.values(rows), mine);
    await remeasured(mine);
    if (!asked && current.number === OPENED && variations(current).length) await tryBlocks(current, mine, n); // whoever opens the page sees the reason tested
});
const runOne = () => work(async (mine, n) => {
    prepare(n);
    const rung = current;
    rowOf(rung)?.launches?.free();
    say(`Rung ${rung.number}: ${rung.idea}`);
    const row = await attempt(rung, n, mine);
    await measured(mine);
    await again([row], mine);
    if (row.errors) throw new Refused("does not compile", row.errors);
    if (row.state === "wrong") throw new Refused(`The result is wrong: ${row.failure}`);
});
const versus = () => work(async (mine, n) => {
    prepare(n);
    const pair = [$("a"), $("b")].map(s => rungs[s.selectedIndex]), both = [];
    for (const rung of pair) {
        let row = rowOf(rung);
        if (!(row?.state === "timed" && row.n === n && row.text === textOf(rung) && row.tile === tileOf(rung))) row = await attempt(rung, n, mine);
        if (row.state !== "timed") throw new Refused(`Rung ${rung.number} cannot be timed: ${row.failure}`);
        both.push(row);
    }
    const ratios = [];
    for (let turn = 0; turn < 9; turn++) {
        say(`In turns: ${turn + 1} of 9`);
        const [a, b] = [await sample(both[0].launches.all, both[0].calls, mine), await sample(both[1].launches.all, both[1].calls, mine)];
        ratios.push(a / b);
    }
    ratios.sort((a, b) => a - b); // of nine values the second and the eighth hold the median with 96 %
    const [low, middle, high] = [ratios[1], ratios[4], ratios[7]], names = both.map(r => `rung ${r.rung.number}`);
    const verdict = low > 1 ? `${names[1]} is faster` : high < 1 ? `${names[1]} is slower` : "no difference is proved";
    $("ratio").textContent = `At ${n}: ${names[1]} runs at ${middle.toFixed(3)} times the speed of ${names[0]} (${low.toFixed(3)} to ${high.toFixed(3)}, 96 %): ${verdict}.${both.some(r => r.launches.helped) ? " Padding and transposing are part of both." : ""}`;
});

// drawing

const sizes = () => {
    const known = [100, 256, 512, 1000, 1024, 2048, 4096], most = gpu ? gpu.limits.maxStorageBufferBindingSize : Infinity;
    const brought = known.includes(shared?.n) ? shared.n : 0, wanted = $("size").value || String(brought || (gpu?.kind === "gpu" ? 1024 : 256));
    $("size").replaceChildren(...known.filter(n => 4 * n * n <= most).map(n => el("option", {value: n, selected: String(n) === wanted}, n % 16 ? `${n} (no whole tiles)` : String(n))));
};
const drawFigures = () => {
    const rate = (value, unit) => figures ? `${figure(value / 1e9)} ${unit}` : "…", rounded = figures?.fused === true ? "fused: rounded once" : figures?.fused === false ? "rounded twice" : "";
    const cards = [["Multiply-adds", rate(figures?.multiply, "GFLOP/s"), rounded], ["Memory, read", rate(figures?.memory, "GB/s")], ["Caches, read", rate(figures?.cache, "GB/s")], ["Workgroup memory, read", rate(figures?.workgroup, "GB/s")],
        ["Busy from", figures ? `${figures.busy} workgroup${figures.busy === 1 ? "" : "s"}` : "…", figures?.busy === 1 ? "on" : "on: fewer leave it idle"]];
    $("figures").replaceChildren(...cards.map(([name, text, more]) => el("div", {}, el("dt", {}, name), el("dd", {}, text), ...(more ? [el("dd", {className: "said"}, more)] : []))));
    if (!figures) return;
    const each = figures.workgroup / (figures.multiply / 2);
    $("ceiling").textContent = `For each multiply-add that it could do, ${gpu.label} gets ${each.toPrecision(2)} bytes from workgroup memory and ${(figures.cache / (figures.multiply / 2)).toPrecision(2)} from its caches. Rung 1 asks for 8 bytes from the caches: that gap is what the ladder closes.`;
};
const speedOf = row => row?.state === "timed" && row.seconds.length ? speed(median(row.seconds), row.n) : 0;
const draw = () => {
    const n = Object.values(rows)[0]?.n ?? 0, best = Math.max(0, ...Object.values(rows).map(speedOf)), top = figures && n ? ceiling(n) : 0;
    const near = best > 0.15 * top, full = Math.max(best, near ? top : 0, 1e-9) * (near ? 1.02 : 1.25);
    const focused = document.activeElement?.closest?.("#rungs tr")?.id; // the rows are made anew while somebody may walk through them
    $("rungs").tBodies[0].replaceChildren(...rungs.map(rung => {
        const row = rowOf(rung), got = speedOf(row), last = speedOf(rowOf(before(rung) ?? rung));
        const track = el("div", {className: "track"}), limit = got && figures ? speed(model(row.text, row.tile, row.n).seconds, row.n) : 0;
        if (got) {
            track.append(el("div", {className: row.yours ? "fill yours" : "fill", style: `width:${100 * Math.min(1, got / full)}%`}), el("b", {}, `${figure(got)}${row.yours ? ", yours" : ""}`));
            if (limit && limit <= full) track.append(el("div", {className: "tick", style: `left:calc(${100 * limit / full}% - 2px)`, title: `estimate for this rung: ${figure(limit)} GFLOP/s`}));
        }
        const outcome = !row ? ["", "–"] : row.state === "timed" ? ["right", "✓ right"] : row.state === "wrong" ? ["wrong", "✗ wrong"] : row.state === "absent" ? ["", "left out"] : row.state === "failed" ? ["wrong", "✗ fails"] : ["", "…"];
        const button = el("button", {type: "button", "aria-current": String(rung === current)}, `${rung.number}  ${rung.idea}`);
        button.addEventListener("click", () => choose(rung));
        return el("tr", {className: rung === current ? "chosen" : "", id: `row-${rung.stem}`}, el("td", {}, button), el("td", {className: "bars"}, track),
            el("td", {className: "number", title: limit ? `its estimate is ${figure(limit)} GFLOP/s` : ""}, ...(limit ? [percent(got / limit), el("span", {className: "narrow"}, " of its estimate")] : [])),
            el("td", {className: "number"}, got && last && rung !== rungs[0] ? `× ${(got / last).toFixed(2)}` : ""), el("td", {className: outcome[0], title: row?.failure ?? ""}, outcome[1]));
    }));
    if (focused) document.querySelector(`#${focused} button`)?.focus();
    $("scale").textContent = !top ? "" : near ? `Your GPU's peak at ${n} is ${figure(top)} GFLOP/s; the bars' right end. The best rung reaches ${(100 * best / top).toFixed(0)} % of it.`
        : best ? `Your GPU's peak at ${n} is ${figure(top)} GFLOP/s, ${(top / best).toFixed(0)} times beyond the longest bar: bars are drawn against the best rung.` : "";
    if (best && !document.documentElement.dataset.first) document.documentElement.dataset.first = String(Math.round(performance.now() - started));
    explain();
    drawShared();
};
const lines = (own, other) => { // which lines of own are not in other: the longest common subsequence, by dynamic programming
    const a = own.split("\n"), b = other.split("\n"), flat = line => line.trim().replace(/\s+/g, " ");
    const best = Array.from({length: a.length + 1}, () => new Uint16Array(b.length + 1));
    for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) best[i][j] = flat(a[i]) === flat(b[j]) ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    const out = [];
    let i = 0, j = 0;
    while (i < a.length || j < b.length) {
        if (i < a.length && j < b.length && flat(a[i]) === flat(b[j])) { out.push([" ", a[i++]]); j++; }
        else if (j < b.length && (i === a.length || best[i][j + 1] >= best[i + 1][j])) out.push(["-", b[j++]]);
        else out.push(["+", a[i++]]);
    }
    return out;
};
const header = rung => {
    const text = rung.text.split("\n\n")[0].split("\n").filter(l => l.startsWith("//")).map(l => l.slice(3));
    const end = text.findIndex((l, i) => i > 1 && /^(Workgroup|One|Preconditions)/.test(l));
    const idea = text.join(" ").match(/Idea: (.*?)(?= For each multiply-add|$)/)?.[1] ?? rung.idea;
    const flat = idea.replace(/\s+/g, " ");
    return {picture: text.slice(1, end < 0 ? 1 : end).join("\n").replace(/^\n+|\n+$/g, ""), idea: flat[0].toUpperCase() + flat.slice(1)};
};
const part = x => x.toPrecision(3).replace(/\.?0+$/, "");
const bytes = x => `${part(x)} byte${x === 1 ? "" : "s"}`;
const percent = x => `${(100 * x).toFixed(0)} %`;
const BEYOND = "That is more than its reads, counted one by one, would allow: invocations side by side want the same numbers, and a GPU reads those once; or the compiler joins reads of neighbours.";
const alone = row => row?.kernel.length ? median(row.kernel) : 0;
const explain = () => {
    const rung = current, previous = before(rung), tile = tileOf(rung), n = Number($("size").value) || 1024;
    const now = model(textOf(rung), tile, n), then = previous && model(textOf(previous), tileOf(previous), n);
    const same = row => row?.n === n && row.tile === tileOf(row.rung) ? row : undefined; // another size or tile explains nothing of this one
    const row = same(rowOf(rung)), old = previous && same(rowOf(previous)), got = speedOf(row), was = speedOf(old), limit = speed(now.seconds, n);
    const turns = trials[rung.stem], tried = of => turns?.done && turns.n === n && turns.text === textOf(rung) ? median(turns.found.find(o => o.of === of && o.tile === tileOf(of) && o.text === textOf(of))?.seconds ?? [0]) || 0 : 0;
    const compared = previous && tried(rung) && tried(previous); // timed in turns with each other: better than what the climb has
    const own = compared ? tried(rung) : alone(row), olds = compared ? tried(previous) : alone(old), kernel = own && olds ? olds / own : got && was ? got / was : 0, helped = Boolean(row?.launches?.helped || old?.launches?.helped);
    const asks = m => `${m.workgroup ? `${bytes(m.workgroup)} of workgroup memory and ` : ""}${bytes(m.buffers)} of buffers`;
    const stops = m => `${NAMES[m.limiter]}${m.filled < 1 && m.limiter !== "cache" ? `, with ${m.groups} workgroups where your GPU needs about ${figures.busy} to be busy,` : ""}`;

    $("detail-title").textContent = `Rung ${rung.number}: ${rung.idea}`;
    $("verdict").textContent = !got ? (row?.failure ? (row.state === "absent" ? `Left out here: ${row.failure}.` : `It ${row.state === "wrong" ? "gives a wrong result" : "fails"}: ${row.failure}`)
        : gpu ? `Not measured at ${n} yet.` : "Not measured here.")
        : `On your GPU at ${n}: ${figure(got)} GFLOP/s${was ? `, ${(got / was).toFixed(2)} times rung ${previous.number}` : ""}${kernel && helped && olds ? `; the kernel alone, without padding and transposing, ${kernel.toFixed(2)} times` : ""}.`;

    $("held-title").textContent = previous ? `What held rung ${previous.number} back` : "What comes before";
    $("held").textContent = !previous ? "Nothing: it is the loop that everybody writes first."
        : `For each multiply-add rung ${previous.number} reads ${asks(then)}.${!figures ? "" : then.limiter === "multiply" ? ` By that count multiply-adds are its limit on your GPU${then.filled < 1 ? `, of which ${then.groups} workgroups use a part` : ""}.`
            : ` By that count ${stops(then)} limit it on your GPU: the multipliers have work for ${percent(2 * n ** 3 / figures.multiply / then.seconds)} of the time.`}${was && figures ? ` It reaches ${percent(was / speed(then.seconds, n))} of what that allows.` : ""}`;
    $("idea").textContent = header(rung).idea;
    const rise = then && then.seconds / now.seconds;
    $("predicted").textContent = `Written before anything was timed: “${rung.expects}”. For each multiply-add it asks for ${asks(now)}, with the tile ${show(tile)}.${!figures || !now.limiter ? ""
        : ` So the estimate for your GPU is ${figure(limit)} GFLOP/s, set by ${stops(now).replace(/,$/, "")}${then ? `: ${rise.toFixed(2)} times that of rung ${previous.number}` : ""}.`}`;
    $("happened").textContent = !got ? $("verdict").textContent : `Measured: ${figure(got)} GFLOP/s${figures ? `, ${percent(got / limit)} of that estimate` : ""}${was ? `, and ${(got / was).toFixed(2)} times rung ${previous.number}` : ""}.`
        + `${figures && got > 1.05 * limit ? ` ${BEYOND}` : ""}${own && row.launches.helped ? ` Padding and transposing take ${percent(Math.max(0, 1 - (alone(row) || own) / median(row.seconds)))} of its time; without them the kernel reaches ${figure(speed(own, n))} GFLOP/s${olds ? `, ${kernel.toFixed(2)} times rung ${previous.number}'s` : ""}.` : ""}`;
    $("reason").textContent = !figures || !got ? row?.failure ? "There is nothing to explain before it runs: mend it or undo the changes below." : "Once it is measured, this says whether its reads, its instructions or idle units decide it on your GPU." : was && then ? reason(kernel, then, now, got / limit, tile)
        : got / limit < 0.3 ? "Far below its estimate: something that the count of bytes does not see limits it, such as address arithmetic, the checks of every index, or too few invocations in flight." : "Its reads set the pace.";
    $("limits").textContent = !figures || !now.limiter ? `${now.workgroup ? `Reads of workgroup memory: ${bytes(now.workgroup)}` : `Reads of buffers: ${bytes(now.buffers)}`} for each multiply-add.`
        : `By the count of bytes, ${stops(now).replace(/,$/, "")}: ${figure(limit)} GFLOP/s at most, where ${figure(ceiling(n))} is all that your GPU can do.${got ? (got / limit < 0.5 ? ` It is at ${percent(got / limit)} of that, so what the count does not see weighs more: instructions beside the multiply-adds, waiting at barriers${helped ? ", padding and transposing" : ""}.` : got / limit > 1.05 ? " It is beyond that already, so these reads cost it less than the count says." : ` It is at ${percent(got / limit)} of that.`) : ""}`;
    drawTrials();
};
// why a kernel gains or loses here; gain is that of the kernel alone, for both rungs may be padded and transposed for
const reason = (gain, then, now, share, tile) => {
    const allowed = then.seconds / now.seconds, fewer = then.workgroup > 0 && now.workgroup < then.workgroup, ratio = then.workgroup / now.workgroup;
    const idle = now.filled < 1 && now.filled < then.filled ? ` Its larger blocks leave ${now.groups} workgroups, and your GPU needs about ${figures.busy} to be busy, so part of it has nothing to do: take a larger size, or a smaller BM and BN below.` : "";
    if (gain > 1.05 && fewer) {
        const more = gain > 1.15 * ratio ? "The kernel gains more than that: each read also cost instructions (an address, a check of the index), and there are fewer of those."
            : gain < 0.85 * ratio ? `The kernel gains less than that, ${gain.toFixed(2)} times: ${now.limiter === "workgroup" ? "registers, instructions or waiting hold it back" : `now ${NAMES[now.limiter]} stop it first`}.` : `That is about what the kernel gains, ${gain.toFixed(2)} times: those reads were what held the rung before.`;
        return `Why it gains here: every number read from workgroup memory serves more multiply-adds${tile.defines.TM ? `, since an invocation keeps ${tile.defines.TM} × ${tile.defines.TN ?? 1} sums in registers` : ""}. It reads ${ratio.toFixed(2)} times fewer bytes for the same work. ${more}${idle}`;
    }
    if (gain > 1.05) return `Why it gains here: the bytes of workgroup memory are ${now.workgroup === then.workgroup ? "the same" : "more"}${then.workgroup ? "" : ", but those of buffers are fewer"}, so it is ${then.workgroup ? "the number of instructions and of waits around them that fell" : "reads through the caches that it saves"}.${idle}`;
    if (idle) return `Why it ${gain < 0.95 ? "loses" : "gains nothing"} here:${idle}`;
    if (gain < 0.95 && allowed > 1.05) return `Why it loses here although its estimate is higher: the reads it saves were not what held the rung before on this GPU, and what it adds (${now.buffers < then.buffers ? "staging and barriers" : "registers, narrower or more accesses"}) costs more. It reaches ${percent(share)} of its estimate.`;
    if (gain < 0.95) return "Why it loses here: it asks for no fewer bytes, and adds work beside the multiplications: more or narrower accesses, more registers, fewer workgroups at once.";
    return `Why it changes little here: ${allowed > 1.05 ? "what it saves was not what held the rung before on this GPU" : "the same level limits both"}.`;
};

// the explanation put to the test: the same code with other TM and TN reads other numbers of bytes for the same work

const variations = rung => {
    const tile = tileOf(rung), previous = before(rung), reads = t => counts(rung.text, t).workgroup, families = new Map();
    const rest = t => Object.entries(t.given).filter(([k]) => k !== "TM" && k !== "TN").join();
    for (const t of rung.tiles.filter(fits)) families.set(rest(t), [...(families.get(rest(t)) ?? []), t]);
    let found = families.get(rest(tile)) ?? [];
    const old = previous ? counts(previous.text, tileOf(previous)).workgroup : 0, asOld = f => f.some(t => reads(t) >= old), of = t => `${t.given.TM} ${t.given.TN}`;
    if (!asOld(found)) { // none reads as much as the rung before: the depth or padding of another family allows smaller blocks
        const others = [...families.values()].filter(f => asOld(f) && f[0].given.BM === tile.given.BM && f[0].given.BN === tile.given.BN && f.some(t => of(t) === of(tile)));
        if (others.length) found = [tile, ...others.sort((a, b) => a[0].given.BK - b[0].given.BK || b.length - a.length).find(f => f[0].given.BK >= tile.given.BK) ?? others[0]];
    }
    return found.length < 2 ? [] : found.sort((a, b) => reads(b) - reads(a) || a.items[0] - b.items[0]);
};
const blockOf = tile => `${tile.defines.TM ?? 1} × ${tile.defines.TN ?? 1}`;
const restOf = tile => Object.entries(tile.given).filter(([k]) => k !== "TM" && k !== "TN").map(([k, v]) => `${k}=${v}`).join(" ");
const tryBlocks = async (rung, mine, n) => {
    const found = [], previous = before(rung), some = variations(rung);
    trials[rung.stem] = {n, text: textOf(rung), found};
    for (const [of, tile] of [...(previous && !refusal(previous) ? [[previous, tileOf(previous)]] : []), ...some.map(t => [rung, t])]) {
        const one = {of, tile, text: textOf(of), bytes: counts(textOf(of), tile).workgroup, seconds: [], failure: ""};
        found.push(one);
        say(of === rung ? `Block ${blockOf(tile)}: ${found.filter(o => o.of === rung).length} of ${some.length}` : `Rung ${of.number}, to compare with`);
        try {
            one.launches = await steps(of, one.text, tile, n);
            const verdict = await verify(one.launches.all, one.launches.padded);
            if (!verdict.right) throw new Refused(verdict.problems[0]);
            const first = await sample(one.launches.main, 1, mine);
            one.calls = Math.max(1, Math.min(500, Math.ceil(SAMPLE / first)));
            one.seconds.push(await sample(one.launches.main, one.calls, mine));
        } catch (error) {
            if (error instanceof Stopped || gpu?.lost || !gpu) throw new Stopped();
            one.failure = error.messages?.[0]?.text ?? error.message;
        }
        drawTrials();
    }
    for (let turn = 0; turn < ROUNDS; turn++) {
        for (const one of found.filter(o => o.seconds.length)) {
            say(`Blocks in turns: ${turn + 1} of ${ROUNDS}`);
            one.seconds.push(await sample(one.launches.main, one.calls, mine));
        }
        drawTrials();
    }
    found.forEach(o => o.launches?.free());
    trials[rung.stem].done = true;
    explain();
};
const vary = () => work(async (mine, n) => {
    prepare(n);
    await measured(mine);
    await tryBlocks(current, mine, n);
});
const drawTrials = () => {
    const rung = current, n = Number($("size").value), held = trials[rung.stem], previous = before(rung);
    const known = held && held.n === n && held.text === textOf(rung) ? held : null, some = variations(rung), old = previous && counts(textOf(previous), tileOf(previous)).workgroup;
    $("trial").hidden = !known && !some.length;
    $("trial-what").textContent = some.length ? `Runs this kernel with the blocks ${[...new Set(some.map(blockOf))].join(", ")}: if reads of workgroup memory set the pace, fewer bytes must mean more speed.` : "";
    $("trials").hidden = !known;
    $("trial-said").textContent = "";
    if (!known) return;
    const all = known.found.map(o => ({...o, rate: o.seconds.length ? speed(median(o.seconds), n) : 0})), rated = all.filter(o => o.of === rung);
    const best = rated.reduce((a, b) => b.rate > a.rate ? b : a, {rate: 0}), top = Math.max(...all.map(o => o.rate));
    $("trials").caption.textContent = `Rung ${rung.number} at ${n}; ${[...new Set(rated.map(o => restOf(o.tile)))].length > 1 ? "only TM and TN differ but for the row marked as climbed" : "only TM and TN differ"}.${previous ? ` Rung ${previous.number} takes its turns with them.` : ""}`;
    $("trials").tBodies[0].replaceChildren(...all.map(o => el("tr", {}, el("td", {}, o.of === rung ? blockOf(o.tile) : `rung ${o.of.number}: ${blockOf(o.tile)}`, ...(o.of === rung && o.tile === tileOf(rung) ? [el("div", {className: "said"}, `as climbed${restOf(o.tile) === restOf(rated.at(-1).tile) ? "" : `, ${restOf(o.tile)}`}`)] : o.of === rung && o.bytes === old ? [el("div", {className: "said"}, `reads as rung ${previous.number}`)] : [])), el("td", {className: "number"}, String((o.tile.defines.TM ?? 1) * (o.tile.defines.TN ?? 1))),
        el("td", {className: "number"}, part(o.bytes)), el("td", {className: "bars"}, el("div", {className: "track", title: o.failure}, el("div", {className: o === best ? "fill best" : "fill", style: `width:${top ? 98 * o.rate / top : 0}%`}), el("b", {}, o.rate ? figure(o.rate) : o.failure ? "fails" : "…"))))));
    const right = rated.filter(o => o.rate);
    if (!known.done || right.length < 2) return;
    const most = right.filter(o => o.bytes === right[0].bytes).reduce((a, b) => b.rate > a.rate ? b : a), gain = best.rate / most.rate, ratio = most.bytes / best.bytes;
    const beyond = right.filter(o => o.bytes < best.bytes && o.rate < 0.95 * best.rate).at(-1);
    $("trial-said").textContent = (ratio > 1 && gain > 1.1 ? `From ${blockOf(most.tile)} to ${blockOf(best.tile)} the bytes fall ${ratio.toFixed(2)} times, and the kernel runs ${gain.toFixed(2)} times as fast: ${gain > 0.7 * ratio ? "the explanation holds here" : "the explanation holds in part; instructions and waiting that do not shrink with the reads hold the rest"}.`
        : `From ${part(right[0].bytes)} to ${part(right.at(-1).bytes)} bytes the speed does not rise: reads of workgroup memory do not set the pace here.`)
        + (beyond ? ` At ${blockOf(beyond.tile)} it is slower again though it reads less: ${beyond.tile.defines.TM * (beyond.tile.defines.TN ?? 1)} sums want more registers than an invocation gets, or too few invocations are left to hide waiting.` : "");
};
const drawCode = () => {
    const rung = current, previous = before(rung), text = textOf(rung), wrong = new Set((rowOf(rung)?.errors ?? []).map(e => e.line));
    const marked = previous ? lines(text, previous.text).filter(([mark]) => mark !== "-") : text.split("\n").map(line => [" ", line]);
    const body = text.split("\n").findIndex(line => !line.startsWith("//")); // the head's picture and idea are shown above
    $("code").replaceChildren(...marked.map(([mark, line], i) => el("div", {className: `${mark === "+" && line.trim() && i >= body ? "lit" : ""}${wrong.has(i + 1) ? " bad" : ""}`}, line || " ")));
    const first = $("code").querySelector(".bad, .lit");
    $("code").scrollTop = first ? Math.max(0, first.offsetTop - $("code").offsetTop - 60) : 0;
    $("lit").textContent = previous ? `Lit: what rung ${previous.number} has not.` : "The first rung: nothing to compare with.";
    if ($("editor").hidden || $("editor").dataset.stem !== rung.stem) $("editor").value = text;
    $("editor").dataset.stem = rung.stem;
    $("reset").hidden = edits[rung.stem] === undefined;
};
const showErrors = (rung, messages) => {
    if (rung !== current) return;
    $("errors").hidden = !messages.length;
    $("errors").replaceChildren(...messages.map(({line, text}) => {
        const jump = el("button", {type: "button"}, line ? `line ${line}` : "the kernel");
        jump.addEventListener("click", () => editing(true, line));
        return el("li", {}, jump, `: ${text}`);
    }));
    drawCode();
};
// what an invocation reads and keeps for one k, and where that lies in a workgroup's block of C
const drawing = (width, height, label) => {
    const make = (name, set, ...inside) => { const e = document.createElementNS("http://www.w3.org/2000/svg", name); for (const [k, v] of Object.entries(set)) e.setAttribute(k, v); e.append(...inside); return e; };
    const svg = make("svg", {viewBox: `-1 -1 ${width + 2} ${height + 2}`, role: "img", "aria-label": label});
    return {svg, box: (x, y, w, h, name) => svg.append(make("rect", {x, y, width: Math.max(w, 1), height: Math.max(h, 1), class: name})), word: (x, y, text) => svg.append(make("text", {x, y}, text))};
};
const drawRegisters = (TM, TN, title) => {
    const side = 190, gap = 24, cell = Math.min(16, (side - gap) / Math.max(TM, TN)), {svg, box, word} = drawing(side, side, `${title}: ${TM} numbers of A and ${TN} of B are read for ${TM} by ${TN} sums`);
    for (let i = 0; i < TM; i++) box(gap - cell - 4, gap + i * cell, cell - 1, cell - 1, "reads");
    for (let j = 0; j < TN; j++) box(gap + j * cell, gap - cell - 4, cell - 1, cell - 1, "reads");
    for (let i = 0; i < TM; i++) for (let j = 0; j < TN; j++) box(gap + j * cell, gap + i * cell, cell - 1, cell - 1, "owns");
    word(0, gap + TM * cell + 12, "A");
    word(gap + TN * cell + 3, 13, "B");
    return svg;
};
const drawBlock = (tile, title) => {
    const d = tile.defines, [BM, BN, TM, TN, DM, DN] = [d.BM, d.BN, d.TM ?? 1, d.TN ?? 1, d.DM, d.DN], side = 150, gap = 40;
    const high = d.VA ?? 1, wide = d.VEC ?? d.VB ?? 1, [tm, tn] = [Math.min(1, DM - 1), Math.min(1, DN - 1)];
    const own = Array.from({length: TM}, (_, i) => (tm + Math.floor(i / high) * DM) * high + i % high);
    const across = Array.from({length: TN}, (_, j) => (tn + Math.floor(j / wide) * DN) * wide + j % wide);
    const scale = side / Math.max(BM, BN), {svg, box, word} = drawing(side + gap, side + gap + 18, `${title}: an invocation owns ${TM} rows by ${TN} columns of a block of ${BM} by ${BN}`);
    box(gap, gap, BN * scale, BM * scale, "block");
    box(gap - 24, gap, 16, BM * scale, "block");
    box(gap, gap - 24, BN * scale, 16, "block");
    for (const m of own) box(gap - 24, gap + m * scale, 16, scale, "reads");
    for (const n of across) box(gap + n * scale, gap - 24, scale, 16, "reads");
    for (const m of own) for (const n of across) box(gap + n * scale, gap + m * scale, scale, scale, "owns");
    word(0, gap + 14, "A");
    word(gap + 2, 12, "B");
    word(gap, gap + BM * scale + 15, `C, ${BM} × ${BN}`);
    return svg;
};
const drawRung = rung => {
    const tile = tileOf(rung), TM = tile.defines.TM ?? 1, TN = tile.defines.TN ?? 1, title = `Rung ${rung.number}`, from = !counts(rung.text, tile).workgroup ? " from buffers" : needsSubgroups(rung) ? ", A's by shuffles" : "";
    return el("figure", {}, el("div", {className: "pair"}, drawRegisters(TM, TN, title), drawBlock(tile, title)),
        el("figcaption", {}, el("b", {}, title), `: ${TM} + ${TN} = ${TM + TN} numbers read${from}, ${TM} × ${TN} = ${TM * TN} multiply-add${TM * TN > 1 ? "s" : ""}: ${part((TM + TN) / TM / TN)} reads for each`));
};
const drawTile = () => {
    const older = before(current);
    $("blocks").replaceChildren(...[older, current].filter(Boolean).map(drawRung));
    drawControls();
};
const drawControls = () => {
    const rung = current, tile = tileOf(rung), free = rung.tiles.filter(fits);
    const selects = Object.keys(tile.given).map(name => {
        const values = [...new Set(free.map(t => t.given[name]))].sort((a, b) => a - b);
        if (values.length < 2) return el("span", {className: "said"}, `${name} = ${tile.given[name]}`);
        const select = el("select", {id: `tile-${name}`}, ...values.map(v => el("option", {value: v, selected: v === tile.given[name]}, String(v))));
        select.addEventListener("change", () => { // the legal tile with this value that differs least from the one at hand
            const wanted = Number(select.value), far = t => Object.keys(t.given).reduce((sum, k) => sum + Math.abs(Math.log2((t.given[k] || 0.5) / (tile.given[k] || 0.5))), 0);
            chosen[rung.stem] = free.filter(t => t.given[name] === wanted).reduce((a, b) => far(b) < far(a) ? b : a);
            drawTile();
            explain();
            $(`tile-${name}`)?.focus();
        });
        return el("label", {}, `${name} `, select);
    });
    const items = tile.items[0] * tile.items[1];
    $("tile").replaceChildren(el("legend", {}, "Tile: change it, then run the rung"), ...selects, el("span", {className: "said", id: "tile-said"}, `${items} invocations a workgroup, ${(tile.local / 1024).toPrecision(3)} KiB of workgroup memory${fits(tile) ? "" : ", more than this adapter has"}`));
};
const editing = (on, line = 0) => {
    $("editor").hidden = !on;
    $("code").hidden = on;
    $("edit").textContent = on ? "Show" : "Edit";
    if (!on) { drawCode(); return; }
    const start = $("editor").value.split("\n").slice(0, Math.max(0, line - 1)).join("\n").length + (line > 1 ? 1 : 0);
    $("editor").focus();
    $("editor").setSelectionRange(start, start);
    $("editor").scrollTop = Math.max(0, line - 6) * parseFloat(getComputedStyle($("editor")).lineHeight);
};
const choose = (rung, focus = true) => {
    current = rung;
    $("editor").hidden = true;
    $("code").hidden = false;
    $("edit").textContent = "Edit";
    const {picture} = header(rung);
    $("picture").textContent = picture;
    $("picture").setAttribute("aria-label", `Picture of the idea of rung ${rung.number}: ${rung.idea}`);
    $("picture").hidden = !picture;
    const had = document.activeElement?.closest?.("#rungs");
    draw();
    drawTile();
    drawCode();
    showErrors(rung, rowOf(rung)?.errors ?? []);
    if (focus && had) document.querySelector(`#row-${rung.stem} button`).focus();
    $("b").selectedIndex = rungs.indexOf(rung);
    $("a").selectedIndex = Math.max(0, rungs.indexOf(rung) - 1);
    drawDiff();
};
const drawDiff = () => {
    const [a, b] = [$("a"), $("b")].map(s => rungs[s.selectedIndex]);
    $("diff").replaceChildren(...lines(textOf(b), textOf(a)).map(([mark, line]) => el("div", {className: mark === "+" ? "added" : mark === "-" ? "gone" : ""}, line || " ")));
};

// taking it along

const outcome = () => ({v: 1, gpu: gpu?.label ?? "", n: Object.values(rows)[0]?.n ?? 0, figures: figures && ["multiply", "memory", "cache", "workgroup"].map(k => Number((figures[k] / 1e9).toPrecision(4))),
    rows: Object.values(rows).filter(speedOf).map(r => [r.rung.number, Number(speedOf(r).toPrecision(4)), r.yours ? 1 : 0, show(r.tile)])});
const pack = thing => btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(thing)))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const unpack = text => JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), c => c.charCodeAt(0))));
const opened = () => {
    const match = /#o=([\w-]+)/.exec(location.hash);
    if (!match) return;
    try {
        const found = unpack(match[1]);
        if (found.v !== 1 || !Array.isArray(found.rows)) throw new Error();
        shared = found;
        $("shared-title").textContent = `What the link brought: ${String(found.gpu)} at ${Number(found.n)}`;
        $("shared").hidden = false;
        drawShared();
    } catch {
        $("shared-said").textContent = "The link's outcome is damaged: ask for it again.";
    }
};
const drawShared = () => {
    if (!shared) return;
    const n = Number(shared.n), head = ["rung", "idea", "GFLOP/s there", "yours", "tile there"];
    $("shared-table").tHead.replaceChildren(el("tr", {}, ...head.map((t, i) => el("th", {scope: "col", className: i === 2 || i === 3 ? "number" : ""}, t))));
    $("shared-table").tBodies[0].replaceChildren(...shared.rows.map(([number, got, changed, tile]) => {
        const rung = rungs.find(r => r.number === number), row = rung && rowOf(rung), own = row?.n === n ? speedOf(row) : 0;
        return el("tr", {}, el("td", {}, String(number)), el("td", {}, (rung?.idea ?? "") + (changed ? ", changed" : "")), el("td", {className: "number"}, figure(Number(got))),
            el("td", {className: "number"}, own ? figure(own) : "–"), el("td", {className: "said"}, String(tile)));
    }));
};
const record = () => {
    const browser = (navigator.userAgentData?.brands ?? []).filter(b => !/not.*brand/i.test(b.brand)).map(b => `${b.brand} ${b.version}`).join(", ") || navigator.userAgent;
    const slug = gpu.label.replace(/\((R|TM|C)\)/gi, "").toLowerCase().replace(/[^a-z0-9.]+/g, "-").replace(/^-|-$/g, "");
    const measurements = Object.values(rows).filter(speedOf).map(row => {
        const {rung, n, seconds} = row, typical = median(seconds), flops = 2 * n ** 3, least = 12 * n * n;
        return {
            competitor: {kind: "rung", name: rung.name, ladder: data.ladder.name, rung: rung.stem, number: rung.number, idea: rung.idea, variant: row.yours ? "changed on the page" : "",
                tile: row.tile.given, options: rung.options, precision: "fp32", resources: {}, ...(row.yours ? {text: row.text} : {})},
            problem: {...data.problem, M: n, N: n, K: n, lda: n, ldb: n, ldc: n}, flops, min_bytes: least, verdict: row.verdict, calls: row.calls, seconds,
            helper_seconds: row.launches.helped ? row.kernel.map((s, i) => Math.max(0, seconds[seconds.length - row.kernel.length + i] - s)) : [], clocks_mhz: [], mode: "warm", joules: [], each_seconds: [], host_seconds: [], median_seconds: typical,
            best_seconds: Math.min(...seconds), gflops: flops / typical / 1e9, gbytes_per_s: least / typical / 1e9,
        };
    });
    return {
        notes: [`${data.ladder.name} promises ${data.ladder.note}`, "made by the page of toprung web; results were checked against float64 on some rows; a helper's seconds are those of the whole product less those of the kernel alone"], format: data.format, what: "toprung web",
        environment: {date: new Date().toISOString().replace(/\.\d+Z/, "+00:00"), ...data.code, packages: {toprung: data.version}, python: "", system: navigator.platform, cores: navigator.hardwareConcurrency,
            device: {name: gpu.label, short_name: gpu.label, slug: slug || "gpu", kind: gpu.kind, arch: "", backend: "webgpu", runtime: `WebGPU in ${browser}`, driver: [gpu.info.vendor, gpu.info.architecture].filter(Boolean).join(" ") || "unknown", compute_units: 0, clock_mhz: 0, peak_gflops: null}},
        figures, interrupted: false, failures: Object.values(rows).filter(r => ["wrong", "failed"].includes(r.state)).map(r => `${r.rung.name} at ${r.n}: ${r.failure}`), measurements,
    };
};
const link = async () => {
    if (!Object.values(rows).some(speedOf)) { $("shared-said").textContent = "Nothing has been measured yet: climb first."; return; }
    const url = `${location.href.split("#")[0]}#o=${pack(outcome())}`;
    history.replaceState(null, "", url);
    try {
        await navigator.clipboard.writeText(url);
        $("shared-said").textContent = "Copied; the address bar has it, too.";
    } catch {
        $("shared-said").textContent = "The address bar has it: copy it from there.";
    }
};
const save = () => {
    if (!Object.values(rows).some(speedOf)) { $("shared-said").textContent = "Nothing has been measured yet: climb first."; return; }
    const url = URL.createObjectURL(new Blob([JSON.stringify(record(), null, 1)], {type: "application/json"}));
    el("a", {href: url, download: `toprung-webgpu-${record().environment.device.slug}.json`}).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
};

// start

let started = performance.now();
$("note").textContent = `The ladder promises ${data.ladder.note}.`;
$("version").textContent = [data.version, `(${data.code.commit})`].filter(Boolean).join(" ");
for (const id of ["a", "b"]) {
    $(id).replaceChildren(...rungs.map(r => el("option", {}, `${r.number}  ${r.idea}`)));
    $(id).addEventListener("change", drawDiff);
}
$("controls").addEventListener("submit", event => { event.preventDefault(); climb(); });
$("stop").addEventListener("click", () => { job++; buttons(false); say("Stopped; what was measured stays."); state("stopped"); });
$("size").addEventListener("change", explain);
$("run").addEventListener("click", runOne);
$("versus").addEventListener("click", versus);
$("vary").addEventListener("click", vary);
$("link").addEventListener("click", link);
$("save").addEventListener("click", save);
$("edit").addEventListener("click", () => editing($("editor").hidden));
$("reset").addEventListener("click", () => { delete edits[current.stem]; $("editor").value = current.text; showErrors(current, []); drawCode(); explain(); });
$("editor").addEventListener("input", () => {
    if ($("editor").value === current.text) delete edits[current.stem]; else edits[current.stem] = $("editor").value;
    $("reset").hidden = edits[current.stem] === undefined;
});
addEventListener("hashchange", opened);
opened();
sizes();
drawFigures();
choose(rungs.find(r => r.number === OPENED) ?? rungs[0], false);
window.toprung = {data, composed, rows, record, outcome, pack, unpack, value, lines, model, reason, grown, variations, get gpu() { return gpu; }, get figures() { return figures; }};
document.documentElement.dataset.ready = "1";
climb(false).then(() => { drawTile(); });
})();
