"""Real servers and fault proxies, driven by lines over the stdin and stdout of `forelock-testkit`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any


def binary() -> str:
    """The testkit: named by FORELOCK_TESTKIT, or else built already in the workspace or on the path."""
    named = os.environ.get("FORELOCK_TESTKIT")
    if named:
        return named
    target = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[3] / "target"))
    built = target / "debug" / "forelock-testkit"
    found = str(built) if built.is_file() else shutil.which("forelock-testkit")
    if found is None:
        raise RuntimeError("build forelock-testkit first, or name it in FORELOCK_TESTKIT")
    return found


class _Tool:
    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [binary(), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.ready = self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"forelock-testkit ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def do(self, *words: object) -> dict[str, Any]:
        """Sends a command, and returns its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        answer = self._read()
        if not answer["ok"]:
            raise RuntimeError(f"{words}: {answer['error']}")
        return answer

    @property
    def connect(self) -> str:
        return str(self.ready["connect"])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def freeze(pid: int) -> None:
    """Freezes a process (SIGSTOP), and returns when it stands still."""
    subprocess.run([binary(), "freeze", str(pid)], check=True)


class Server(_Tool):
    """A ZooKeeper."""

    def __init__(self, tick_ms: int = 200, max_session_ms: int = 60_000) -> None:
        super().__init__("serve", "--tick-ms", str(tick_ms), "--max-session-ms", str(max_session_ms))

    @property
    def pid(self) -> int:
        return int(self.ready["pid"])


class Proxy(_Tool):
    """A fault proxy in front of a server."""

    def __init__(self, upstream: str) -> None:
        super().__init__("proxy", "--upstream", upstream)

    def rule(self, *words: object) -> int:
        """Installs a one-shot rule, and returns its number."""
        return int(self.do(*words)["rule"])

    def fired(self, rule: int, within: float = 60.0) -> dict[str, Any]:
        """Waits until a rule has fired, and returns the journal's entry."""
        entry: dict[str, Any] = self.do("fired", rule, int(within * 1000))["entry"]
        return entry

    def count(self, operation: str) -> int:
        """How many requests of a kind have come by so far."""
        return int(self.do("count", operation)["count"])
