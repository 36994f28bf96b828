"""The held lock, for asyncio."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any

from .. import _owners
from .._asyncio import finish
from ..errors import ForelockError
from ..held import Held, attach
from ..options import CURRENT, Owner
from ..states import LostReason

__all__ = ["HeldLock"]


class HeldLock(Held):
    """A lock that was granted to this task, and an asynchronous context manager that releases it.

    Re-entrant acquires give further objects on the same grant; the last one to go frees the lock. Dropping one
    releases it in the background, with a ResourceWarning; :meth:`release` does so and says whether it was lost.
    """

    __slots__ = ()

    async def verify(self) -> None:
        """Asks ZooKeeper whether the lock is still ours: one round trip, which only a quorum can answer.

        Raises :class:`LockLost` if it is not, and :class:`ConnectionLost` if nobody could be asked within the
        client's ``operation_timeout``, which says nothing either way. Cancel safe.
        """
        await finish(self._native.verify())

    async def wait_lost(self) -> LostReason | None:
        """Waits until the lock is lost, and returns why; None once it was released. Cancel safe."""
        reason: str | None = await finish(self._native.lost())
        return None if reason is None else LostReason(reason)

    async def wait_revocation_asked(self) -> None:
        """Waits until somebody asks for the lock back, for ever if nobody does. Cancel safe."""
        await finish(self._native.revocation_asked())

    def release(self, *, owner: Owner = CURRENT) -> Coroutine[Any, Any, None]:
        """Releases the lock, or this object's share of it if there are others. To be awaited.

        The lock is released locally at once. Then this waits until the server has confirmed it, but no longer
        than the client's ``release_timeout``; what is not done by then goes on in the background, as it does when
        this is cancelled. A second call does nothing.

        The releasing task is the one that calls, whichever awaits: so ``wait_for(held.release(), 1)`` will do.

        Raises :class:`LockLost` if it was lost before, so that what was done under it may have met another
        holder, and :class:`NotOwner`, leaving it held, for any task but the one that acquired it.
        """
        return finish(self._native.release(_owners.of_task(owner)))

    async def __aenter__(self) -> HeldLock:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Releases the lock. Raises :class:`LockLost` if it was lost, unless the body has failed by itself."""
        try:
            await self.release()
        except ForelockError as ours:
            if error is None:
                raise
            attach(ours, error)
