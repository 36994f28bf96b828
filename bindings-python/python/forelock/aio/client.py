"""The client, for asyncio."""

from __future__ import annotations

from types import TracebackType

from .._asyncio import finish
from ..client import BaseClient
from ..options import DEFAULT, Naming, Timeout
from .mutex import Mutex
from .states import States

__all__ = ["Client"]


class Client(BaseClient):
    """A client of a ZooKeeper ensemble, with one session, for asyncio.

    Share one between all tasks of a process; it is bound to no event loop. As an asynchronous context manager it
    closes the session at the end.
    """

    async def connect(self) -> None:
        """Connects, unless that is done, and waits until it is: at most for ``connection_timeout``.

        There is no need to call this: every operation connects if it has to, within its own deadline. Cancel
        safe. Raises :class:`ConnectionLost` naming what is wrong with each server, :class:`NotPermitted`,
        :class:`ClientClosed`, :class:`Forked`.
        """
        await finish(self._native.connect())

    async def close(self) -> None:
        """Closes the session. Every lock held in it is lost, and every acquire under way ends.

        Waits for the server's answer, but no longer than ``close_timeout``. Calling it again does no harm; in a
        forked child it does nothing, since the session is the parent's. Cancel safe: the closing goes on.
        """
        if not self._native.is_forked():
            await finish(self._native.close())

    def mutex(
        self,
        path: str,
        *,
        naming: Naming = "curator",
        acquire_timeout: Timeout = DEFAULT,
        max_hold: float | None = None,
    ) -> Mutex:
        """A mutex at ``path``, which is made canonical and lies below the namespace. Touches no server.

        The arguments are those of :meth:`forelock.Client.mutex`. Raises :class:`InvalidArgument`.
        """
        return Mutex(self._native_mutex(path, naming, acquire_timeout, max_hold))

    async def ensure_root(self, path: str) -> int:
        """Makes a lock's root ahead of time, with all above it, and returns its epoch (its czxid)."""
        epoch: int = await finish(self._native.ensure_root(path))
        return epoch

    def states(self) -> States:
        """The changes of the connection's state from now on, for ``async for``. Ends when the client is closed."""
        return States(self._native.states())

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
