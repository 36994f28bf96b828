"""The mutex, for asyncio."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from .. import _native, _owners
from .._asyncio import finish
from ..errors import InvalidArgument, LockLost, NotOwner
from ..options import CURRENT, DEFAULT, Owner, Timeout, timeout_arguments
from ._cancel import CancelOnLost
from .held import HeldLock

__all__ = ["Acquiring", "Mutex"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Acquiring(Coroutine[Any, Any, HeldLock]):
    """An acquire under way: to be awaited, or entered with ``async with``.

    It is a coroutine, so ``asyncio.create_task`` and ``asyncio.wait_for`` take it. The lock will belong to the
    task that made this object, whichever awaits it.
    """

    __slots__ = ("_cancel_on_lost", "_cancelling", "_coroutine", "_held", "_path")

    def __init__(self, path: str, coroutine: Coroutine[Any, Any, HeldLock], cancel_on_lost: bool) -> None:
        self._path = path
        self._coroutine = coroutine
        self._cancel_on_lost = cancel_on_lost
        self._cancelling: CancelOnLost | None = None
        self._held: HeldLock | None = None

    def __await__(self) -> Generator[Any, Any, HeldLock]:
        self._refuse_without_block()
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        self._refuse_without_block()
        return self._coroutine.send(value)

    def throw(self, *args: Any) -> Any:
        return self._coroutine.throw(*args)

    def close(self) -> None:
        self._coroutine.close()

    def _refuse_without_block(self) -> None:
        if self._cancel_on_lost:
            self._coroutine.close()
            raise InvalidArgument("cancel_on_lost needs a block to cancel: use `async with`", self._path)

    async def __aenter__(self) -> HeldLock:
        held = self._held = await self._coroutine
        if self._cancel_on_lost:
            self._cancelling = CancelOnLost(held._native.lost())
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Releases the lock. Raises :class:`LockLost` if it was lost, unless the body has failed by itself."""
        held, self._held = self._held, None
        if held is None:
            raise NotOwner("this block was not entered", self._path)
        if self._cancelling is not None:
            self._cancelling.stop()
            if self._cancelling.is_ours(error):
                # The cancellation is how we told the body; outside of the block it is a loss.
                await held.release()
                raise LockLost("the lock was lost", self._path, reason=held.lost_reason)
        await held.__aexit__(kind, error, traceback)


class Mutex:
    """A mutual-exclusion lock at one path. Made by :meth:`Client.mutex`; making one touches no server.

    It is an asynchronous context manager, and a decorator for coroutine functions::

        async with mutex as held:
            await write(data, token=held.token)

        @mutex
        async def job() -> None: ...

    A task that holds the lock may acquire it again at once, so a decorated coroutine that needs its token says
    ``async with mutex as held`` inside.
    """

    def __init__(self, native: _native.Mutex) -> None:
        self._native = native
        self._entered: dict[asyncio.Task[object] | None, list[Acquiring]] = {}

    @property
    def path(self) -> str:
        """The path of the lock, canonical and without the namespace."""
        return self._native.path()

    def acquire(
        self, timeout: Timeout = DEFAULT, *, owner: Owner = CURRENT, cancel_on_lost: bool = False
    ) -> Acquiring:
        """Waits for the lock: at most for ``timeout`` seconds, connecting and clean-up included; None for ever.

        Awaited, it gives the held lock; with ``async with`` it releases it too::

            held = await mutex.acquire()
            async with mutex.acquire(timeout=10, cancel_on_lost=True) as held: ...

        Waiters are served first come, first served. If this task holds the lock already, it gets another handle
        at once. Cancel safe: cancelling takes us out of the queue, in the background if need be.

        With ``cancel_on_lost`` the body of the block is cancelled when the lock is lost, and the block raises
        :class:`LockLost`; a cancellation by somebody else stays one.

        Raises :class:`AcquireTimeout` at the deadline; :class:`NotPermitted`, :class:`Conflict`,
        :class:`ConnectionLost`, :class:`ClientClosed`, :class:`Forked`; and :class:`LockLost` if this task holds
        the lock already and has lost it: leave the block that lost it, or release the lost handle, first.
        """
        operation = self._native.acquire(*timeout_arguments(timeout), _owners.of_task(owner), _task_name())
        return Acquiring(self.path, self._acquire(operation), cancel_on_lost)

    async def _acquire(self, operation: _native.Operation) -> HeldLock:
        native: _native.HeldLock = await finish(operation)
        return HeldLock(native)

    def try_acquire(self, *, owner: Owner = CURRENT) -> Coroutine[Any, Any, HeldLock | None]:
        """Acquires the lock if it is free; None if it is not. To be awaited. Takes one round trip when the path
        exists. Cancel safe.

        Raises :class:`ConnectionLost` if ZooKeeper could not be asked within the client's ``operation_timeout``;
        otherwise as :meth:`acquire`.
        """
        return self._try_acquire(self._native.try_acquire(_owners.of_task(owner), _task_name()))

    async def _try_acquire(self, operation: _native.Operation) -> HeldLock | None:
        native: _native.HeldLock | None = await finish(operation)
        return None if native is None else HeldLock(native)

    def locked(
        self, timeout: Timeout = DEFAULT, *, cancel_on_lost: bool = False
    ) -> Callable[[Callable[_P, Coroutine[Any, Any, _R]]], Callable[_P, Coroutine[Any, Any, _R]]]:
        """A decorator: the coroutine runs while the lock is held, for which each call waits ``timeout`` seconds."""

        def decorate(
            function: Callable[_P, Coroutine[Any, Any, _R]],
        ) -> Callable[_P, Coroutine[Any, Any, _R]]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"{function!r} is no coroutine function (use forelock.Client for others)")

            @functools.wraps(function)
            async def locked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
                async with self.acquire(timeout, cancel_on_lost=cancel_on_lost):
                    return await function(*args, **kwargs)

            return locked

        return decorate

    def __call__(self, function: Callable[_P, Coroutine[Any, Any, _R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
        return self.locked()(function)

    async def __aenter__(self) -> HeldLock:
        acquiring = self.acquire()
        held = await acquiring.__aenter__()
        self._entered.setdefault(asyncio.current_task(), []).append(acquiring)
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Releases the lock. Raises :class:`LockLost` if it was lost, unless the body has failed by itself."""
        task = asyncio.current_task()
        entered = self._entered.get(task)
        if not entered:
            raise NotOwner("this task is in no block of this mutex", self.path)
        acquiring = entered.pop()
        if not entered:
            del self._entered[task]
        await acquiring.__aexit__(kind, error, traceback)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.path}>"


def _task_name() -> str | None:
    task = _owners.current_task()
    return None if task is None else _owners.text(task.get_name())
