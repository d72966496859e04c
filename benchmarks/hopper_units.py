"""Check Hopper's instructions on a GPU one by one: the TMA's swizzle, wgmma's operands, multicast, and how the unit adds.

    timeout 60 python benchmarks/hopper_units.py [load,wgmma,multicast,bits]

Where something is wrong the line says what was found instead. ``bits`` judges nothing: it prints which bits of small products
survive beside a large accumulator, and where ``split_model`` differs, on which the errors that pages state for fp32x rest.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import split_model as mirror
from toprung import backends
from toprung.backends.base import DYNAMIC_SHARED
from toprung.kernels.build import source_kernel
from toprung.kernels.hopper_fp32x.sources import source
from toprung.lab.ladders import hopper as ladder

CHECKS = Path(ladder.__file__).with_name("checks.cu")
SPIN = 1 << 21


def say(good: bool, what: str, detail: str = "") -> bool:
    print(f"{'ok   ' if good else 'WRONG'} {what}{': ' + detail if detail else ''}", flush=True)
    return good


def upload(session: Any, array: np.ndarray) -> Any:
    buffer = session.allocate(array.nbytes)
    session.upload(buffer, np.ascontiguousarray(array))
    return buffer


def check_kernel(session: Any, name: str, **defines: int) -> Any:
    return source_kernel(
        source(str(CHECKS), name, {"ARCH_SPECIFIC": 1, "SPIN_LIMIT": SPIN, "CHECK_N": 64, **defines, DYNAMIC_SHARED: 60_000}),
        session,
    )


def swizzled(tile: np.ndarray) -> np.ndarray:
    """Rows of 64 fp16 as TMA stores them with 128-byte swizzling: chunk c of row r at c ^ (r % 8)."""
    chunks = tile.reshape(tile.shape[0], 8, 8)
    out = np.empty_like(chunks)
    for r in range(tile.shape[0]):
        for c in range(8):
            out[r, c ^ (r % 8)] = chunks[r, c]
    return out.reshape(tile.shape)


def found_instead(got: np.ndarray, data: np.ndarray) -> str:
    """Return the places in the source of the first chunks of 8 that came out wrong."""
    where = {tuple(row): divmod(8 * i, data.shape[1]) for i, row in enumerate(data.reshape(-1, 8).tolist())}
    lines = [
        f"({i // 8},{i % 8})<-{where.get(tuple(chunk), chunk[:3])}" for i, chunk in enumerate(got.reshape(-1, 8).tolist()[:20])
    ]
    return "chunk (row,place) <- source (row,col): " + " ".join(lines)


def load(session: Any) -> bool:
    """TMA: a box in the middle of a matrix, one across its edge, and the swizzle."""
    rows, cols = 300, 192
    data = (np.arange(rows * cols) % 2039).astype(np.float16).reshape(rows, cols)
    buffer, out = upload(session, data), session.allocate(16384)
    kernel = check_kernel(session, "check_load")
    descriptor = session.tensor_map(buffer, rows, cols, (128, 64))
    good = True
    for x, y in ((0, 0), (64, 128), (128, 250)):
        session.bind(kernel, (1,), (128,), (descriptor, np.int32(x), np.int32(y), out))()
        got = np.empty((128, 64), np.float16)
        session.download(out, got)
        padded = np.zeros((128, 64), np.float16)
        part = data[y : y + 128, x : x + 64]
        padded[: part.shape[0]] = part
        same = np.array_equal(got, swizzled(padded))
        good &= say(same, f"load box at x={x} y={y}", "" if same else found_instead(got, data))
    return good


def wgmma(session: Any) -> bool:
    """One matrix instruction of each width, at each of the four places along a row of 64 elements of K."""
    rng, good = np.random.default_rng(0), True
    for n in (64, 96, 128, 192, 256):
        a, b = rng.integers(-8, 9, (64, 64)).astype(np.float16), rng.integers(-8, 9, (n, 64)).astype(np.float16)
        kernel, out = check_kernel(session, "check_wgmma", CHECK_N=n), session.allocate(4 * 64 * n)
        buffers = upload(session, a), upload(session, b)
        for step in range(4):
            session.bind(kernel, (1,), (128,), (*buffers, np.int32(step), out))()
            got = np.empty((64, n), np.float32)
            session.download(out, got)
            k = slice(16 * step, 16 * step + 16)
            want = a[:, k].astype(np.float32) @ b[:, k].astype(np.float32).T
            detail = ""
            if not np.array_equal(got, want):
                rows, cols = np.nonzero(got != want)
                places = [
                    f"C{(int(r), int(c))} is {got[r, c]:g}, not {want[r, c]:g}; "
                    f"that is C{[tuple(map(int, p)) for p in np.argwhere(want == got[r, c])[:4]]}"
                    for r, c in list(zip(rows, cols, strict=True))[:5]
                ]
                others = [
                    s
                    for s in range(4)
                    if np.array_equal(
                        got, a[:, 16 * s : 16 * s + 16].astype(np.float32) @ b[:, 16 * s : 16 * s + 16].astype(np.float32).T
                    )
                ]
                detail = (
                    f"{rows.size} of {got.size} wrong (rows {sorted(set(rows.tolist()))[:8]}, "
                    f"cols {sorted(set(cols.tolist()))[:8]}); right for step {others}; " + "; ".join(places)
                )
            good &= say(not detail, f"wgmma m64n{n}k16 step {step}", detail)
    return good


def multicast(session: Any) -> bool:
    """Two blocks of a cluster fetch a half each for both."""
    data = (np.arange(128 * 64) % 2039).astype(np.float16).reshape(128, 64)
    buffer, out = upload(session, data), session.allocate(2 * 16384)
    descriptor = session.tensor_map(buffer, 128, 64, (64, 64))
    session.bind(check_kernel(session, "check_multicast"), (2,), (128,), (descriptor, out))()
    got = np.empty((2, 128, 64), np.float16)
    session.download(out, got)
    good = True
    for block in range(2):
        same = np.array_equal(got[block], swizzled(data))
        good &= say(same, f"multicast into block {block}", "" if same else found_instead(got[block], data))
    return good


def bits(session: Any) -> bool:
    """Show how the unit adds: small products beside a large one and beside a large accumulator; says what is kept, judges nothing.

    Element (0, j): accumulator 1 (or a product 1·1) plus a product 2^-i, i = j; compared with the emulation in toprung.split.
    """
    kernel, out = check_kernel(session, "check_bits"), session.allocate(4 * 64 * 64)
    for name, start_value, factors in (
        ("accumulator 1 + 2^-j", 1.0, (0.0, 1.0)),
        ("accumulator 1 + 3 * 2^-j", 1.0, (0.0, 3.0)),
        ("product 1 + 2^-j", 0.0, (1.0, 1.0)),
        ("product 1 + 8 products of 2^-j", 0.0, (1.0, 1.0)),
        ("accumulator -1 + 2^-j", -1.0, (0.0, 1.0)),
        ("accumulator 2^-j + product 1", None, (1.0, 0.0)),
    ):
        a, b = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
        many = 8 if "8" in name else 1
        a[0, 0] = factors[0]
        b[:, 0] = 1.0
        j = np.arange(64)
        for i in range(many):  # 2^-j as a product of two powers of two that fp16 has
            a[0, 1 + i] = 2.0**-12 * factors[1]
            b[:, 1 + i] = np.ldexp(1.0, np.clip(12 - j, -24, 12)).astype(np.float16)
        start = np.zeros((64, 64), np.float32)
        start[0] = np.ldexp(1.0, -j) if start_value is None else start_value
        session.bind(kernel, (1,), (128,), (upload(session, a), upload(session, b), upload(session, start), out))()
        got = np.empty((64, 64), np.float32)
        session.download(out, got)
        want = mirror.matrix_unit(start.astype(np.float64), a[:, :16].astype(np.float64), b[:, :16].astype(np.float64).T)
        base = -1.0 if start_value == -1.0 else 1.0
        kept = np.nonzero(got[0, :36] != base)[0]
        differs = np.nonzero(got[0, :36] != want[0, :36])[0]
        say(
            not differs.size,
            f"bits {name}",
            f"last j that changes the sum {int(kept.max())}; model differs at j={differs.tolist()}; "
            f"(sum - base) * 2^23 for j=20..29: {[float(v - base) * 2**23 for v in got[0, 20:30]]}",
        )
    return True


STEPS = {"load": load, "wgmma": wgmma, "multicast": multicast, "bits": bits}


def main() -> int:
    device = next((d for d in backends.devices() if d.backend == "cuda"), None)
    if device is None:
        sys.exit("no CUDA device: " + " ".join(backends.advice()))
    wanted = sys.argv[1].split(",") if sys.argv[1:] else [*STEPS]
    with backends.opened(device) as session:
        return int(sum(not STEPS[step](session) for step in wanted) > 0)


if __name__ == "__main__":
    sys.exit(main())
