"""A measuring process that may crash or hang: restarted after a crash, killed when it hangs.

    python -m toprung.tune.worker FD DEVICE [SHARED]

The parent keeps a ``Worker``. Those of one device take turns by a lock on the file SHARED: while one uses the device, others check
results and draw operands. The child is a fresh interpreter, not a fork: devices do not work in those, and processes that are
themselves children of a cluster's worker may start one, too. They talk over a socket pair. The child reports each phase that
begins, so that the parent knows its time limit and the cause of a failure.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import toprung.errors
from toprung.dispatch.autotune import LEVELS, VARIABLE
from toprung.errors import NoDevice
from toprung.forks import renewed
from toprung.tune.trial import Outcome, Sampled, Trial

START = 120.0
"""Seconds that the child may take to open the device."""

LIMITS: Mapping[str, float] = {"place": 300.0, "build": 180.0, "check": 120.0, "wait": 300.0}
"""Seconds that a phase may take whose length does not depend on a candidate's speed; in the others the trial's limit applies."""

PACKAGE = str(Path(toprung.errors.__file__).parents[1])
"""Folder from which the child imports this very toprung."""

END = 60.0
"""Seconds that a child may take to end; one that waits in a driver ends by no signal."""

TAIL = 400
"""Number of last characters of a dead child's output that are kept."""


class Worker:
    """One device, measured by one child process at a time.

    The child runs this module, or another ``module`` that says hello and answers requests.

    Attributes
    ----------
    shared : file by which several children take turns on the device; None for a child that is alone on it
    fingerprint : fingerprint of the child's session, to compile for it elsewhere; empty before the first trial
    how : how a child that did not answer ended; empty before
    """

    def __init__(
        self, device: str, module: str = "toprung.tune.worker", quiet: bool = True, shared: IO[bytes] | None = None
    ) -> None:  # fmt: skip
        # what the child prints is kept for the sentence on its end if quiet, and else goes where this process prints
        self.device, self.fingerprint, self.how, self._module, self._quiet = device, "", "", module, quiet
        self.shared = shared
        self._process: subprocess.Popen[bytes] | None = None
        self._talk: Connection | None = None
        self._printed: IO[bytes] | None = None
        self._closed = False
        self._lock = renewed(threading.Lock())

    @property
    def pid(self) -> int | None:
        """Process id of the child, None without one."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the child, unless it runs.

        Raises
        ------
        NoDevice
            it cannot open the device
        """
        with self._lock:
            if self._closed:
                raise NoDevice(f"the worker of {self.device} was closed")
            if self._process is not None and self._process.poll() is None:
                return
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
                    output = self._printed if self._quiet else None
                    shared = [self.shared.fileno()] if self.shared else []
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", self._module, str(theirs.fileno()), self.device, *map(str, shared)],
                        pass_fds=[theirs.fileno(), *shared], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                        start_new_session=True,  # Ctrl-C is for the parent: it decides what becomes of the trial
                        env={
                            **({"OPENBLAS_NUM_THREADS": "4"} if shared else {}),  # one of several that verify at a time
                            **os.environ, VARIABLE: LEVELS[0],  # what measures does not have itself measured
                            "PYTHONPATH": os.pathsep.join(filter(None, (PACKAGE, os.environ.get("PYTHONPATH")))),
                        },
                    )  # fmt: skip
                except OSError as error:
                    ours.close()
                    self._forget()
                    raise NoDevice(f"no process that measures could be started: {error}") from None
            self._talk = Connection(ours.detach())
        hello = self._receive(START)
        if not isinstance(hello, dict) or "trouble" in hello:
            said = hello["trouble"] if isinstance(hello, dict) else self._ended()
            self.kill()
            raise NoDevice(f"{self.device} could not be opened for measuring: {said}")
        self.fingerprint = hello["fingerprint"]

    def run(self, trial: Trial) -> Outcome:
        """Run a trial; a candidate that crashes, hangs or spoils the device is named in the outcome.

        Raises
        ------
        NoDevice
            the device cannot be opened, or no longer
        """
        self.start()
        assert self._talk is not None
        begin = time.monotonic()
        phase, which = "place", 0
        try:
            self._talk.send(trial)
        except OSError:
            return self._blamed(trial, phase, which, "crashed", self._ended(), begin)
        while True:
            limit = LIMITS.get(phase, trial.limit)
            said = self._receive(limit)
            if said is None:
                self.kill()
                return self._blamed(trial, phase, which, "timeout", f"no answer for {limit:g} s in phase {phase}", begin)
            if isinstance(said, EOFError):
                if self._closed:
                    raise NoDevice(f"the worker of {self.device} was closed")
                return self._blamed(trial, phase, which, "crashed", self._ended(), begin)
            if isinstance(said, Outcome):
                return said
            phase, which = said[:2]
            if phase == "spoilt":  # the child has raised, and goes
                which, message = said[1:]
                self.kill()
                return self._blamed(trial, phase, which, "crashed", message, begin)

    def ask(self, request: Any, limit: float, meanwhile: Callable[[], None] = lambda: None) -> Any:
        """Send a request to the child, call ``meanwhile``, and return the child's answer.

        Raises
        ------
        NoDevice
            the child cannot open the device, ends, or does not answer within ``limit`` seconds
        """
        self.start()
        assert self._talk is not None
        with suppress(OSError):  # it has ended, which is found out by listening
            self._talk.send(request)
        meanwhile()
        said = self._receive(limit)
        if said is None or isinstance(said, EOFError):
            self.how = self._ended() if said is not None else f"it gave no answer for {limit:g} s"
            self.kill()
            raise NoDevice(f"what measures on {self.device} is gone: {self.how}")
        if isinstance(said, dict):
            raise NoDevice(str(said["trouble"]))
        return said

    def kill(self) -> None:
        """End the child at once."""
        with self._lock:
            self._stop()
            self._forget()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # then it is left behind
                self._process.wait(END)

    def _forget(self) -> None:
        """Close the connection to the child and the file of its output."""
        for one in (self._talk, self._printed):
            if one is not None:
                one.close()
        self._process = self._talk = self._printed = None

    def close(self) -> None:
        """End the child for good; a trial that another thread waits for ends with NoDevice."""
        self._closed = True
        with self._lock:
            self._stop()

    def _receive(self, limit: float) -> Any:
        """Return the child's next message; None if there is none within ``limit`` seconds, EOFError if the child is gone."""
        assert self._talk is not None
        try:
            return self._talk.recv() if self._talk.poll(limit) else None
        except (EOFError, OSError):
            return EOFError()

    def _ended(self) -> str:
        """Wait for the child's end; return a sentence on how it ended and what it printed last."""
        assert self._process is not None and self._printed is not None
        try:
            code = self._process.wait(END)
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            how = f"silent, and had not ended {END:g} s later"
        self._printed.seek(0)
        last = self._printed.read().decode(errors="replace").strip()[-TAIL:]
        return f"the process was {how}" + (f": {last}" if last else "")

    def _blamed(self, trial: Trial, phase: str, which: int, status: str, message: str, begin: float) -> Outcome:
        self.kill()
        seconds = time.monotonic() - begin
        if phase == "place":
            return Outcome((), seconds, f"the operands could not be made: {message}")
        sampled = [Sampled()] * len(trial.candidates)
        sampled[which] = Sampled(status, message)
        return Outcome(tuple(sampled), seconds)


def main(words: list[str]) -> None:
    """Open the device and answer trials until the parent is gone: the main function of the child."""
    talk = Connection(int(words[0]))
    parent = os.getppid()
    threading.Thread(target=outlive_nobody, args=(parent,), daemon=True).start()
    from toprung import backends
    from toprung.tune.measure import Measurer

    at: list[Any] = ["place", 0]

    def says(phase: str, which: int) -> None:
        at[:] = phase, which
        talk.send((phase, which))

    @contextmanager
    def alone() -> Iterator[None]:
        phase, which = at
        says("wait", which)
        fcntl.lockf(int(words[2]), fcntl.LOCK_EX)  # the system releases it if this process is killed
        says(phase, which)
        try:
            yield
        finally:
            fcntl.lockf(int(words[2]), fcntl.LOCK_UN)

    try:
        session = backends.open_device(backends.find(words[1]))
        measurer = Measurer(session, alone if len(words) > 2 else nullcontext)
    except Exception as error:
        talk.send({"trouble": f"{type(error).__name__}: {error}"})
        return
    talk.send({"fingerprint": session.fingerprint()})
    while True:
        try:
            trial = talk.recv()
        except (EOFError, OSError):
            os._exit(0)  # closing a device that somebody else's kernel has spoilt may hang
        try:
            talk.send(measurer.run(trial, says))
        except Exception as error:
            talk.send(("spoilt", at[1], f"{type(error).__name__}: {error}"))
            os._exit(1)


def outlive_nobody(parent: int) -> None:
    """End this process when its parent is gone, even in the middle of a kernel that does not end."""
    while os.getppid() == parent:
        time.sleep(0.25)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
