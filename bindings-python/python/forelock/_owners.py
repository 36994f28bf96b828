"""Who acquires: keys for threads and tasks that are never used twice.

``threading.get_ident`` and ``id`` are no good for this: both are handed out again after a thread or a task has
ended, and a stranger could then release the lock.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref

from .options import CURRENT, Default, Owner

_numbers = itertools.count(1)


def text(name: str) -> str:
    """A name that can be encoded: lone surrogates, as from a file name of another encoding, are replaced."""
    return name.encode("utf-8", "replace").decode("utf-8")


class _PerThread(threading.local):
    def __init__(self) -> None:
        # Runs once in each thread.
        self.key = text(f"thread {threading.current_thread().name}#{next(_numbers)}")
        # A task runs in one thread only, so this needs no lock.
        self.tasks: weakref.WeakKeyDictionary[asyncio.Task[object], str] = weakref.WeakKeyDictionary()


_here = _PerThread()


def of_thread(owner: Owner) -> str | None:
    """The key of the current thread, unless an owner is given."""
    return _here.key if isinstance(owner, Default) else owner


def of_task(owner: Owner) -> str | None:
    """The key of the current task, unless an owner is given; none outside of a task."""
    if not isinstance(owner, Default):
        return owner
    task = current_task()
    if task is None:
        return None
    key = _here.tasks.get(task)
    if key is None:
        key = _here.tasks[task] = text(f"task {task.get_name()}#{next(_numbers)}")
    return key


def current_task() -> asyncio.Task[object] | None:
    """The current task, or none where no event loop runs."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def current_owner() -> str:
    """The key of the current asyncio task, or else of the current thread: for :meth:`HeldLock.hand_over`."""
    return of_task(CURRENT) or _here.key
