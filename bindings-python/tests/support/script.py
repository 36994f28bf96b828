"""Programs of their own: what happens at exit, at a fork and at Ctrl-C is seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

LIMIT = 180.0
TESTS = str(Path(__file__).parents[1])


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Script:
    """A running Python program, with its lines of output."""

    def __init__(self, source: str, *arguments: str, options: tuple[str, ...] = ()) -> None:
        environment = {**os.environ, "PYTHONPATH": TESTS, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, *options, "-c", textwrap.dedent(source), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
            # A run in the background of a shell ignores Ctrl-C, and would pass that on.
            preexec_fn=_heed_ctrl_c,
        )
        # A program that hangs, or one that it forked, ends the test and not the run.
        self._limit = threading.Timer(LIMIT, os.killpg, (self._process.pid, signal.SIGKILL))
        self._limit.daemon = True
        self._limit.start()

    def line(self) -> str:
        """The next line of output."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the program ended: {self.finish()}")
        return line.rstrip("\n")

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    @property
    def pid(self) -> int:
        return self._process.pid

    def finish(self) -> tuple[int, str, str]:
        """Waits for the end: the exit code, what was printed, and what was complained about."""
        out, err = self._process.communicate()
        self._limit.cancel()
        return self._process.returncode, out, err


def run(source: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """Runs a program that has to end well and complain about nothing; returns what it printed."""
    code, out, err = Script(source, *arguments, options=options).finish()
    assert (code, err) == (0, ""), f"exit code {code}\n{out}\n{err}"
    return out
