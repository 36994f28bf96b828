"""The engine's futures in asyncio.

An operation is polled on the loop's own thread. When there may be more, the engine's waker wakes the loop by
``call_soon_threadsafe``. So a result is never in the air: until the task takes it, it is in the operation, and
cancelling that gives it up; a lock that was granted at that moment is released.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from . import _native, _threads


async def finish(operation: _native.Operation) -> Any:
    """Waits for an operation; what it returns or raises. Cancelling the task cancels the operation."""
    _threads.start_wakeups()
    loop = asyncio.get_running_loop()
    try:
        while True:
            woken: asyncio.Future[None] = loop.create_future()
            if operation.poll(partial(wake, loop, woken)):
                return operation.take()
            await woken
    except BaseException:
        operation.cancel()
        raise


def wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    """Resolves a future of a loop, from any thread; does nothing once the loop is closed."""
    try:
        loop.call_soon_threadsafe(_resolve, woken)
    except RuntimeError:
        # The loop is closed: nobody waits any more.
        if not loop.is_closed():
            raise


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
