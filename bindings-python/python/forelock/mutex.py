"""The mutex, for threads."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from . import _native, _owners
from .errors import ForelockError, NotOwner
from .held import HeldLock
from .options import CURRENT, DEFAULT, Owner, Timeout, timeout_arguments

__all__ = ["Mutex"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Block(NamedTuple):
    """A block of `with mutex`, and the one around it."""

    held: HeldLock
    outer: _Block | None


class _Entered(threading.local):
    """The innermost block that this thread is in."""

    block: _Block | None = None


class Mutex:
    """A mutual-exclusion lock at one path. Made by :meth:`Client.mutex`; making one touches no server.

    It is a context manager, and a decorator for functions; objects may be shared between threads::

        with mutex as held:
            write(data, token=held.token)

        @mutex
        def job() -> None: ...

    A thread that holds the lock may acquire it again at once, so a decorated function that needs its token says
    ``with mutex as held`` inside.
    """

    def __init__(self, native: _native.Mutex) -> None:
        self._native = native
        self._entered = _Entered()

    @property
    def path(self) -> str:
        """The path of the lock, canonical and without the namespace."""
        return self._native.path()

    def acquire(self, timeout: Timeout = DEFAULT, *, owner: Owner = CURRENT) -> HeldLock:
        """Waits for the lock: at most for ``timeout`` seconds, connecting and clean-up included; None for ever.

        Waiters are served first come, first served. Other threads run meanwhile. Ctrl-C, in the main thread,
        takes us out of the queue. If this thread holds the lock already, it gets another handle at once.

        Raises :class:`AcquireTimeout` at the deadline; :class:`NotPermitted`, :class:`Conflict`,
        :class:`ConnectionLost`, :class:`ClientClosed`, :class:`Forked`; and :class:`LockLost` if this thread
        holds the lock already and has lost it: leave the block that lost it, or release the lost handle, first.
        """
        key = _owners.of_thread(owner)
        thread = _owners.text(threading.current_thread().name)
        native: _native.HeldLock = self._native.acquire(*timeout_arguments(timeout), key, thread).result()
        return HeldLock(native)

    def try_acquire(self, *, owner: Owner = CURRENT) -> HeldLock | None:
        """Acquires the lock if it is free; None if it is not. Takes one round trip when the path exists.

        Raises :class:`ConnectionLost` if ZooKeeper could not be asked within the client's ``operation_timeout``;
        otherwise as :meth:`acquire`.
        """
        key = _owners.of_thread(owner)
        operation = self._native.try_acquire(key, _owners.text(threading.current_thread().name))
        native: _native.HeldLock | None = operation.result()
        return None if native is None else HeldLock(native)

    def locked(self, timeout: Timeout = DEFAULT) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """A decorator: the function runs while the lock is held, for which each call waits ``timeout`` seconds."""

        def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
            for test, kind in _NOT_FOR_THREADS:
                if test(function):
                    raise TypeError(f"{function!r} is {kind}: its body would run after the lock is released")

            @functools.wraps(function)
            def locked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
                with self.acquire(timeout):
                    return function(*args, **kwargs)

            return locked

        return decorate

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        return self.locked()(function)

    def __enter__(self) -> HeldLock:
        held = self.acquire()
        block = _Block(held, self._entered.block)
        # Nothing is called between here and the block, so no signal handler can come in between and lose it.
        self._entered.block = block
        return held

    def _exit(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Releases the lock. Raises :class:`LockLost` if it was lost, unless the body has failed by itself."""
        block = self._entered.block
        if block is None:
            raise NotOwner("this thread is in no block of this mutex", self.path)
        try:
            block.held.__exit__(kind, error, traceback)
        except ForelockError:
            self._entered.block = block.outer
            raise
        # Only now, and without a call in between: when a signal cuts this off before, it is run again.
        self._entered.block = block.outer

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...
    else:
        __exit__ = _native.Uninterrupted(_exit)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.path}>"


_NOT_FOR_THREADS: tuple[tuple[Callable[[object], bool], str], ...] = (
    (inspect.iscoroutinefunction, "a coroutine function (use forelock.aio for those)"),
    (inspect.isasyncgenfunction, "an async generator function"),
    (inspect.isgeneratorfunction, "a generator function"),
)
