"""The held lock: one grant, from the acquire to its release or loss."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from . import _native, _owners, _subscriptions
from ._subscriptions import Subscription
from .errors import ForelockError
from .options import CURRENT, Owner
from .states import LockState, LostReason

__all__ = ["HeldLock", "Subscription"]


class Held:
    """What a held lock says of itself without asking anybody, in threads and in asyncio alike."""

    __slots__ = ("__weakref__", "_native")

    def __init__(self, native: _native.HeldLock) -> None:
        self._native = native

    @property
    def token(self) -> int:
        """The fencing token: a number that grows with every grant of the lock.

        Give it to whatever the lock guards, and let that refuse what is *smaller* than the largest it has seen.
        """
        return self._native.token()

    @property
    def epoch(self) -> int:
        """The czxid of the lock's root: changes when the root is deleted and made again."""
        return self._native.epoch()

    @property
    def sequence(self) -> int:
        """The number that the server gave to the lock's node. With epoch and token it never repeats."""
        return self._native.sequence()

    @property
    def path(self) -> str:
        """The path of the lock, without the namespace."""
        return self._native.path()

    @property
    def node(self) -> str:
        """The name of the lock's node below its path."""
        return self._native.node()

    @property
    def waited(self) -> float:
        """How long the acquire waited, in seconds."""
        return self._native.waited()

    @property
    def state(self) -> LockState:
        """How the lock stands at this moment."""
        return LockState(self._native.state()[0])

    @property
    def lost_reason(self) -> LostReason | None:
        """Why the lock was lost; None if it was not."""
        reason = self._native.state()[1]
        return None if reason is None else LostReason(reason)

    @property
    def owner(self) -> str | None:
        """Who may release the lock; None if anyone who has this object may."""
        return self._native.owner()

    def is_valid(self) -> bool:
        """Whether the lock is still held, as far as anyone can know without asking: reads the clock, no more.

        The first call after the process was stopped, or the machine suspended, gives the right answer. While the
        connection is down it stays true until the lease runs out; once false, it is false for ever.
        """
        return self._native.is_valid()

    def remaining(self) -> float:
        """How many seconds the lock is good for if nothing more is heard from ZooKeeper; 0.0 once it is not."""
        return self._native.remaining()

    def ensure(self, min: float = 0.0) -> None:
        """Makes sure that the lock is good for at least ``min`` seconds from now on, by the clock alone.

        Raises :class:`LockLost` if it is no longer held, and :class:`LeaseTooShort` if it is, but not for so long
        unless the connection comes back.
        """
        self._native.ensure(min)

    def is_revocation_asked(self) -> bool:
        """Whether somebody asks for the lock back. Finish and release it, or it will be taken away."""
        return self._native.is_revocation_asked()

    def mark_superseded(self) -> None:
        """Says that storage has refused the token as smaller than one it has seen: the lock is lost to us."""
        self._native.mark_superseded()

    def on_lost(self, callback: Callable[[LostReason], object]) -> Subscription:
        """Calls ``callback`` once when the lock is lost, with the reason; never after a clean release.

        It is called on a thread of its own, so it may take its time and may call the client; if the lock is lost
        already, at once. What it raises is logged.
        """
        return _subscriptions.on_lost(self._native.lost(), callback)

    def hand_over(self, owner: str | None) -> None:
        """Hands the lock over to another owner, who alone may release it from now on.

        ``owner`` is a key as given by :func:`forelock.current_owner`, or one of yours; with None, anyone who has
        this object may release it. Raises :class:`LockLost` if it is no longer held.
        """
        self._native.hand_over(owner)

    def __repr__(self) -> str:
        state, reason = self._native.state()
        shown = state if reason is None else f"{state}: {reason}"
        return f"<{type(self).__module__}.{type(self).__name__} {self.path} token={self.token} {shown}>"


class HeldLock(Held):
    """A lock that was granted to this thread, and a context manager that releases it.

    Re-entrant acquires give further objects on the same grant; the last one to go frees the lock. Dropping one
    releases it in the background, with a ResourceWarning; :meth:`release` does so and says whether it was lost.
    """

    __slots__ = ()

    def verify(self) -> None:
        """Asks ZooKeeper whether the lock is still ours: one round trip, which only a quorum can answer.

        Raises :class:`LockLost` if it is not, and :class:`ConnectionLost` if nobody could be asked within the
        client's ``operation_timeout``, which says nothing either way.
        """
        self._native.verify().result()

    def wait_lost(self, timeout: float | None = None) -> LostReason | None:
        """Waits until the lock is lost, and returns why; None once it was released.

        Raises TimeoutError if neither happens within ``timeout`` seconds; None waits for ever.
        """
        operation = self._native.lost()
        if not operation.wait(timeout):
            raise TimeoutError(f"{self.path}: neither lost nor released within {timeout} s")
        reason: str | None = operation.take()
        return None if reason is None else LostReason(reason)

    def wait_revocation_asked(self, timeout: float | None = None) -> None:
        """Waits until somebody asks for the lock back.

        Raises TimeoutError if nobody does within ``timeout`` seconds; None waits for ever.
        """
        if not self._native.revocation_asked().wait(timeout):
            raise TimeoutError(f"{self.path}: nobody asked for it back within {timeout} s")

    def release(self, *, owner: Owner = CURRENT) -> None:
        """Releases the lock, or this object's share of it if there are others.

        The lock is released locally at once. Then this waits until the server has confirmed it, but no longer
        than the client's ``release_timeout``; what is not done by then goes on in the background, as it does when
        this is interrupted. A second call does nothing.

        Raises :class:`LockLost` if it was lost before, so that what was done under it may have met another
        holder, and :class:`NotOwner`, leaving it held, for any thread but the one that acquired it.
        """
        self._native.release(_owners.of_thread(owner)).result()

    def __enter__(self) -> HeldLock:
        return self

    def _exit(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Releases the lock. Raises :class:`LockLost` if it was lost, unless the body has failed by itself."""
        try:
            self.release()
        except ForelockError as ours:
            if error is None:
                raise
            attach(ours, error)

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...
    else:
        __exit__ = _native.Uninterrupted(_exit)


def attach(ours: ForelockError, error: BaseException) -> None:
    """Attaches our error to that of a block's body, which wins: as a note, and at the end of its context."""
    if hasattr(error, "add_note"):
        error.add_note(f"while leaving the block, forelock: {ours}")
    seen = {id(error), id(ours)}
    last = error
    while last.__context__ is not None:
        last = last.__context__
        if id(last) in seen:
            return
        seen.add(id(last))
    ours.__context__ = None
    last.__context__ = ours
