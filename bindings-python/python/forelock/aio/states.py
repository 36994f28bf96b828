"""The stream of connection states, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator

from .. import _native
from .._asyncio import finish
from ..states import StateChange, change_of

__all__ = ["States"]


class States(AsyncIterator[StateChange]):
    """The changes of the connection's state from the moment it was asked for: every one, in order.

    A reader that is slow holds nobody up. Ends when the client, or the stream itself, is closed.
    """

    __slots__ = ("_native",)

    def __init__(self, native: _native.States) -> None:
        self._native = native

    async def __anext__(self) -> StateChange:
        """Waits for the next change. Cancel safe."""
        change: tuple[str, int, bool] | None = await finish(self._native.next())
        if change is None:
            raise StopAsyncIteration
        return change_of(change)

    def close(self) -> None:
        """Ends the stream, for whoever waits in it too. May be called from any thread."""
        self._native.close()
