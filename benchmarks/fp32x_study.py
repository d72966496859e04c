"""The schemes that fp32 could be made of on matrix units, step by step in NumPy: which of them is as accurate as plain fp32.

    python benchmarks/fp32x_study.py [results/model/fp32x-study.json]
    python benchmarks/fp32x_study.py --averaged [results/model/bias.json]

Needs no device: ``split_model`` computes what the units compute, truncation included. A few minutes on one core; seconds with
``--averaged``, which compares what many sums add up to.
"""

import argparse
import datetime
from pathlib import Path
from typing import Any

import numpy as np

import split_model as split
from split_model import Scheme
from toprung.kernels.hopper_fp32x.config import K_BLOCK
from toprung.lab.harness import results
from toprung.lab.harness.environment import packages, source
from toprung.lab.probe.benchmarks.truncation import shipped
from toprung.oracle.data import DISTRIBUTIONS
from toprung.oracle.gemm import Gemm

SIDE = 32
DEPTHS = (64, 512, 2048)
SCHEMES = {
    "residual × 2¹¹, hi·hi promoted every 32 of K (ours)": Scheme(),
    "the same, every 16": Scheme(interval=1),
    "every 64": Scheme(interval=4),
    "every 128": Scheme(interval=8),
    "never promoted": Scheme(interval=0),
    "cross terms promoted, too": Scheme(cross_interval=2),
    "scales for each row and 32 of K": Scheme(block=32),
    "residual as it is": Scheme(residual=0),
    "residual as it is, one accumulator": Scheme(residual=0, together=True),
}
NAMES = ("uniform", "normal", "positive", "phi0.5", "phi1", "phi2", "phi4", "T1", "T2", "T3", "T4", "huge-row", "cancelling")


def study() -> list[dict[str, object]]:
    """Every scheme on every distribution at every K."""
    found = []
    for depth in DEPTHS:
        for name in NAMES:
            operands = DISTRIBUTIONS[name].operands(Gemm(SIDE, SIDE, depth), 1)
            a, b = operands["A"], operands["B"]
            plain, refused = split.errors(a, b, split.chain(a, b)), split.refused(a, b)
            for label, scheme in SCHEMES.items():
                with np.errstate(all="ignore"):
                    grade, frobenius = split.errors(a, b, split.product(a, b, scheme))
                found.append(
                    {
                        "scheme": label, "distribution": name, "K": depth, "grade": grade, "frobenius": frobenius,
                        "plain_grade": plain[0], "plain_frobenius": plain[1], "refused": refused,
                    }
                )  # fmt: skip
            print(f"K={depth} {name}: plain {plain[0]:.3g}, ours {found[-len(SCHEMES)]['grade']:.3g}", flush=True)
    return found


AVERAGED = 512
"""Rows of A and columns of B of ``averaged``: their product's elements are what is added up."""
WAYS = {
    "rounded to nearest": split.chain,
    "truncated": lambda a, b: split.product(a, b, Scheme()),
    "truncated, with a share in lo": lambda a, b: split.product(a, b, Scheme(share=shipped())),
}


def averaged() -> list[dict[str, object]]:
    """Relative errors of what sums of 32 products add up to in float64, rms, by how the sums are made and by their number."""
    rng, found = np.random.default_rng(1), []
    a, b = (rng.random(shape).astype(np.float32) for shape in ((AVERAGED, K_BLOCK), (K_BLOCK, AVERAGED)))
    order = rng.permutation(AVERAGED**2)
    exact = (a.astype(np.float64) @ b.astype(np.float64)).ravel()[order]
    for way, multiply in WAYS.items():
        sums = multiply(a, b).astype(np.float64).ravel()[order]
        for count in (1 << n for n in range(16)):
            off = sums.reshape(-1, count).sum(1) / exact.reshape(-1, count).sum(1) - 1
            found.append({"way": way, "products": K_BLOCK * count, "error": float(np.sqrt(np.mean(off**2)))})
    return found


def numpy_environment() -> dict[str, Any]:
    """Return NumPy's circumstances, as ``toprung.lab.harness.environment`` says them of a device."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **source(),
        "packages": packages(),
        "device": {
            "name": "NumPy model",
            "short_name": "NumPy model",
            "slug": "model",
            "kind": "other",
            "arch": "",
            "backend": "numpy",
            "runtime": f"NumPy {np.__version__}",
            "driver": "",
            "compute_units": 1,
            "clock_mhz": 0.0,
            "peak_gflops": None,
        },
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("path", type=Path, nargs="?")
    arguments.add_argument("--averaged", action="store_true", help="errors of what many sums add up to, in place of schemes")
    chosen = arguments.parse_args()
    what = "python benchmarks/fp32x_study.py" + " --averaged" * chosen.averaged
    path = chosen.path or Path("results/model") / ("bias.json" if chosen.averaged else "fp32x-study.json")
    more: dict[str, Any] = {"averaged": averaged()} if chosen.averaged else {"side": SIDE, "study": study()}
    results.write(path, results.record(what, numpy_environment(), [], kind="fp32x-study", **more))


if __name__ == "__main__":
    main()
