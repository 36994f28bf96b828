"""How late the machine itself is: nobody is to blame for that."""

from __future__ import annotations

import threading
import time
from types import TracebackType

NAP = 0.004
NORMAL = 0.003
# How often, between a timer and the test, one thread wakes another: the engine's, Python's own, the test's.
HANDS = 3


class Limited:
    """Time that has a limit: it runs from the beginning of the block, until `is_within`.

    A thread does nothing but sleep for a moment and look how late it woke. The limit is extended by the longest of
    that. (The thread needs the GIL: what keeps the GIL would not be noticed as late, and is not tested with this.)
    """

    def __enter__(self) -> Limited:
        self._over = threading.Event()
        self._longest = 0.0
        self._due = time.monotonic() + NAP
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._began = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            time.sleep(NAP)
            self._longest = max(self._longest, time.monotonic() - self._due)
            self._due = time.monotonic() + NAP

    def is_within(self, most: float, least: float = 0.0) -> None:
        """Fails unless as much has passed, and no more but for as long as the machine was late."""
        took = time.monotonic() - self._began
        # The thread may be late at this very moment.
        longest = max(self._longest, time.monotonic() - self._due)
        late = HANDS * longest if longest > NORMAL else 0.0
        assert least <= took < most + late, (
            f"{took:.3f} s, with {most} s allowed and a machine late by {late:.3f} s"
        )
