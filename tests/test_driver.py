"""Calls of CUDA's driver are compared, byte for byte, with those in ``tests/golden/launches.txt``: no GPU is needed.

A difference is a decision: when it is meant, ``python -m tests.golden`` writes the file anew, and the commit says why.
"""

from __future__ import annotations

import difflib

import driver

CUDA, EXECUTABLE, STAGING, PRODUCT = "backends/cuda.py", "execute/executable.py", "execute/staging.py", "blas/product.py"
GROUPED, LAUNCH, LAUNCHER, EPILOGUE = "blas/grouped.py", "kernels/launch.py", "backends/launcher.py", "blas/epilogue.py"

FAULTS = [  # beginning of the name of the case that finds it; file, text, what replaces it
    ("tiled, split-K", LAUNCHER, "config.gridDimX, config.gridDimY, config", "config.gridDimY, config.gridDimX, config"),
    ("tiled:", LAUNCHER, "config.blockDimX, config.blockDimY, config", "config.blockDimY, config.blockDimX, config"),
    ("tiled_cluster", LAUNCHER, "    config.sharedMemBytes = kernel.dynamic\n", ""),
    ("tiled:", LAUNCHER, "config.numAttrs = 1", "pass"),
    ("tiled:", LAUNCHER, "launch.overlaps and session._can_overlap", "not launch.overlaps and session._can_overlap"),
    ("tiled:", LAUNCHER, "at.append(base + 8 * (len(addresses) + len(self.numbers)))", "at.append(base + 8 * len(addresses))"),
    ("current streams", CUDA, "number_of(int(self.queue if queue is None else queue))", "number_of(0)"),
    ("scalars of every", LAUNCHER, "[float(np.float32(numbers[i]))", "[0.0"),
    ("scalars of every", CUDA, "max(nbytes, 2 * found.buffer.nbytes)", "nbytes"),
    ("contexts", LAUNCHER, "            enter(before)\n", "            pass\n"),
    ("contexts", LAUNCHER, "            enter(context)\n", "            pass\n"),
    ("a launch of the lab", CUDA, "start(function, *grid, *block, dynamic", "start(function, *grid[::-1], *block, dynamic"),
    ("a launch of the lab", CUDA, "[in_memory(a) for a in args]", "[in_memory(a) for a in args[::-1]]"),
    ("a launch of the lab", CUDA, "            enter(context)  # another session, or another thread, may have been here\n", ""),
    ("a launch of the lab", CUDA, "weakref.finalize(buffer, _release, driver.cuMemFree, pointer, self._context)", "pass"),
    ("a launch of the lab", CUDA, "weakref.finalize(memory, _release, driver.cuMemFreeHost, address, self._context)", "pass"),
    ("operands on several", CUDA, "weakref.finalize(self, _release, _driver().cuEventDestroy, handle, context)", "pass"),
    ("tiled, split-K", CUDA, "CU_STREAM_CAPTURE_MODE_RELAXED", "CU_STREAM_CAPTURE_MODE_GLOBAL"),
    ("tiled, split-K", CUDA, "        driver.cuThreadExchangeStreamCaptureMode(before)\n", "        pass\n"),
    ("hopper_sgemm: 4096", CUDA, "[d.cuuint64_t(cols), d.cuuint64_t(rows)]", "[d.cuuint64_t(rows), d.cuuint64_t(cols + 1)]"),
    ("hopper_sgemm: 4096", CUDA, "(of.rows, of.cols), of.stride, of.box", "(of.rows, of.cols), of.stride // 2, of.box"),
    ("hopper_sgemm: 4096", CUDA, "cuuint32_t(box[1]), d.cuuint32_t(box[0])", "cuuint32_t(box[0]), d.cuuint32_t(box[1])"),
    ("hopper_inflight:", LAUNCHER, "at.append(base + 8 * len(self.places))", "at.append(base)"),
    ("hopper_inflight:", LAUNCHER, "at.append(memory.ctypes.data)", "at.insert(5, memory.ctypes.data)"),
    ("current streams", LAUNCHER, "if stream != self.stream:", "if self.stream == -1:"),
    ("groups", LAUNCHER, "struct_.fill(words, operands)", "struct_.fill(words.copy(), operands)"),
    ("operands that are", EXECUTABLE, "nbytes += whole(4 * elements)", "nbytes += whole(elements)"),
    ("operands that are", EXECUTABLE, "BETA if step.beta else np.float32(1.0)", "BETA"),
    ("broadcast", EXECUTABLE, "slot, first + offset", "slot, first"),
    ("two threads", EXECUTABLE, "threading.local()", "type('', (), {})()"),
    ("two threads", PRODUCT, "threading.local()", "type('', (), {})()"),
    ("host arrays", STAGING, "            session.settle(slot.ready)", "            pass"),
    ("host arrays", STAGING, "            session.wait(lane.inward, slot.free)", "            pass"),
    ("host arrays", STAGING, "        session.wait(lane.work, slot.ready)\n", ""),
    ("host arrays", STAGING, "self.session.wait(self.lane.work, slot.ready)", "pass"),
    ("host arrays", STAGING, "        session.wait(lane.outward, out.free)\n", ""),
    ("host arrays", STAGING, "            self.session.settle(event)\n", ""),
    ("host arrays", STAGING, "            session.wait(lane.work, out.free)", "            pass"),
    ("host arrays", STAGING, "beta = self.beta if r == 0 else 1.0", "beta = self.beta"),
    ("host arrays", STAGING, "target, keep=1)", "target, keep=2)"),
    ("operands on several", PRODUCT, "follow(session, operand.queue, view.operand.queue)", "pass"),
    ("operands on several", PRODUCT, "follow(session, view.operand.queue, operand.queue)", "pass"),
    ("operands on several", PRODUCT, "(b, c) if addend is None else (b, c, addend)", "(b, c)"),
    ("operands on several", PRODUCT, "if any(v.operand.unordered for v in (a, *others)):", "if False:"),
    ("operands on several", EPILOGUE, "follow(session, bias.operand.queue, c.operand.queue)", "pass"),
    ("operands on several", EPILOGUE, "follow(session, a.queue, bias.operand.queue)", "pass"),
    ("operands on several", EPILOGUE, "        follow(session, c.operand.queue, a.queue)\n", ""),
    ("groups on several", GROUPED, "follow(self.session, queue, other)", "pass"),
    ("groups on several", GROUPED, "follow(self.session, other, queue)", "pass"),
    ("groups on several", GROUPED, "if any(operand.unordered for operand in operands):", "if False:"),
    ("groups", GROUPED, "more = (1.0, 1.0, at_d) if is_added else ()", "more = ()"),
    ("groups", GROUPED, "at[:, group.numbers])\n        for i", "at)\n        for i"),
    ("broadcast", "blas/operands.py", "tuple(0 if n == 1 else s for n, s in zip(own", "tuple(s for n, s in zip(own"),
    ("broadcast", "blas/operands.py", "(*(0,) * missing, *steps,", "(*(1,) * missing, *steps,"),
    ("scalars of a fused", LAUNCHER, "numbers = alpha, beta,", "numbers = 1.0, beta,"),
    ("scalars of a fused", LAUNCHER, "numbers = alpha, beta,", "numbers = alpha, 1.0,"),
    ("scalars of a fused", PRODUCT, "alpha, beta, queue, lent, addend,", "1.0, beta, queue, lent, addend,"),
    ("scalars of every", LAUNCH, "*memory(C), ALPHA, BETA, *fixed)", "*memory(C), BETA, BETA, *fixed)"),
    ("scalars of every", LAUNCH, "(Handle(C), First(C), BETA, *fixed)", "(Handle(C), First(C), ALPHA, *fixed)"),
    ("scalars of every", LAUNCHER, "plan.scales is not None and -SMALLEST <= alpha <= SMALLEST", "False"),
    ("bias:", EPILOGUE, "1.0 if bias is not None else 0.0, c, packed, bias)", "0.0, c, packed, bias)"),
    ("bias and relu", EPILOGUE, "1.0 if bias is not None else 0.0, c, packed)", "0.0, c, packed)"),
    ("another alignment", "blas/calls.py", "like_c, adapter.address(out) & 15, precision", "like_c, precision"),
    ("prepacked", PRODUCT, "packed.address if taken else 0", "0"),
    ("prepacked", PRODUCT, "self.executable.prepacked, packed.address,", "self.executable.prepacked, 0,"),
    ("prepacked", PRODUCT, "self.executable.prepacked if taken else self.executable", "self.executable"),
    ("hopper_fp32x: 4096", "arrays/cupy.py", "nbytes <= KEPT_BYTES or ", "True or "),
    ("scratch memory of a", "arrays/cupy.py", " or self.is_capturing()", ""),
    ("plans", "blas/plan.py", "(at_c := address(out)) % least_c", "(at_c := address(out)) % 1"),
    ("hopper_sgemm: 333", LAUNCHER, "= int(work.buffer.handle), flags(stream)", "= int(work.buffer.handle), 0"),
    ("a launch that is refused", LAUNCHER, "                    begun = True\n", ""),
    ("escalations", "kernels/hopper.py", "(status,) = driver.cuCtxSynchronize()", "status = 0"),
]  # fmt: skip


def test_calls_of_the_driver_are_as_recorded() -> None:
    (found,), wanted = driver.recorded([([], [])]), driver.golden()
    bad = "REFUSED", "FREED", "would end a capture"
    meant = "a launch that is refused after another"
    assert not [x for name, calls in found.items() if name != meant for x in calls.splitlines() if any(word in x for word in bad)]
    for name in dict.fromkeys((*wanted, *found)):
        now = found.get(name, "").splitlines()
        assert "\n".join(difflib.unified_diff(wanted.get(name, "").splitlines(), now, name, lineterm="", n=1)) == ""


def test_planted_faults_are_found() -> None:
    wanted = driver.golden()
    names = [next(name for name in wanted if name.startswith(case)) for case, *_ in FAULTS]
    found = driver.recorded([([name], [fault]) for name, (_, *fault) in zip(names, FAULTS, strict=True)])
    assert [f for n, one, f in zip(names, found, FAULTS, strict=True) if one[n] == wanted[n]] == []
