"""The lines between the runner and an agent, for agents in Python. The README of this crate describes them."""

from __future__ import annotations

import ctypes
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

_writing = threading.Lock()


def now() -> int:
    """Nanoseconds on CLOCK_BOOTTIME: one clock for all processes of the machine."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def say(**fields: Any) -> None:
    """Writes a line. Fields that are None are left out; in names, ``_`` stands for ``-``."""
    line = {name.replace("_", "-"): value for name, value in fields.items() if value is not None}
    text = json.dumps(line) + "\n"
    with _writing:
        sys.stdout.write(text)
        sys.stdout.flush()


class Senseless(Exception):
    """A scenario asks for what can't be done; no scenario can expect this."""


@dataclass
class Request:
    """What the runner asks for."""

    id: int
    verb: str
    args: dict[str, Any]
    began: int = field(default_factory=now)

    @property
    def path(self) -> str:
        return str(self.args.get("path", ""))

    def seconds(self, name: str) -> float | None:
        """A duration; on the wire it is in milliseconds."""
        value = self.args.get(name)
        return None if value is None else value / 1000

    def answer(self, result: str, **fields: Any) -> None:
        """Says what came of it. ``at`` is now unless it is given."""
        fields.setdefault("at", now())
        say(id=self.id, began=self.began, result=result, **fields)

    def failed(self, error: BaseException, at: int | None = None) -> None:
        """Says that it failed: with the code of an error of Forelock's, or else the name of its class."""
        code = "AGENT" if isinstance(error, Senseless) else getattr(error, "code", type(error).__name__)
        say(id=self.id, began=self.began, at=at or now(), error=code, message=str(error))


def requests() -> Iterator[Request]:
    """The requests, each acknowledged, until the runner has no more."""
    say(event="ready")
    for line in sys.stdin:
        fields = json.loads(line)
        say(id=fields["id"], ok=True)
        yield Request(fields["id"], fields["verb"], fields["args"])


Held = TypeVar("Held")
"""A lock that is held, in whatever library."""


@dataclass
class Handle(Generic[Held]):
    """A lock that is held, or was."""

    path: str
    held: Held
    owner: str
    """Whose it is: the name of a thread or a task of the agent."""
    released: bool = False


class Handles(Generic[Held]):
    """All locks of an agent."""

    def __init__(self) -> None:
        self._all: list[Handle[Held]] = []
        self._tokens: set[int] = set()

    def add(self, handle: Handle[Held]) -> None:
        self._all.append(handle)

    def is_new(self, token: int) -> bool:
        """Whether this is the first handle on a grant."""
        if token in self._tokens:
            return False
        self._tokens.add(token)
        return True

    def find(self, path: str) -> Handle[Held]:
        """The handle that a path stands for: the last that was not released, else the last."""
        there = [handle for handle in self._all if handle.path == path]
        if not there:
            raise Senseless(f"no lock at {path}")
        return next((handle for handle in reversed(there) if not handle.released), there[-1])


def hold_the_interpreter(seconds: float) -> None:
    """Does nothing for a while without giving up the GIL: no other thread of the interpreter runs meanwhile."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
