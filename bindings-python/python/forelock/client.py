"""The client: one session with ZooKeeper, and the locks made from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from . import _native, _subscriptions, _threads
from ._owners import text
from ._subscriptions import Subscription
from .mutex import Mutex
from .options import (
    DEFAULT,
    AclEntry,
    Naming,
    RetryPolicy,
    SaslDigestMd5,
    Timeout,
    TlsConfig,
    timeout_arguments,
)
from .states import StateChange, States, change_of

__all__ = ["Client", "Metrics", "SessionInfo"]


@dataclass(frozen=True)
class SessionInfo:
    """What the present or the last session is like. All times are seconds."""

    id: int
    """The session's id."""
    asked_timeout: float
    """The session timeout that was asked for."""
    timeout: float
    """The session timeout that the server granted."""
    tick: float
    """The server tick that the lease clock reckons with."""
    margin: float
    """What is taken off the lease for safety."""
    survivable_outage: float
    """The longest outage that costs nothing."""
    warnings: tuple[str, ...]
    """What is wrong with the settings, in sentences for people."""


@dataclass(frozen=True)
class Metrics:
    """The counts of a client at one moment. Only the gauges go down."""

    acquires: int
    """Acquires begun, try-acquires among them, re-entrant ones not."""
    grants: int
    """Locks granted."""
    timeouts: int
    """Acquires that ended at their deadline."""
    releases: int
    """Locks released by their holder while they were held."""
    losses: int
    """Locks lost."""
    suspended: int
    """How often the connection was suspended."""
    sessions_lost: int
    """Sessions lost."""
    roots_recreated: int
    """How often a lock root was found to have been deleted and made again."""
    ids_went_backwards: int
    """How often the ensemble's transaction ids, and with them the tokens, were found to have gone backwards."""
    cleanup_pending: int
    """A gauge: nodes that are no longer wanted and whose removal is not confirmed yet."""
    ghosts: int
    """A gauge: creates of unknown outcome that were not found, and are looked for again, as they may yet apply."""


class BaseClient:
    """What a client is in threads and in asyncio alike."""

    def __init__(
        self,
        servers: str,
        *,
        session_timeout: float = 30.0,
        connection_timeout: float = 15.0,
        acquire_timeout: float | None = 30.0,
        operation_timeout: float = 15.0,
        release_timeout: float = 5.0,
        close_timeout: float = 5.0,
        retry: RetryPolicy = RetryPolicy.exponential(),  # noqa: B008  (it is frozen)
        namespace: str = "/",
        create_chroot: bool = False,
        tick: float | None = None,
        heartbeat: Literal["session", "quorum"] = "session",
        allow_read_only: bool = False,
        acl: Literal["open", "creator"] | Sequence[AclEntry] | None = None,
        container_parents: bool = False,
        label: str | None = None,
        program: str | None = None,
        auth: Sequence[tuple[str, str | bytes]] = (),
        tls: TlsConfig | None = None,
        sasl: SaslDigestMd5 | None = None,
    ) -> None:
        """Nothing is connected until the first use. All times are seconds.

        Arguments:
            servers: A connect string, such as ``"zk1:2181,zk2:2181/services"``.
            session_timeout: The session timeout to ask for; what was granted is in :attr:`session`.
            connection_timeout: The longest that one attempt to connect may take.
            acquire_timeout: How long an acquire waits unless told otherwise; None for ever.
            operation_timeout: The longest that an operation with no deadline of its own may take.
            release_timeout: The longest that a release waits for its confirmation.
            close_timeout: The longest that closing waits for the server.
            retry: When to retry what can be retried.
            namespace: The path that every path lies below. It is made if it does not exist.
            create_chroot: Whether the chroot of the connect string (``/services`` above) is made if it does not
                exist. Otherwise a lock below a chroot that is missing is :class:`InvalidArgument`: with a typing
                error in it, this client would be apart from all others.
            tick: The servers' ``tickTime``, if it is known. Reckoned with as 3 s otherwise.
            heartbeat: ``"quorum"`` proves the session to a quorum each time. It writes to the servers'
                transaction log, and closes the window in which a deposed leader answers ``"session"``.
            allow_read_only: Whether a server in read-only mode will do while no other can be reached. It grants
                no locks.
            acl: Who may do what with the nodes that are made: ``"open"``, ``"creator"`` (all may read, only the
                creator's identity may write) or a list. ``"creator"`` once credentials are given, unless said.
            container_parents: Whether missing parents are made as container nodes.
            label: Free text that goes into the data of every lock node, to tell who holds it.
            program: The program's name, for the same purpose. That of the script unless given.
            auth: Credentials as pairs of scheme and secret, such as ``("digest", "user:password")``.
            tls: TLS to the servers.
            sasl: SASL DIGEST-MD5 authentication.

        Raises :class:`InvalidArgument` for what can't be right, and TypeError for values of another type.
        """
        self._native: _native.Client = _native.Client(
            servers,
            {
                "session_timeout": session_timeout,
                "connection_timeout": connection_timeout,
                "acquire_timeout": acquire_timeout,
                "operation_timeout": operation_timeout,
                "release_timeout": release_timeout,
                "close_timeout": close_timeout,
                "retry": retry,
                "namespace": namespace,
                "create_chroot": create_chroot,
                "tick": tick,
                "heartbeat": heartbeat,
                "allow_read_only": allow_read_only,
                "acl": acl,
                "container_parents": container_parents,
                "label": label,
                "program": program if program is not None else _program(),
                "auth": auth,
                "tls": tls,
                "sasl": sasl,
            },
        )
        _threads.register(self)

    @property
    def session(self) -> SessionInfo | None:
        """What the present or the last session is like, warnings included; None before the first."""
        session = self._native.session()
        if session is None:
            return None
        id, asked_timeout, timeout, tick, margin, survivable_outage, warnings = session
        return SessionInfo(id, asked_timeout, timeout, tick, margin, survivable_outage, tuple(warnings))

    @property
    def state(self) -> StateChange | None:
        """The last change of the connection's state; None before the first connection."""
        change = self._native.state()
        return None if change is None else change_of(change)

    @property
    def is_closed(self) -> bool:
        """Whether the client was closed."""
        return self._native.is_closed()

    @property
    def namespace(self) -> str:
        """The path that every path lies below."""
        return self._native.namespace()

    def metrics(self) -> Metrics:
        """The counts so far."""
        return Metrics(**self._native.metrics())

    def on_state(self, callback: Callable[[StateChange], object]) -> Subscription:
        """Calls ``callback`` with every change of the connection's state from now on, in order.

        Each callback has a thread of its own: a slow one holds nobody up, and it may call the client. What it
        raises is logged.
        """
        return _subscriptions.on_state(self._native.states(), callback)

    def _native_mutex(
        self, path: str, naming: Naming, acquire_timeout: Timeout, max_hold: float | None
    ) -> _native.Mutex:
        return self._native.mutex(path, naming, *timeout_arguments(acquire_timeout), max_hold)

    def __repr__(self) -> str:
        name = f"{type(self).__module__}.{type(self).__name__}"
        if self._native.is_forked():
            return f"<{name} forked>"
        state = "closed" if self.is_closed else getattr(self.state, "state", "not connected yet")
        return f"<{name} {state}>"


class Client(BaseClient):
    """A client of a ZooKeeper ensemble, with one session, for threads. For asyncio see :mod:`forelock.aio`.

    Share one between all threads of a process. As a context manager it closes the session at the end::

        with forelock.Client("zk1:2181,zk2:2181,zk3:2181") as client:
            with client.mutex("/locks/order/123").acquire(timeout=10) as held:
                write(data, token=held.token)
    """

    def connect(self) -> None:
        """Connects, unless that is done, and waits until it is: at most for ``connection_timeout``.

        There is no need to call this: every operation connects if it has to, within its own deadline. Raises
        :class:`ConnectionLost` naming what is wrong with each server, :class:`NotPermitted`,
        :class:`ClientClosed`, :class:`Forked`.
        """
        self._native.connect().result()

    def close(self) -> None:
        """Closes the session. Every lock held in it is lost, and every acquire under way ends.

        Waits for the server's answer, but no longer than ``close_timeout``. Calling it again does no harm; in a
        forked child it does nothing, since the session is the parent's.
        """
        if not self._native.is_forked():
            self._native.close().result()

    def mutex(
        self,
        path: str,
        *,
        naming: Naming = "curator",
        acquire_timeout: Timeout = DEFAULT,
        max_hold: float | None = None,
    ) -> Mutex:
        """A mutex at ``path``, which is made canonical and lies below the namespace. Touches no server.

        Arguments:
            path: An absolute path. For what users name, see :func:`forelock.lock_path`.
            naming: How lock nodes are named, and so whom the mutex excludes besides Forelock.
            acquire_timeout: How many seconds an acquire waits unless told otherwise; None for ever.
            max_hold: The longest that the lock may be held, in seconds: then it is given up, and the holder told.

        Raises :class:`InvalidArgument`.
        """
        return Mutex(self._native_mutex(path, naming, acquire_timeout, max_hold))

    def ensure_root(self, path: str) -> int:
        """Makes a lock's root ahead of time, with all above it, and returns its epoch (its czxid)."""
        epoch: int = self._native.ensure_root(path).result()
        return epoch

    def states(self) -> States:
        """The changes of the connection's state from now on, to iterate over. Ends when the client is closed, and
        after 100,000 that were left unread."""
        return States(self._native.states())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _program() -> str:
    """The name of the running script or module, for the data of lock nodes."""
    argv = getattr(sys, "argv", None) or [""]
    path = argv[0].removesuffix("__main__.py").rstrip(os.sep)
    name = os.path.basename(path)
    return text(name) if name not in ("", "-c", "-m") else "python"
