"""How the connection and a lock stand, and the stream of changes."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import _native

__all__ = ["ConnectionState", "LockState", "LostReason", "StateChange", "States"]


class _Word(str, enum.Enum):
    """An enum whose members are, and print as, their words."""

    def __str__(self) -> str:
        return str(self.value)


class ConnectionState(_Word):
    """The state of the connection, in Curator's words."""

    CONNECTED = "CONNECTED"
    """Connected for the first time."""
    SUSPENDED = "SUSPENDED"
    """The connection is down. The session may live on; locks are valid until their lease runs out."""
    RECONNECTED = "RECONNECTED"
    """Connected again, to the same session or to a new one."""
    LOST = "LOST"
    """The session can't be relied on any more. Every lock held in it is lost."""
    READ_ONLY = "READ_ONLY"
    """Connected to a server in read-only mode, which grants no locks and extends no lease."""

    @property
    def is_connected(self) -> bool:
        """Whether requests can be made."""
        return self in (ConnectionState.CONNECTED, ConnectionState.RECONNECTED, ConnectionState.READ_ONLY)


class LockState(_Word):
    """How a held lock stands."""

    HELD = "held"
    """Held, and the connection is up."""
    SUSPECT = "suspect"
    """Held, and the connection is down: good until the lease runs out."""
    LOST = "lost"
    """Lost. It never comes back to life."""
    RELEASED = "released"
    """Given back."""


class LostReason(_Word):
    """Why a held lock was lost."""

    SESSION_EXPIRED = "session_expired"
    """The server said that the session had expired."""
    LEASE_ELAPSED = "lease_elapsed"
    """The session could not be shown to be alive in time."""
    NODE_DELETED = "node_deleted"
    """The lock's node was deleted from outside."""
    ROOT_RECREATED = "root_recreated"
    """The lock's root was deleted and made again."""
    REVOKED = "revoked"
    """Somebody asked for the lock back, and deleted the node after a grace period."""
    SUPERSEDED = "superseded"
    """Storage has seen a larger token."""
    MAX_HOLD = "max_hold"
    """The lock was held for longer than its ``max_hold``."""
    CLOSED = "closed"
    """The client was closed."""
    FORKED = "forked"
    """The process was forked, and this is the child."""
    INTERNAL = "internal"
    """The engine failed to watch over the lock. Please report it."""


@dataclass(frozen=True)
class StateChange:
    """One change of the connection's state."""

    state: ConnectionState
    """The new state."""
    session: int
    """The id of the session that it is about."""
    same_session: bool
    """For RECONNECTED, whether the session is the one from before."""


def change_of(change: tuple[str, int, bool]) -> StateChange:
    state, session, same_session = change
    return StateChange(ConnectionState(state), session, same_session)


class States(Iterator[StateChange]):
    """The changes of the connection's state from the moment it was asked for: every one, in order.

    A reader that is slow holds nobody up. Ends when the client, or the stream itself, is closed.
    """

    __slots__ = ("_native",)

    def __init__(self, native: _native.States) -> None:
        self._native = native

    def __next__(self) -> StateChange:
        """Waits for the next change. Ctrl-C is answered, and loses no change that has not been returned."""
        change: tuple[str, int, bool] | None = self._native.next().result()
        if change is None:
            raise StopIteration
        return change_of(change)

    def close(self) -> None:
        """Ends the stream, for whoever waits in it too. May be called from any thread."""
        self._native.close()
