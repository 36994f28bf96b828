"""Callbacks: each on a thread of ours, so that a slow one holds nobody up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from . import _threads
from .states import LostReason, StateChange, States

if TYPE_CHECKING:
    from . import _native

__all__ = ["Subscription"]

_T = TypeVar("_T")


class Subscription:
    """A callback that is registered."""

    __slots__ = ("__weakref__", "_stop")

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def cancel(self) -> None:
        """Unregisters the callback. A call that has begun goes on; none begins after this returns."""
        self._stop()


class _Loss:
    """Waits for the loss of a lock without a thread, and starts one for the call.

    At most one wakeup is under way at a time, so this needs no lock, which a fork might find taken.
    """

    def __init__(self, operation: _native.Operation, callback: Callable[[LostReason], object]) -> None:
        self._operation = operation
        self._callback: Callable[[LostReason], object] | None = callback

    def look(self) -> None:
        if self._callback is None or not self._operation.poll(self.look):
            return
        reason: str | None = self._operation.take()
        if reason is not None:
            lost = LostReason(reason)
            _threads.run_in_thread("forelock-lost", lambda: self._tell(lost))

    def _tell(self, reason: LostReason) -> None:
        callback = self._callback
        if callback is not None:
            _call(callback, reason)

    def stop(self) -> None:
        self._callback = None


def on_lost(operation: _native.Operation, callback: Callable[[LostReason], object]) -> Subscription:
    """Calls ``callback`` once if ``operation`` ends with a reason."""
    _threads.start_wakeups()
    loss = _Loss(operation, callback)
    loss.look()
    return Subscription(loss.stop)


def on_state(native: _native.States, callback: Callable[[StateChange], object]) -> Subscription:
    """Calls ``callback`` with every change, in order, until the stream ends."""
    states = States(native)

    def run() -> None:
        for change in states:
            _call(callback, change)

    _threads.run_in_thread("forelock-states", run)
    return Subscription(states.close)


def _call(callback: Callable[[_T], object], argument: _T) -> None:
    try:
        callback(argument)
    except Exception:
        _threads.logger.exception("a callback raised an exception: %r", callback)
