"""What can go wrong. Every exception is a :class:`ForelockError`; its class says what to do about it."""

from __future__ import annotations

from typing import ClassVar

from .states import LostReason

__all__ = [
    "AcquireTimeout",
    "ClientClosed",
    "Conflict",
    "ConnectionLost",
    "ForelockError",
    "Forked",
    "InvalidArgument",
    "LeaseTooShort",
    "LockLost",
    "NotAcquired",
    "NotOwner",
    "NotPermitted",
    "OutOfResources",
]


class ForelockError(Exception):
    """The base of all. Raised as itself for what should not happen: please report its message."""

    code: ClassVar[str] = "INTERNAL"
    """The code, the same word in every language that Forelock speaks."""

    path: str | None
    """The path that the call was about, without the namespace."""
    holder: str | None
    """Who held the lock, as its node's data says."""
    waited: float | None
    """How long the call had waited, in seconds."""

    def __init__(
        self,
        message: str,
        path: str | None = None,
        holder: str | None = None,
        waited: float | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.holder = holder
        self.waited = waited


class InvalidArgument(ForelockError, ValueError):
    """An argument can't be right. Mend the call; trying again will not help."""

    code = "INVALID_ARGUMENT"


class AcquireTimeout(ForelockError, TimeoutError):
    """The deadline passed before the lock was free. Try again later, or allow more time."""

    code = "TIMED_OUT"


class NotAcquired(ForelockError):
    """The lock is held by somebody else, and the call was not to wait."""

    code = "NOT_ACQUIRED"


class LockLost(ForelockError):
    """The lock was held and is no longer.

    Stop the work that it guards, and leave its block or release its handle. Only then acquire again, for a new
    grant: until then each acquire of the same thread or task raises this at once.
    """

    code = "LOCK_LOST"

    reason: LostReason | None
    """Why it was lost; None if it was released."""

    def __init__(
        self,
        message: str,
        path: str | None = None,
        holder: str | None = None,
        waited: float | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message, path, holder, waited)
        self.reason = None if reason is None else LostReason(reason)


class LeaseTooShort(ForelockError):
    """The lock is held, but its lease is not known to last as long as was asked.

    Wait for the connection to come back before the next step, or do less in it.
    """

    code = "LEASE_TOO_SHORT"


class NotOwner(ForelockError):
    """The lock belongs to another thread or task, which alone may release it, or has to hand it over first."""

    code = "NOT_OWNER"


class ConnectionLost(ForelockError, ConnectionError):
    """ZooKeeper could not be reached, or did not answer. Try again."""

    code = "CONNECTION_LOST"


class NotPermitted(ForelockError, PermissionError):
    """ZooKeeper refuses our credentials, or an ACL forbids the operation. Mend the configuration."""

    code = "NOT_PERMITTED"


class Conflict(ForelockError):
    """The path is used in a way that does not go together with this call. Use another path or naming."""

    code = "CONFLICT"


class ClientClosed(ForelockError):
    """The client was closed. Make a new one."""

    code = "CLOSED"


class Forked(ForelockError):
    """The process was forked after the client had started.

    Make the client in the child and use none in the parent before the fork, or start the child afresh (spawn).
    """

    code = "FORKED"


class OutOfResources(ForelockError, OSError):
    """The process or the machine has no file descriptor or thread left. Allow more, or find what uses them up."""

    code = "OUT_OF_RESOURCES"
