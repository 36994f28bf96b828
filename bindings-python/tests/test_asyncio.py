"""The mutex, for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable

import forelock
import pytest
from forelock import aio
from support.lateness import Limited
from support.observer import Observer
from support.testkit import Proxy

MakeAClient = Callable[..., aio.Client]


async def test_acquire_is_awaitable_and_a_context_manager(
    aclient: aio.Client, observer: Observer, path: str
) -> None:
    mutex = aclient.mutex(path)
    held = await mutex.acquire(timeout=60)
    assert observer.children(path) == [held.node]
    assert held.is_valid()
    await held.release()
    async with mutex.acquire(timeout=60) as held:
        assert observer.children(path) == [held.node]
    async with mutex as held:
        assert observer.children(path) == [held.node]
    async with held:
        pass
    held = await mutex.acquire()
    async with held:
        assert held.is_valid()
    assert observer.children(path) == []


async def test_an_acquire_is_a_coroutine(aclient: aio.Client, path: str) -> None:
    acquiring = aclient.mutex(path).acquire()
    assert inspect.isawaitable(acquiring)
    assert asyncio.iscoroutine(acquiring)
    held = await asyncio.create_task(acquiring)
    await held.release()


async def test_an_acquire_that_nobody_awaits_is_complained_about(
    aclient: aio.Client, observer: Observer, path: str
) -> None:
    with pytest.warns(RuntimeWarning, match="never awaited"):
        aclient.mutex(path).acquire()
    assert observer.children(path) == []


async def test_only_one_task_holds_it_at_a_time_in_the_order_of_asking(
    make_aclient: MakeAClient, path: str
) -> None:
    clients = [make_aclient() for _ in range(3)]
    inside = 0
    tokens: list[int] = []

    async def work(number: int) -> None:
        nonlocal inside
        async with clients[number % 3].mutex(path) as held:
            inside += 1
            await asyncio.sleep(0)
            assert inside == 1
            tokens.append(held.token)
            inside -= 1

    for _ in range(5):
        await asyncio.gather(*(work(number) for number in range(12)))
    assert tokens == sorted(tokens)


async def test_try_acquire(aclient: aio.Client, arival: aio.Client, observer: Observer, path: str) -> None:
    held = await aclient.mutex(path).try_acquire()
    assert held is not None
    assert await arival.mutex(path).try_acquire() is None
    await asyncio.to_thread(observer.wait_count, path, 1)
    await held.release()


async def test_a_decorated_coroutine_runs_under_the_lock(
    aclient: aio.Client, observer: Observer, path: str
) -> None:
    mutex = aclient.mutex(path)

    @mutex
    async def plain(word: str) -> str:
        assert len(observer.children(path)) == 1
        return word * 2

    @mutex.locked(timeout=5)
    async def with_token() -> int:
        async with mutex as held:
            return held.token

    assert await plain("ab") == "abab"
    assert await with_token() > 0
    assert observer.children(path) == []
    with pytest.raises(TypeError):
        mutex(lambda: None)  # type: ignore[arg-type,return-value]


async def test_a_timeout_leaves_no_node(
    aclient: aio.Client, arival: aio.Client, observer: Observer, path: str
) -> None:
    async with aclient.mutex(path):
        with Limited() as limit:
            with pytest.raises(forelock.AcquireTimeout):
                await arival.mutex(path).acquire(timeout=0.2)
            limit.is_within(0.45, least=0.2)
        await asyncio.to_thread(observer.wait_count, path, 1)


async def test_wait_for_leaves_no_node(
    aclient: aio.Client, arival: aio.Client, observer: Observer, path: str
) -> None:
    """Fault 14."""
    async with aclient.mutex(path):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(arival.mutex(path).acquire(), 0.2)
        await asyncio.to_thread(observer.wait_count, path, 1)


async def test_cancelling_at_any_moment_leaves_no_node(
    make_aclient: MakeAClient, proxy: Proxy, observer: Observer, path: str
) -> None:
    """Fault 14: on a slow connection, from before the create to after the grant."""
    client = make_aclient(proxy.connect, session_timeout=4.0)
    await client.ensure_root(path)
    proxy.do("delay-ms", 3)
    cancelled = granted = 0
    for step in range(60):
        task = asyncio.create_task(_acquire(client.mutex(path)))
        if step % 3 == 0:
            # So many turns of the loop, without waiting for anything.
            for _ in range(step // 3):
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(step * 0.0004)
        task.cancel()
        try:
            held = await task
        except asyncio.CancelledError:
            cancelled += 1
        else:
            granted += 1
            await held.release(owner=held.owner)
    await asyncio.to_thread(observer.wait_count, path, 0)
    assert cancelled > 0
    async with client.mutex(path).acquire(timeout=60):
        pass


async def _acquire(mutex: aio.Mutex) -> aio.HeldLock:
    # As a plain coroutine, which starts when its task does.
    return await mutex.acquire()


async def test_cancelling_while_waiting_leaves_no_node(
    aclient: aio.Client, arival: aio.Client, observer: Observer, path: str
) -> None:
    """Fault 14, at each place of a queue."""
    async with aclient.mutex(path):
        tasks = [asyncio.create_task(_acquire(arival.mutex(path))) for _ in range(6)]
        await asyncio.to_thread(observer.wait_count, path, 7)
        for task in (tasks[0], tasks[3], tasks[5]):
            task.cancel()
        await asyncio.to_thread(observer.wait_count, path, 4)
        for task in (tasks[1], tasks[2], tasks[4]):
            task.cancel()
        await asyncio.to_thread(observer.wait_count, path, 1)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)


async def test_a_grant_that_meets_a_cancellation_is_released(
    aclient: aio.Client, arival: aio.Client, observer: Observer, path: str
) -> None:
    """Fault 14: the lock is granted while the loop is busy, and the task cancelled before it can take it."""
    for _ in range(20):
        held = await aclient.mutex(path).acquire()
        task = asyncio.create_task(_acquire(arival.mutex(path)))
        await asyncio.to_thread(observer.wait_count, path, 2)
        grants = arival.metrics().grants
        releasing = asyncio.create_task(held.release(owner=held.owner))
        await asyncio.sleep(0)
        # Blocks the loop until the grant has been made.
        ours = held.node
        observer.wait_children(path, lambda names, ours=ours: ours not in names)
        until = time.monotonic() + 60
        while arival.metrics().grants == grants:
            assert time.monotonic() < until
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await releasing
        await asyncio.to_thread(observer.wait_count, path, 0)


async def test_release_and_verify_may_be_cancelled(
    make_aclient: MakeAClient, proxy: Proxy, observer: Observer, path: str
) -> None:
    client = make_aclient(proxy.connect)
    held = await client.mutex(path).acquire()
    hold = proxy.rule("hold-request", "multi")
    verifying = asyncio.create_task(held.verify())
    await asyncio.to_thread(proxy.fired, hold)
    verifying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await verifying
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(held.release(), 0.1)
    assert not held.is_valid()
    proxy.do("resume")
    await asyncio.to_thread(observer.wait_count, path, 0)


async def test_a_blocked_loop_costs_nothing(make_aclient: MakeAClient, path: str) -> None:
    """Fault 43."""
    client = make_aclient(session_timeout=2.0)
    async with client.mutex(path) as held:
        threading.Event().wait(6.0)
        assert held.is_valid()
        await held.verify()


async def test_close_ends_waits(
    aclient: aio.Client, make_aclient: MakeAClient, observer: Observer, path: str
) -> None:
    client = make_aclient()
    async with aclient.mutex(path):
        waiting = asyncio.create_task(_acquire(client.mutex(path)))
        await asyncio.to_thread(observer.wait_count, path, 2)
        await client.close()
        await client.close()
        with pytest.raises(forelock.ClientClosed):
            await waiting
    with pytest.raises(forelock.ClientClosed):
        await client.connect()
    assert client.is_closed


async def test_ensure_root_and_connect(aclient: aio.Client, observer: Observer, path: str) -> None:
    await aclient.connect()
    assert await aclient.ensure_root(path) == observer.czxid(path)


def test_a_client_may_be_used_in_one_loop_after_another(
    make_client: Callable[..., forelock.Client], server: object, observer: Observer, path: str
) -> None:
    client = aio.Client(server.connect, session_timeout=4.0)  # type: ignore[attr-defined]

    async def use() -> int:
        async with client.mutex(path) as held:
            return held.token

    tokens = [asyncio.run(use()) for _ in range(5)]
    assert tokens == sorted(tokens)
    asyncio.run(client.close())


def test_what_completes_after_its_loop_has_closed_is_silent(
    client: forelock.Client, server: object, observer: Observer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 37."""
    aclient = aio.Client(server.connect, session_timeout=4.0)  # type: ignore[attr-defined]
    held = client.mutex(path).acquire()
    loop = asyncio.new_event_loop()
    # The loop ends in the middle, with nobody there to cancel anything.
    steps = [aclient.mutex(path).acquire(None).__await__()]

    async def begin() -> None:
        steps[0].send(None)

    loop.run_until_complete(begin())
    observer.wait_count(path, 2)
    loop.close()
    held.release()
    # The grant finds its loop closed. The coroutine still has it, until it goes.
    until = time.monotonic() + 60
    while aclient.metrics().grants == 0:
        assert time.monotonic() < until
    steps.pop().close()
    observer.wait_count(path, 0)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    asyncio.run(aclient.close())
