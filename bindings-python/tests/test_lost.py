"""Being told of a loss."""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable

import forelock
import pytest
from conftest import SESSION
from forelock import LostReason, aio
from support.observer import Observer
from support.testkit import Proxy

MakeClient = Callable[..., forelock.Client]
MakeAClient = Callable[..., aio.Client]


class Told:
    """A callback that can be waited for."""

    def __init__(self) -> None:
        self.reasons: list[LostReason] = []
        self.threads: list[threading.Thread] = []
        self._called = threading.Event()

    def __call__(self, reason: LostReason) -> None:
        self.reasons.append(reason)
        self.threads.append(threading.current_thread())
        self._called.set()

    def wait(self) -> LostReason:
        assert self._called.wait(60)
        return self.reasons[0]


def test_an_operator_deletes_the_node_and_every_way_of_being_told_tells(
    client: forelock.Client, observer: Observer, path: str
) -> None:
    """Fault 4."""
    held = client.mutex(path).acquire()
    told, second = Told(), Told()
    held.on_lost(told)
    held.on_lost(second)
    observer.delete(f"{path}/{held.node}")
    assert held.wait_lost(timeout=60) is LostReason.NODE_DELETED
    assert told.wait() is second.wait() is LostReason.NODE_DELETED
    assert told.threads[0] not in (threading.main_thread(), second.threads[0])
    assert (held.state, held.lost_reason) == (forelock.LockState.LOST, LostReason.NODE_DELETED)
    assert not held.is_valid()
    late = Told()
    held.on_lost(late)
    assert late.wait() is LostReason.NODE_DELETED
    with pytest.raises(forelock.LockLost) as error:
        held.release()
    assert error.value.reason is LostReason.NODE_DELETED
    assert told.reasons == [LostReason.NODE_DELETED]


def test_a_partition_is_told_before_the_next_one_is_granted(
    make_client: MakeClient, proxy: Proxy, observer: Observer, path: str
) -> None:
    """Fault 1."""
    held = make_client(proxy.connect).mutex(path).acquire()
    when: list[float] = []
    told = threading.Event()

    def note(_: LostReason) -> None:
        when.append(time.monotonic())
        told.set()

    held.on_lost(note)
    proxy.do("stall")
    with make_client().mutex(path).acquire(timeout=3 * SESSION) as granted:
        now = time.monotonic()
        assert told.is_set()
        assert when[0] < now
        assert granted.token > held.token
    assert held.lost_reason is LostReason.LEASE_ELAPSED
    with pytest.raises(forelock.LockLost):
        held.release()
    proxy.do("restore")


def test_a_clean_release_tells_nobody_and_ends_the_waiting(client: forelock.Client, path: str) -> None:
    told = Told()
    held = client.mutex(path).acquire()
    held.on_lost(told)
    answers: list[LostReason | None] = []
    waiting = threading.Thread(target=lambda: answers.append(held.wait_lost()))
    waiting.start()
    held.release()
    waiting.join(60)
    assert answers == [None]
    assert held.wait_lost(timeout=0) is None
    # What comes after the release on the same threads has come, and nothing before it.
    with client.mutex(path) as later:
        after = Told()
        later.on_lost(after)
        later.mark_superseded()
        after.wait()
        assert told.reasons == []
        with pytest.raises(forelock.LockLost):
            later.release()
        later.mark_superseded()


def test_waiting_for_a_loss_can_be_given_up(client: forelock.Client, path: str) -> None:
    with client.mutex(path) as held:
        with pytest.raises(TimeoutError):
            held.wait_lost(timeout=0.05)
        with pytest.raises(TimeoutError):
            held.wait_revocation_asked(timeout=0.05)


def test_a_callback_may_be_taken_back_and_may_fail_and_may_be_slow(
    client: forelock.Client, path: str, complaints: queue.Queue[logging.LogRecord]
) -> None:
    """Fault 31."""
    held = client.mutex(path).acquire()
    taken_back, told, go_on = Told(), Told(), threading.Event()

    def fail(_: LostReason) -> None:
        raise RuntimeError("on purpose")

    held.on_lost(taken_back).cancel()
    held.on_lost(lambda _: go_on.wait(60))
    held.on_lost(fail)
    held.on_lost(told)
    held.mark_superseded()
    assert told.wait() is LostReason.SUPERSEDED
    record = complaints.get(timeout=60)
    assert "on purpose" in str(record.exc_info)
    go_on.set()
    assert taken_back.reasons == []
    with pytest.raises(forelock.LockLost):
        held.release()


def test_the_client_may_be_called_from_a_callback(client: forelock.Client, path: str, observer: Observer) -> None:
    """Fault 30."""
    held = client.mutex(path).acquire()
    tokens: list[int] = []
    done = threading.Event()

    def acquire_again(_: LostReason) -> None:
        with client.mutex(path).acquire(timeout=60) as again:
            tokens.append(again.token)
        done.set()

    held.on_lost(acquire_again)
    observer.delete(f"{path}/{held.node}")
    assert done.wait(60)
    assert tokens[0] > held.token
    with pytest.raises(forelock.LockLost):
        held.release()


def test_a_registered_callback_does_not_keep_a_dropped_lock(
    client: forelock.Client, observer: Observer, path: str
) -> None:
    told = Told()
    with pytest.warns(ResourceWarning):
        client.mutex(path).acquire().on_lost(told)
    observer.wait_count(path, 0)
    assert told.reasons == []


def lose(held: forelock.HeldLock | aio.HeldLock) -> None:
    held.mark_superseded()


def test_leaving_a_block_while_lost_is_an_error(client: forelock.Client, path: str) -> None:
    mutex = client.mutex(path)
    with pytest.raises(forelock.LockLost) as error, mutex.acquire() as held:
        lose(held)
    assert (error.value.reason, error.value.path) == (LostReason.SUPERSEDED, path)
    with pytest.raises(forelock.LockLost), mutex as held:
        lose(held)

    @mutex
    def body() -> None:
        with mutex as held:
            lose(held)

    with pytest.raises(forelock.LockLost):
        body()


def test_the_error_of_the_body_wins_and_ours_is_attached(client: forelock.Client, path: str) -> None:
    """Fault 38."""
    with pytest.raises(KeyError) as error, client.mutex(path).acquire() as held:
        lose(held)
        raise KeyError("the body's")
    check_attached(error.value)
    with pytest.raises(KeyError) as error, client.mutex(path) as held:
        try:
            raise ValueError("first")
        except ValueError:
            lose(held)
            raise KeyError("the body's") from None
    assert isinstance(error.value.__context__, ValueError)
    check_attached(error.value)


def check_attached(error: BaseException) -> None:
    last = error
    while last.__context__ is not None:
        last = last.__context__
    assert isinstance(last, forelock.LockLost)
    if sys.version_info >= (3, 11):
        assert "superseded" in error.__notes__[0]


async def test_asyncio_every_way_of_being_told_tells(aclient: aio.Client, observer: Observer, path: str) -> None:
    held = await aclient.mutex(path).acquire()
    told = Told()
    held.on_lost(told)
    waiting = asyncio.create_task(held.wait_lost())
    await asyncio.sleep(0)
    observer.delete(f"{path}/{held.node}")
    assert await asyncio.wait_for(waiting, 60) is LostReason.NODE_DELETED
    assert await asyncio.to_thread(told.wait) is LostReason.NODE_DELETED
    assert await held.wait_lost() is LostReason.NODE_DELETED
    with pytest.raises(forelock.LockLost):
        await held.verify()
    with pytest.raises(forelock.LockLost):
        await held.release()


async def test_asyncio_a_clean_release_ends_the_waiting(aclient: aio.Client, path: str) -> None:
    held = await aclient.mutex(path).acquire()
    await held.verify()
    waiting = asyncio.create_task(held.wait_lost())
    await asyncio.sleep(0)
    await held.release()
    assert await asyncio.wait_for(waiting, 60) is None


async def test_asyncio_leaving_a_block_while_lost_is_an_error(aclient: aio.Client, path: str) -> None:
    mutex = aclient.mutex(path)
    with pytest.raises(forelock.LockLost):
        async with mutex.acquire() as held:
            lose(held)
    with pytest.raises(forelock.LockLost):
        async with mutex as held:
            lose(held)
    with pytest.raises(KeyError) as error:
        async with mutex as held:
            lose(held)
            raise KeyError("the body's")
    check_attached(error.value)


async def test_cancel_on_lost_cancels_the_body_and_raises_lock_lost(
    aclient: aio.Client, observer: Observer, path: str
) -> None:
    seen: list[BaseException] = []
    with pytest.raises(forelock.LockLost) as error:
        async with aclient.mutex(path).acquire(cancel_on_lost=True) as held:
            observer.delete(f"{path}/{held.node}")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError as cancelled:
                seen.append(cancelled)
                raise
    assert len(seen) == 1
    assert error.value.reason is LostReason.NODE_DELETED
    # The task is as before: nothing of the cancellation is left in it.
    task = asyncio.current_task()
    assert task is not None
    if sys.version_info >= (3, 11):
        assert task.cancelling() == 0
    await asyncio.sleep(0.01)
    async with aclient.mutex(path).acquire(timeout=60):
        pass


async def test_cancel_on_lost_in_a_decorated_coroutine(aclient: aio.Client, path: str) -> None:
    mutex = aclient.mutex(path)

    @mutex.locked(cancel_on_lost=True)
    async def body() -> None:
        async with mutex as held:
            asyncio.get_running_loop().call_soon(lose, held)
            await asyncio.sleep(60)

    with pytest.raises(forelock.LockLost):
        await asyncio.wait_for(body(), 60)


async def test_cancel_on_lost_does_not_swallow_a_cancellation_by_others(aclient: aio.Client, path: str) -> None:
    entered = asyncio.Event()

    async def body() -> None:
        async with aclient.mutex(path).acquire(cancel_on_lost=True):
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(body())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


@pytest.mark.parametrize("order", ["lost first", "cancelled first"])
async def test_cancel_on_lost_and_a_cancellation_by_others_at_once(
    aclient: aio.Client, path: str, order: str
) -> None:
    locks: list[aio.HeldLock] = []
    entered = asyncio.Event()

    async def body() -> None:
        async with aclient.mutex(path).acquire(cancel_on_lost=True) as held:
            locks.append(held)
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(body())
    await entered.wait()
    if order == "lost first":
        lose(locks[0])
        # The loss is on its way to this loop; the cancellation comes in the same turn at the latest.
        task.cancel("by others")
    else:
        task.cancel("by others")
        lose(locks[0])
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_cancel_on_lost_in_nested_blocks_of_one_session(make_aclient: MakeAClient, path: str) -> None:
    client = make_aclient()
    entered = asyncio.Event()

    async def body() -> None:
        async with client.mutex(f"{path}/a").acquire(cancel_on_lost=True):
            async with client.mutex(f"{path}/b").acquire(cancel_on_lost=True):
                entered.set()
                await asyncio.sleep(60)

    task = asyncio.create_task(body())
    await entered.wait()
    await client.close()
    with pytest.raises(forelock.LockLost) as error:
        await task
    assert error.value.reason is LostReason.CLOSED


async def test_cancel_on_lost_does_not_fire_after_the_block_was_left(aclient: aio.Client, path: str) -> None:
    async with aclient.mutex(path).acquire(cancel_on_lost=True) as outer:
        async with aclient.mutex(path).acquire(cancel_on_lost=True) as inner:
            assert inner.token == outer.token
    # Left while the wakeup of a loss was on its way, again and again.
    for _ in range(50):
        with pytest.raises(forelock.LockLost):
            async with aclient.mutex(path).acquire(timeout=10, cancel_on_lost=True) as held:
                lose(held)
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)


async def test_cancel_on_lost_with_an_error_of_the_body(aclient: aio.Client, path: str) -> None:
    with pytest.raises(KeyError) as error:
        async with aclient.mutex(path).acquire(cancel_on_lost=True) as held:
            lose(held)
            try:
                await asyncio.sleep(60)
            finally:
                raise KeyError("the body's")
    last = error.value.__context__
    while last is not None and last.__context__ is not None:
        last = last.__context__
    assert isinstance(last, forelock.LockLost)


async def test_cancel_on_lost_with_a_body_that_takes_no_notice(aclient: aio.Client, path: str) -> None:
    with pytest.raises(forelock.LockLost):
        async with aclient.mutex(path).acquire(cancel_on_lost=True) as held:
            lose(held)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass
    await asyncio.sleep(0.01)


async def test_cancel_on_lost_when_the_body_has_released(aclient: aio.Client, path: str) -> None:
    async with aclient.mutex(path).acquire(cancel_on_lost=True) as held:
        await held.release()
        await asyncio.sleep(0.05)
    with pytest.raises(forelock.LockLost):
        async with aclient.mutex(path).acquire(cancel_on_lost=True) as held:
            lose(held)
            with pytest.raises(forelock.LockLost):
                await held.release()
            await asyncio.sleep(60)


async def test_cancel_on_lost_needs_a_block(aclient: aio.Client, path: str) -> None:
    with pytest.raises(forelock.InvalidArgument):
        await aclient.mutex(path).acquire(cancel_on_lost=True)
