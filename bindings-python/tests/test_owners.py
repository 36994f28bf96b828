"""Re-entrance, and who may release."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import forelock
import pytest
from forelock import aio
from support.observer import Observer


def in_thread(function):  # type: ignore[no-untyped-def]
    """What a function returns or raises in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=60)


def test_a_thread_that_holds_the_lock_gets_it_again_at_once(
    client: forelock.Client, observer: Observer, path: str
) -> None:
    mutex = client.mutex(path)
    with mutex as outer:
        with mutex as inner, client.mutex(path).acquire(timeout=0.1) as third:
            assert inner.token == outer.token == third.token
        assert not inner.is_valid()
        assert outer.is_valid()
        assert len(observer.children(path)) == 1
    assert observer.children(path) == []


def test_another_thread_waits_and_may_not_release(client: forelock.Client, path: str) -> None:
    held = client.mutex(path).acquire()
    assert in_thread(client.mutex(path).try_acquire) is None
    with pytest.raises(forelock.NotOwner, match="MainThread"):
        in_thread(held.release)
    assert held.is_valid()
    held.release()


def test_a_thread_with_the_number_of_a_dead_one_is_a_stranger(client: forelock.Client, path: str) -> None:
    held = in_thread(client.mutex(path).acquire)
    for _ in range(20):
        thread_result: list[object] = []

        def attempt(thread_result: list[object] = thread_result) -> None:
            try:
                held.release()
            except forelock.NotOwner as error:
                thread_result.append(error)

        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
        assert len(thread_result) == 1
    held.release(owner=held.owner)


def test_a_lock_is_handed_over(client: forelock.Client, path: str) -> None:
    held = client.mutex(path).acquire()
    ready, keys = threading.Event(), []

    def receive() -> None:
        keys.append(forelock.current_owner())
        ready.set()
        handed.wait(60)
        with client.mutex(path).acquire(timeout=0.2) as again:
            assert again.token == held.token
        held.release()

    handed = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(receive)
        ready.wait(60)
        held.hand_over(keys[0])
        assert held.owner == keys[0]
        with pytest.raises(forelock.NotOwner):
            held.release()
        handed.set()
        receiving.result(timeout=60)
    assert not held.is_valid()
    with pytest.raises(forelock.LockLost):
        held.hand_over(None)


def test_without_an_owner_anyone_may_release_and_nobody_gets_it_again(client: forelock.Client, path: str) -> None:
    mutex = client.mutex(path)
    held = mutex.acquire(owner=None)
    assert held.owner is None
    assert mutex.try_acquire(owner=None) is None
    in_thread(held.release)
    assert not held.is_valid()


def test_a_key_of_ones_own(client: forelock.Client, path: str) -> None:
    mutex = client.mutex(path)
    held = mutex.acquire(owner="job 7")
    again = in_thread(lambda: mutex.acquire(timeout=0.2, owner="job 7"))
    assert again.token == held.token
    again.release(owner="job 7")
    with pytest.raises(forelock.NotOwner):
        held.release(owner="job 8")
    held.release(owner="job 7")


def test_blocks_of_one_mutex_object_in_many_threads(client: forelock.Client, path: str) -> None:
    mutex = client.mutex(path)
    inside = 0

    def work(_: int) -> None:
        nonlocal inside
        with mutex, mutex:
            inside += 1
            assert inside == 1
            inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(20)))


async def test_a_task_that_holds_the_lock_gets_it_again_at_once(
    aclient: aio.Client, observer: Observer, path: str
) -> None:
    mutex = aclient.mutex(path)
    async with mutex as outer:
        async with mutex as inner, mutex.acquire(timeout=0.1) as third:
            assert inner.token == outer.token == third.token
        assert outer.is_valid()
    assert observer.children(path) == []


async def test_another_task_waits_and_may_not_release(aclient: aio.Client, path: str) -> None:
    mutex = aclient.mutex(path)
    held = await mutex.acquire()

    async def stranger() -> None:
        assert await mutex.try_acquire() is None
        with pytest.raises(forelock.NotOwner):
            await held.release()

    await asyncio.create_task(stranger())
    assert held.is_valid()
    await held.release()


async def test_the_lock_belongs_to_the_task_that_calls_whichever_awaits(aclient: aio.Client, path: str) -> None:
    mutex = aclient.mutex(path)
    held = await asyncio.wait_for(mutex.acquire(), 60)
    again = await asyncio.create_task(mutex.acquire(timeout=1))
    assert again.token == held.token
    third = await asyncio.wait_for(mutex.try_acquire(), 60)
    assert third is not None
    await asyncio.wait_for(third.release(), 60)
    await asyncio.shield(again.release())
    await held.release()
    assert not held.is_valid()


async def test_a_task_at_the_address_of_a_dead_one_is_a_stranger(aclient: aio.Client, path: str) -> None:
    mutex = aclient.mutex(path)
    held = await asyncio.create_task(acquire_in(mutex))
    for _ in range(50):
        gc.collect()
        assert await asyncio.create_task(refused(held))
    await held.release(owner=held.owner)


async def acquire_in(mutex: aio.Mutex) -> aio.HeldLock:
    return await mutex.acquire()


async def refused(held: aio.HeldLock) -> bool:
    try:
        await held.release()
    except forelock.NotOwner:
        return True
    return False


async def test_a_lock_is_handed_to_another_task(aclient: aio.Client, path: str) -> None:
    held = await aclient.mutex(path).acquire()

    async def receive() -> None:
        held.hand_over(forelock.current_owner())
        await held.release()

    await asyncio.create_task(receive())
    assert not held.is_valid()


async def test_tasks_of_one_mutex_object_keep_their_blocks_apart(aclient: aio.Client, path: str) -> None:
    mutex = aclient.mutex(path)
    inside = 0

    async def work() -> None:
        nonlocal inside
        async with mutex, mutex:
            inside += 1
            await asyncio.sleep(0)
            assert inside == 1
            inside -= 1

    await asyncio.gather(*(work() for _ in range(20)))
    assert not mutex._entered
