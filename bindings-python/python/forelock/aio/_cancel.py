"""Cancelling a block's task when its lock is lost."""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from .. import _native
from .._asyncio import wake


class CancelOnLost:
    """Cancels the current task once when the lock is lost, until it is stopped.

    What it knows it learns on the loop's thread, so once stopped it never cancels. A cancellation by somebody
    else is told from ours by the task's count of cancel requests, as ``asyncio.timeout`` does it; before Python
    3.11, by the message of the CancelledError.
    """

    def __init__(self, lost: _native.Operation) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("cancel_on_lost needs a task to cancel")
        self._task: asyncio.Task[object] = task
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._requests_before = _requests(task)
        self._stopped = False
        self._message: str | None = None
        self._look()

    def _look(self, _: object = None) -> None:
        if self._stopped:
            return
        woken: asyncio.Future[None] = self._loop.create_future()
        if not self._lost.poll(partial(wake, self._loop, woken)):
            woken.add_done_callback(self._look)
            return
        reason: str | None = self._lost.take()
        if reason is not None and not (sys.version_info < (3, 11) and _is_being_cancelled(self._task)):
            self._message = f"forelock: the lock was lost: {reason} ({id(self):x})"
            self._task.cancel(self._message)

    def stop(self) -> None:
        """Cancels nothing from now on."""
        self._stopped = True
        self._lost.cancel()

    def is_ours(self, error: BaseException | None) -> bool:
        """Takes our request to cancel back, if there was one. Whether `error` comes from it alone."""
        if self._message is None:
            return False
        if sys.version_info >= (3, 11):
            alone = self._task.uncancel() <= self._requests_before
        else:
            alone = error is not None and error.args == (self._message,)
        return alone and isinstance(error, asyncio.CancelledError)


def _requests(task: asyncio.Task[object]) -> int:
    return task.cancelling() if sys.version_info >= (3, 11) else 0


def _is_being_cancelled(task: asyncio.Task[object]) -> bool:
    """Whether somebody has cancelled the task already and it has not noticed yet. For Python 3.10 alone."""
    waiter = getattr(task, "_fut_waiter", None)
    return bool(getattr(task, "_must_cancel", False)) or (waiter is not None and waiter.cancelled())
