"""``python -m toprung.torch train.py …``: a program runs as it is, its fp32 matrix products through toprung."""

from __future__ import annotations

import argparse
import contextlib
import json
import runpy
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from toprung.backends import native_plan
from toprung.cli.common import checked_file, errors_console
from toprung.errors import NotWritten, ToprungError
from toprung.paths import deliver
from toprung.torch import bridge, enable, report, wait
from toprung.torch.audit import Auditing

FAREWELL = 10.0
"""Seconds that the report waits for kernels that are still being prepared."""

EXAMPLES = """examples:
  python -m toprung.torch train.py --lr 1e-3
  python -m toprung.torch --report train.py               at the end: what ran where, as a table on stderr
  python -m toprung.torch --report ran.html --measure train.py    the same as a page, with times
  python -m toprung.torch --audit train.py                which products PyTorch computes in TF32
  python -m toprung.torch --precision fp32 -m package.train --epochs 3
  torchrun --nproc-per-node 2 -m toprung.torch train.py

FILE may be left out before a program whose name ends with .py.
Processes that the program starts by itself enable toprung themselves: toprung.torch.enable()."""

VALUED = ("--precision", "--min-flops", "--report", "--audit")
"""Options that a value follows."""


class _Build(argparse.Action):
    """Option that compiles what the wheel has compiled, and ends the program."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        try:
            for make, what in ((bridge.build, f"overrides for PyTorch {torch.__version__}"), (native_plan.build, "toprung.matmul")):
                print(f"{make()}: {what} in C++, used from now on")
        except ToprungError as error:
            parser.error(str(error))
        parser.exit()


def main(given: list[str] | None = None) -> None:
    """Run a program with toprung enabled. The exit status is the program's; 2 for options that there are not."""
    parser = argparse.ArgumentParser(
        prog="python -m toprung.torch", description="Run a program with its fp32 matrix products through toprung, without an edit.",
        epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--precision", default="auto", help="auto (default), fp32x or fp32: see toprung.torch.enable")
    parser.add_argument("--own", action="store_true", help="run toprung's kernels also where PyTorch's own are as fast")
    parser.add_argument("--min-flops", type=float, metavar="N", help="operations below which PyTorch's own run")
    parser.add_argument("--cpu", action="store_true", help="take products on the CPU, too")
    parser.add_argument(
        "--report", metavar="FILE", nargs="?", const="-",
        help="say at the end what ran: as JSON in FILE, as a page in FILE.html, or as a table on stderr (no FILE, or -)",
    )  # fmt: skip
    parser.add_argument("--measure", action="store_true", help="with --report: how long each kind takes on toprung's and PyTorch's")
    parser.add_argument("--modules", action="store_true", help="with --report: name the modules that make the products")
    parser.add_argument(
        "--audit", metavar="FILE", nargs="?", const="-",
        help="run on PyTorch's own kernels, and say in which precision each product was computed, with its error: as JSON in "
        "FILE, or as a table on stderr (no FILE, or -)",
    )  # fmt: skip
    parser.add_argument(
        "--build", action=_Build, nargs=0,
        help="compile overrides in C++, so that products enter no Python, and the entry of toprung.matmul, and end",
    )  # fmt: skip
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, not a file")
    parser.add_argument("program", help="file, or module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program is given")
    options = parser.parse_args(_with_files(sys.argv[1:] if given is None else given))
    try:
        if options.report is not None and options.audit is not None:
            parser.error("--report and --audit exclude each other: an audited program runs on PyTorch's own kernels")
        if options.measure and options.report is None:
            parser.error("--measure belongs to --report, which writes the times")
        if options.audit is not None and options.audit.endswith(".html"):
            parser.error(f"an audit is a table or JSON, not a page: name a file like {Path(options.audit).with_suffix('.json')}")
        named = options.audit if options.report is None else options.report
        file = None if named in (None, "-") else checked_file(Path(named))
        if named is not None and named.endswith(".html"):
            from toprung.torch import page  # with the report's style, which a program that only trains does not need

            page.environment()  # refused now, not when the program has run
        program = Path(options.program)
        if not options.module and not (program.is_file() or (program / "__main__.py").is_file()):
            parser.error(f"there is no program {options.program}: name a file, or a module after -m")
        kinds = ("cuda", "cpu") if options.cpu else ("cuda",)
        auditing = Auditing(options.precision, device_types=kinds) if options.audit is not None else None
        enable(options.precision, device_types=kinds, own=options.own, min_flops=options.min_flops, modules=options.modules)
    except ToprungError as error:
        parser.error(str(error))
    sys.argv[:] = [options.program, *options.arguments]
    sys.excepthook = _without_ours
    try:
        with auditing or contextlib.nullcontext():
            if options.module:
                sys.path.insert(0, "")
                runpy.run_module(options.program, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = str(Path(options.program).resolve().parent)  # where Python looks first when it runs a file
                runpy.run_path(options.program, run_name="__main__")
    finally:
        if named is not None:
            _written(file, auditing and auditing.found, options.measure)


def _without_ours(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a program's error without the frames of runpy and of this file, which come before its own."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.run_path.__code__.co_filename):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def _with_files(given: list[str]) -> list[str]:
    """Return arguments in which ``-`` stands behind a ``--report`` or ``--audit`` that the program follows directly."""
    at = 0
    while at < len(given) and given[at].startswith("-"):
        if given[at] in ("--report", "--audit") and given[at + 1 : at + 2] and given[at + 1].endswith(".py"):
            return [*given[: at + 1], "-", *given[at + 1 :]]
        at += 2 if given[at] in VALUED else 1
    return given


def _written(file: Path | None, audited: Any, measure: bool) -> None:
    """Write what ran, or what an audit found, to a file, or as a table to stderr."""
    wait(FAREWELL)  # compilers at work would disturb the times of --measure
    found = audited or report(measure)
    if file is None:
        errors_console.print(str(found), markup=False, highlight=False, soft_wrap=True)
        return
    text = found.to_html() if file.suffix == ".html" and not audited else json.dumps(found.to_json(), indent=1) + "\n"
    said = f"the {'audit' if audited else 'report'} is in {file}"
    try:
        deliver(file, text.encode(errors="replace"))
    except NotWritten as error:  # the program has run, and its exit status is its own
        said = str(error)
    print(f"toprung: {said}", file=sys.stderr)


if __name__ == "__main__":
    main()
