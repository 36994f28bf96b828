"""A worker's link to the director of the story: lines of JSON, as README.md describes them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import forelock

# The one clock of the story: the one that Forelock's leases run on, where Python can read it.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> int:
    """Nanoseconds on the clock that everybody in the story reads."""
    return time.clock_gettime_ns(CLOCK)


@dataclass(frozen=True)
class Job:
    """What a worker is told to do. Times are seconds."""

    name: str
    connect: str
    lock: str
    database: str
    entries: str
    session: float
    tick: float
    batch: int


class Link:
    """Reads the job, and from then on tells what happens and waits for the director where it must."""

    def __init__(self) -> None:
        self._writing = threading.Lock()  # since losses are told from a thread of their own
        job = self._hear()
        self.job = Job(
            name=job["name"],
            connect=job["connect"],
            lock=job["lock"],
            database=job["database"],
            entries=job["entries"],
            session=job["session_ms"] / 1000,
            tick=job["tick_ms"] / 1000,
            batch=job["batch"],
        )
        language = f"Python {sys.version.split()[0]}"
        self.say("ready", pid=os.getpid(), language=language, forelock=importlib.metadata.version("forelock"))

    def say(self, event: str, *, at: int | None = None, **details: object) -> None:
        line = json.dumps({"event": event, "at": now() if at is None else at, **details})
        with self._writing:
            print(line, flush=True)

    def about_to_post(self, held: forelock.HeldLock, entry: str) -> None:
        """Announces a write, waits for the go-ahead, and tells how the lock stands after that.

        The director stops a process while it waits here. That process has passed its own check, so it goes on
        with the write when it wakes, if the director asked for that; any other whose lock is lost leaves.
        """
        at = now()
        self.say("about-to-post", at=at, token=held.token, entry=entry, remaining=held.remaining())
        order = self._hear()
        at = now()
        valid = held.is_valid()
        self.say(
            "checked",
            at=at,
            token=held.token,
            valid=valid,
            remaining=held.remaining(),
            reason=held.lost_reason,
        )
        if valid:
            return
        if not order.get("even_if_lost"):
            held.ensure()
        self.say("late-write", token=held.token, entry=entry)

    def handing_back(self, held: forelock.HeldLock) -> None:
        at = now()
        self.say("handing-back", at=at, token=held.token, remaining=held.remaining())

    def _hear(self) -> dict[str, Any]:
        line = sys.stdin.readline()
        if not line:
            sys.exit("the director is gone")
        order: dict[str, Any] = json.loads(line)
        return order
