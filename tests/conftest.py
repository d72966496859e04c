"""Common ground of all tests: the device, caches of their own, and requirements that count as failures where nobody looks."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import once
from toprung import store
from toprung.backends import nvrtc, opened
from toprung.backends.base import Session
from toprung.device import Device
from toprung.lab.sass import machine_code

os.environ.pop("COLUMNS", None)  # of the terminal that pytest's workers think they have; tables take a pipe's width

# the same examples in every run, none kept, and no deadline: the machine may be busy
hypothesis.settings.register_profile("steady", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("steady")

# many tests look at the machine code of the same kernels
nvrtc._compiled = once.nvrtc(nvrtc._compiled)
machine_code.disassemble = once.disassembled(machine_code.disassemble, machine_code.disassembler)


def require(condition: object, reason: str) -> None:
    """Skip the test unless ``condition`` holds; with CI=true fail, so that nothing is skipped unseen."""
    if condition:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"with CI=true this may not be skipped: {reason}")
    pytest.skip(reason)


BUILD = "POCL_EXTRA_BUILD_FLAGS"
"""Environment variable of PoCL's: options that it adds to every build."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--optimised``: kernels on PoCL are compiled as a user's are, which takes ten times as long."""
    parser.addoption("--optimised", action="store_true", help="compile kernels on PoCL with its optimiser, as users do")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that run kernels: those that ask for the device or its session."""
    for item in items:
        if {"device", "session"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("on_device")


def pytest_collection_finish() -> None:
    """Have Python's collector leave alone what there is now: thousands of tests, which it would look at again and again.

    It also looks less often at what comes: it took a twentieth of the time. At the interpreter's end it has them again, for
    libraries report what is left as leaked; pytest itself would collect before, and tests/run.py ends without.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)
    gc.set_threshold(100_000, 20, 20)


def pytest_configure(config: pytest.Config) -> None:
    """Give toprung and PoCL the store's caches, and a fresh folder of data, all of which workers inherit.

    What this machine's user has tuned, and what ships with the package, must not decide what tests see. Kernels are compiled
    without PoCL's optimiser unless ``--optimised`` is given: a build takes 0.2 s, not 3, and a kernel's mistakes are the same.
    """
    os.environ[store.VARIABLE] = "off"
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # files run side by side: threads of NumPy and PyTorch would only wait
        os.environ.setdefault(name, "1")
    if not config.getoption("optimised"):
        os.environ.setdefault(BUILD, "-cl-opt-disable")
    os.environ[once.VARIABLE] = str(once.folder())  # tests may move the user's folders
    once.prune()
    if os.cpu_count() != 2:  # selection depends on the number of cores: every machine selects the same kernels
        os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", "2")
    for name, folder in once.caches().items():
        Path(os.environ.setdefault(name, folder)).mkdir(parents=True, exist_ok=True)
    if "TOPRUNG_DATA" not in os.environ:
        os.environ["TOPRUNG_DATA"] = data = tempfile.mkdtemp(prefix="toprung-tests-")
        config.add_cleanup(lambda: shutil.rmtree(data, ignore_errors=True))


@pytest.fixture(scope="session")
def device() -> Device:
    """The device the tests run on."""
    import trial  # what conftest imports is an input of every test file: no more than the stores need

    found = trial.tested()
    require(found, "no PoCL device: pip install pocl-binary-distribution")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def session(device: Device) -> Iterator[Session]:
    """The device, opened once."""
    with opened(device) as session:
        yield session


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line in this process, a ``command.Typed``."""
    from command import Typed  # as above

    return Typed(capsys, monkeypatch)


@pytest.fixture
def beforehand_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the families that split in flight: of fp32x there is the one that splits both operands beforehand."""
    from toprung.kernels.hopper_fp32x.family import HopperInflight, HopperInflightSplitK, HopperPresplit

    for family in (HopperInflight, HopperInflightSplitK, HopperPresplit):
        monkeypatch.setattr(family, "supports", lambda *what: "left out")
