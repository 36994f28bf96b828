"""The two Python threads that speak for the engine, and what happens at fork and at exit.

The engine's own thread never takes the GIL. It leaves wakeups and log records in queues, and a daemon thread each
takes them out: so a slow log handler delays no wakeup. Both start with the first need and are joined at exit, so
that neither is running when the interpreter goes down.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from . import _native

logger = logging.getLogger("forelock")
logger.addHandler(logging.NullHandler())

EXIT_SECONDS = 1.0
"""The longest that closing all clients may take at exit. The engine waits for another 2 s if it has to."""

_not_while_forking = threading.RLock()
"""Held by the log thread while a record is on its way, and by a thread that forks.

Otherwise the child of a program with a single thread of its own could find the lock of a log file taken for good,
by a thread of ours that it does not have.
"""


class Closable(Protocol):
    """A client, as far as exit is concerned."""

    @property
    def _native(self) -> _native.Client: ...


def _run_wakeups() -> None:
    while (wakeups := _native.next_wakeups()) is not None:
        for wake in wakeups:
            try:
                wake()
            except Exception:
                logger.exception("a wakeup failed")
        # Not kept until the next one comes.
        del wakeups, wake


def _run_records() -> None:
    while (records := _native.next_records()) is not None:
        for level, message in records:
            with _not_while_forking:
                try:
                    logger.log(level, "%s", message)
                except Exception:
                    # `logging` has ways of its own to tell, so there is nobody left who wants to know.
                    continue
        sync_log_level()


class _Service:
    """A daemon thread that is started once in each process."""

    def __init__(self, name: str, run: Callable[[], None], stop: Callable[[], None]) -> None:
        self._name = name
        self._run = run
        self._stop = stop
        self.forget()

    def forget(self) -> None:
        """Forgets the thread, which a forked child does not have."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        self._stop()
        if self._thread is not None:
            self._thread.join(timeout=0.5)


_wakeups = _Service("forelock-wakeups", _run_wakeups, _native.stop_wakeups)
_records = _Service("forelock-log", _run_records, _native.stop_records)
_clients: weakref.WeakSet[Closable] = weakref.WeakSet()
_exiting = False
_finalized_in: int | None = None


def start_wakeups() -> None:
    """Makes sure that wakeups are delivered. Raises RuntimeError while the interpreter exits."""
    _wakeups.start()


def sync_log_level() -> None:
    """Tells the engine which records are wanted at all.

    Those from INFO on always come this far: they are few, and each is an occasion to find that the level has been
    changed since.
    """
    _native.set_log_level(min(logger.getEffectiveLevel(), logging.INFO))


def register(client: Closable) -> None:
    """Notes a client that is to be closed at exit."""
    _clients.add(client)
    sync_log_level()
    _records.start()
    _finalize_with_multiprocessing()


def run_in_thread(name: str, function: Callable[[], None]) -> None:
    """Runs ``function`` in a daemon thread of its own; not at all while the interpreter exits."""
    if _exiting:
        return
    try:
        threading.Thread(target=function, name=name, daemon=True).start()
    except RuntimeError:
        if not _exiting and not sys.is_finalizing():
            raise


def _finalize_with_multiprocessing() -> None:
    """A child of ``multiprocessing`` leaves by ``os._exit``, without atexit, but runs finalizers of its own."""
    global _finalized_in
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _finalized_in == os.getpid():
        return
    from multiprocessing import util

    _finalized_in = os.getpid()
    util.Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    """Closes the sessions of this process's open clients, within a bound. Leaves a parent's alone."""
    closing = [client._native.close() for client in list(_clients) if not client._native.is_forked()]
    _clients.clear()
    for operation in closing:
        operation.poll(_nothing)
    until = time.monotonic() + EXIT_SECONDS
    for operation in closing:
        if not operation.wait(max(0.0, until - time.monotonic())):
            operation.cancel()


def _nothing() -> None:
    pass


def _at_exit() -> None:
    global _exiting
    _exiting = True
    try:
        # The engine does so too when the process exits, but that of a Ctrl-C ends by the signal.
        _close_all()
    finally:
        _wakeups.stop()
        _records.stop()


_forking = False


def _before_fork() -> None:
    global _forking
    # A handler that hangs must not hang the fork too.
    _forking = _not_while_forking.acquire(timeout=1.0)


def _after_fork_in_parent() -> None:
    if _forking:
        _not_while_forking.release()


def _after_fork_in_child() -> None:
    global _not_while_forking
    _not_while_forking = threading.RLock()
    _wakeups.forget()
    _records.forget()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
