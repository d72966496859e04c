"""``toprung tune``: the command that tunes, and checks the promise."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from toprung import backends
from toprung.cli import common
from toprung.cli.common import MOST_SIZES, WIDE, console, json_option, parse_sizes, result_file, say, show
from toprung.cli.progress import Progress
from toprung.device import Device, cores
from toprung.dispatch.autotune import HERE, known_level
from toprung.dispatch.select import unsuited
from toprung.errors import BadArgument, NoDevice, UnknownName, Unsupported
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.lab.harness.suites import fitting, suite
from toprung.oracle.gemm import TRANSPOSES
from toprung.oracle.problem import Problem
from toprung.paths import store_off
from toprung.report import plot as pictures
from toprung.report import tune as report
from toprung.store import Store
from toprung.tune import shapes
from toprung.tune.check import LANES, SHAPES, WITHIN, Checked, asked, check
from toprung.tune.executors.base import Executor
from toprung.tune.executors.local import Local
from toprung.tune.rows import Choices, candidates
from toprung.tune.search import STRATEGIES, strategy
from toprung.tune.session import PRECISIONS, Budget, Tuner

BUDGET, CHECK_BUDGET = "60s", "30m"
"""Default budgets of a run and of a check."""
LINES = 20
"""Most configurations that are printed below a table too narrow for them."""


def tune_command(
    routine: Annotated[str | None, typer.Argument(metavar="[gemm|gemv]", help="by default both")] = None,
    sizes: Annotated[
        str | None, typer.Option(help="512, 35x79x19, 64x64x64x1000 (a batch), 256:1024:256, or several with commas")
    ] = None,
    suite_name: Annotated[str | None, typer.Option("--suite", metavar="NAME|FILE.json", help="products of a suite")] = None,
    trans: Annotated[str | None, typer.Option(help="NN, NT, TN, TT (gemv: N, T), with commas; by default NN (gemv: both)")] = None,
    budget: Annotated[
        str | None, typer.Option(help=f"60s, 5m, or a number of configurations; by default {BUDGET}, for --check {CHECK_BUDGET}")
    ] = None,
    device: Annotated[str | None, typer.Option(help="an id, or a part of a name (see toprung devices)")] = None,
    devices: Annotated[
        str | None, typer.Option(help="all, or several with commas: each is measured by a process of its own")
    ] = None,
    scheduler: Annotated[str | None, typer.Option(metavar="ADDRESS", help="a Dask cluster whose workers have the devices")] = None,
    search: Annotated[str, typer.Option("--strategy", help=", ".join(STRATEGIES))] = "climb",
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="try everything until the budget ends: the model's order, then the rest")
    ] = False,
    precision: Annotated[
        str, typer.Option(help="fp32, fp32x, or auto: both where the device has fp32x and it is, or may be, the faster")
    ] = "auto",
    limit: Annotated[float, typer.Option(help="seconds that a run of one configuration may take")] = 20.0,
    seed: Annotated[int, typer.Option(help="of the data, of what is drawn")] = 0,
    checked: Annotated[
        bool, typer.Option("--check", help=f"measure whether what runs is within {100 * (WITHIN - 1):.0f} % of the best there is")
    ] = False,
    planning: Annotated[
        str | None,
        typer.Option(help="estimate or measure, for --check: how a call is planned; by default what TOPRUNG_PLANNING says"),
    ] = None,
    count: Annotated[int, typer.Option("--shapes", help="how many shapes --check draws")] = SHAPES,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the check in --json, if there is one")] = False,
    json: Annotated[Path | None, json_option("store the whole run in this file")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="draw the best so far over time: a .png or .svg file", callback=result_file)
    ] = None,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """Search for faster configurations on this machine and remember them: every later program uses them.

    Each configuration is verified before it is timed, beside the best so far, in a process of its own: one that crashes, hangs or
    computes something wrong is recorded, and the search goes on. Ctrl-C keeps what was learnt; a second run goes on from there.

    Examples:

      toprung tune

      toprung tune gemm --sizes 4096,1000x1000x512 --trans NN,TN --budget 5m

      toprung tune --devices all --budget 2m --json tuned.json

      toprung tune gemm --sizes 1024 --exhaustive --budget 4m --json all.json

      toprung tune --check

      toprung tune --check --planning measure

      toprung tune --check --budget 8m --json check.json --resume
    """
    strategy(search)
    allowed = parse_budget(budget or (CHECK_BUDGET if checked else BUDGET))
    if precision not in PRECISIONS:
        raise UnknownName("precision to be tuned", precision, PRECISIONS)
    if checked and allowed.seconds is None:
        raise BadArgument(f"--check takes a time as its --budget, such as {CHECK_BUDGET}")
    if not 0 < limit < 1e6 or not 0 < count <= MOST_SIZES:
        raise BadArgument(f"--limit and --shapes are above 0, --limit below 1e6 and --shapes at most {MOST_SIZES}")
    if store_off() and not checked:
        raise BadArgument("TOPRUNG_STORE=off leaves nothing to remember what is learnt: unset it to tune")
    if planning is not None and not checked:
        raise BadArgument("--planning is of --check: what a search finds holds for both")
    if resume and (not checked or json is None):
        raise BadArgument("--resume goes on with a --check: name its file with --json")
    if plot is not None:
        pictures.check(plot)
    routines = [routine] if routine is not None else list(shapes.ROUTINES)
    shapes.known(routines)
    wanted = _given(routine, sizes, suite_name, trans)
    if checked:
        chosen = known_level(planning) if planning is not None else HERE.level()
        if chosen == "measure" and store_off():
            raise BadArgument("TOPRUNG_STORE=off leaves nothing to plan with: unset it, or check with --planning estimate")
        _check(backends.find(device), wanted, count, seed, limit, allowed.seconds or 0.0, precision, chosen, json, resume)
    executor = _executor(device, devices, scheduler)
    try:
        where = executor.lanes()[0].device
        problems: list[Problem] = wanted or shapes.default(where, routines)
        if suite_name is not None:
            problems = list(fitting(problems, where.kind)[0])  # type: ignore[arg-type]  # a suite's are products
        tuner = Tuner(problems, executor, Store.default(), allowed, search, seed, limit, exhaustive, precision)
        interrupted = _run(tuner, allowed.seconds or 0.0, wide)
    finally:
        executor.close()
    if left := [report.shape_name(s) for s in tuner.shapes if report.unbegun(s)]:
        tuner.notes.append(f"not reached: {', '.join(left)}; the same command, or a longer --budget, begins with them")
    for text in tuner.notes:
        say(text, "dim")
    for text in map(report.exhausted_line, tuner.shapes):
        if text:
            say(text)
    if warning := report.noisy_line(tuner):
        tuner.notes.append(warning)
        say(warning, "yellow")
    stored = record(tuner, where, interrupted)
    if json is not None:
        results.write(json, stored)
    if plot is not None:
        report.best_over_time({search: stored}, plot)
    if interrupted:
        console.print(
            f"interrupted: what was learnt is in {Store.default().path}; the same command goes on from there", style="yellow"
        )
        raise typer.Exit(common.INTERRUPTED)
    if any(s.state == "failed" for s in tuner.shapes) or not any(s.candidate for s in tuner.shapes):
        raise typer.Exit(1)


def parse_budget(text: str) -> Budget:
    """Return the budget of a text: ``60s``, ``5m``, ``1h``, or a number of configurations.

    Raises
    ------
    BadArgument
        the text is anything else, or its amount is 0
    """
    if common.is_whole(text.strip()) and int(text) > 0:
        return Budget(trials=int(text))
    try:
        return Budget(seconds=common.parse_seconds(text))
    except BadArgument:
        raise BadArgument(f"a budget is a time such as 60s or 5m, or a number of configurations, not {text!r}") from None


def record(tuner: Tuner, device: Device, interrupted: bool) -> dict[str, Any]:
    """Return the content of a run's result file."""
    found = results.record(
        results.command(), environment(device), [], [s.note for s in tuner.shapes if s.note], interrupted,
        kind="tune", notes=tuner.notes, seconds=tuner.elapsed, configurations=tuner.tried,
        shapes=[{"machine": str(s.machine), **s.describe()} for s in tuner.shapes],
    )  # fmt: skip
    return found


def _given(routine: str | None, sizes: str | None, suite_name: str | None, trans: str | None) -> list[Problem]:
    if sizes is not None and suite_name is not None:
        raise BadArgument("--sizes and --suite exclude each other")
    turned = trans.upper().split(",") if trans else []
    for word in turned:
        if word not in (("N", "T") if routine == "gemv" else TRANSPOSES):
            raise UnknownName("transpose", word, ("N", "T") if routine == "gemv" else TRANSPOSES)
    if suite_name is not None:
        if routine == "gemv":
            raise BadArgument("suites are of products: --suite is for gemm")
        return list(suite(suite_name, turned))
    if sizes is None:
        if turned:
            raise BadArgument("--trans needs --sizes or --suite: without them every layout is tuned")
        return []
    return shapes.given(routine or "gemm", parse_sizes(sizes), turned)


def _executor(device: str | None, devices: str | None, scheduler: str | None) -> Executor:
    if scheduler is not None:
        if devices is not None:
            raise BadArgument("--scheduler takes the workers' devices: --devices is for this machine")
        from toprung.tune.executors.dask import Dask

        return Dask(scheduler, device)
    if devices is None:
        return Local([backends.find(device)])
    if device is not None:
        raise BadArgument("--device and --devices exclude each other")
    found = backends.devices() if devices == "all" else [backends.find(name) for name in devices.split(",")]
    if not found:
        raise NoDevice("no device found. " + " ".join(backends.advice()))
    return Local(list(dict.fromkeys(found)))


def _run(tuner: Tuner, seconds: float, wide: bool) -> bool:
    """Tune with a live table, or one line for each shape if the output is no terminal; return True if Ctrl-C ended it."""
    interrupted = False
    steps = tuner.run()
    try:
        with Progress(seconds) as progress:
            progress.table = lambda: report.progress_table(tuner).fitted(console.width)[0]
            said: dict[int, str] = {}
            passed = 0.0
            for changed in steps:
                now = progress.elapsed
                over = sum(s.state not in ("waiting", "running") for s in tuner.shapes)
                late = ", finishing what was begun" if seconds and now > seconds else ""
                progress.step(f"{report.counted(over, len(tuner.shapes))}, {report.configurations(tuner)}{late}", now - passed)
                passed = now
                is_over = changed is not None and changed.state not in ("running", "waiting")
                if not console.is_terminal and is_over and changed and said.get(id(changed)) != (text := report.line(changed)):
                    said[id(changed)] = text
                    say(text)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        steps.close()  # type: ignore[attr-defined]
    if "configuration" in show(report.progress_table(tuner, over=True), wide):
        for shape in tuner.shapes[:LINES]:
            if shape.candidate:
                say(f"{report.shape_name(shape)}: {shape.candidate}")
    return interrupted


@contextmanager
def _apart() -> Iterator[Store]:
    """Use an empty store in place of the user's: random shapes do not belong there, and its entries for them would help."""
    with tempfile.TemporaryDirectory(prefix="toprung-check-") as folder:
        store = Store(Path(folder) / "tuned.sqlite")
        with store.instead():
            yield store


def _before(json: Path, device: Device, left: Sequence[tuple[Problem, str]]) -> dict[str, Any]:
    """Return the record of a check's earlier parts.

    Raises
    ------
    BadArgument
        it is of other problems, another device or other code
    """
    content, now = results.read(json), environment(device)
    done = [(shape["problem"], shape["precision"]) for shape in content.get("shapes", ())]
    why = "is no check of these shapes" if done != [(p.describe(), path) for p, path in left[: len(done)]] else ""
    why = why or ("" if results.is_of(content, device) else f"was measured on {content['environment']['device']['short_name']}")
    why = why or ("" if content["environment"].get("src") == now.get("src") else "was measured with other code")
    if content.get("kind") != "tune-check" or why:
        raise BadArgument(f"--resume: {json} {why or 'is no check'}; take the same command on the same device, or another file")
    return content


def _check(
    device: Device, wanted: list[Problem], count: int, seed: int, limit: float, seconds: float, precision: str, planned: str,
    json: Path | None, resume: bool,
) -> None:  # fmt: skip
    """Check the promise, print and store the results whatever ends it, and exit the command."""
    start, interrupted, measuring = time.monotonic(), False, planned == "measure"
    problems = wanted or shapes.drawn(device, count, seed)
    if not wanted and not measuring:  # nothing of mixed operands is stored, so that there is nothing to plan
        problems = shapes.with_mixed(device, problems, seed)
    problems = wanted or shapes.with_scalars(problems, seed)
    left = [(problem, path) for problem in problems for path in asked(device, problem, precision)]
    if not left:
        raise Unsupported(f"nothing to be checked in {precision}: {unsuited(device, problems[0].desc, precision)}")
    before = _before(json, device, left) if resume and json is not None and json.exists() else {"shapes": [], "choices": {}}
    known = candidates(before)
    found = [Checked.read(shape, known) for shape in before["shapes"]]
    done, notes, over = len(found), list[str](), False
    executor = Local([device], 1 if measuring or device.kind != "gpu" else max(1, min(LANES, cores() // 4)))
    try:
        with _apart() if measuring else nullcontext(Store.default()) as store, Progress(len(left) - done, seconds) as progress:
            progress.step(f"{done} of {len(left)} shapes")
            for one in check(
                executor.lanes(), problems, store, limit=limit, seed=seed, precision=precision, measuring=measuring, done=done
            ):  # fmt: skip
                found.append(one)
                if one.broken or one.trouble:
                    say(report.check_line(one, device.id), "red")
                if over := len(found) < len(left) and time.monotonic() - start >= seconds:
                    notes.append(f"the time was over after {len(found)} of {len(left)}: give --check a longer --budget or --resume")
                    break
                progress.step(f"{len(found)} of {len(left)} shapes", 1.0)
    except KeyboardInterrupt:
        interrupted = True
    except NoDevice as error:
        notes.append(str(error))
    finally:
        executor.close()
    choices = Choices({candidate: number for number, candidate in known.items()})
    stored = results.record(
        results.command(), environment(device), [],
        [report.check_line(c, device.id) for c in found if c.broken or c.trouble], interrupted,
        kind="tune-check", notes=notes, precision=precision, planning=planned, seed=seed, within=WITHIN,
        seconds=before.get("seconds", 0.0) + time.monotonic() - start, wanted=len(left),
        shapes=[*before["shapes"], *(c.describe(choices) for c in found[done:])], choices=choices.describe(),
    )  # fmt: skip
    if json is not None:
        results.write(json, stored)
    for path in dict.fromkeys(path for _, path in left):
        title = f"{path}, planned by measuring" if measuring else path
        of_path = [c for c in found if c.precision == path]
        for text in (report.checked_line(of_path, title), *report.kind_lines(of_path)):
            say(text)
    if not measuring and any(c.broken for c in found):
        notes.append('calls can be planned by measuring, as toprung.planning("measure") has it: check that with --planning measure')
    for text in (*notes, f"{len(found)} of {len(left)} in {time.monotonic() - start:.0f} s"):
        say(text, "dim")
    if interrupted:
        raise typer.Exit(common.INTERRUPTED)
    raise typer.Exit(int((len(found) < len(left) and not over) or any(c.broken or c.trouble for c in found)))


COMMANDS = {"tune": tune_command}
