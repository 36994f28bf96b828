"""Connection states."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable

import forelock
from forelock import ConnectionState, StateChange, aio
from support.lateness import Limited
from support.testkit import Proxy

MakeClient = Callable[..., forelock.Client]
MakeAClient = Callable[..., aio.Client]


def test_a_listener_sees_every_state_in_order(make_client: MakeClient, proxy: Proxy) -> None:
    """Fault 29: LOST once, before RECONNECTED to a new session."""
    client = make_client(proxy.connect)
    changes: queue.Queue[StateChange] = queue.Queue()
    client.on_state(changes.put)
    client.connect()
    first = changes.get(timeout=60)
    assert first.state is ConnectionState.CONNECTED
    assert first == client.state
    assert client.session is not None
    assert first.session == client.session.id
    proxy.do("cut", "rst")
    assert changes.get(timeout=60).state is ConnectionState.SUSPENDED
    again = changes.get(timeout=60)
    assert (again.state, again.same_session, again.session) == (
        ConnectionState.RECONNECTED,
        True,
        first.session,
    )
    proxy.do("stall")
    assert changes.get(timeout=60).state is ConnectionState.SUSPENDED
    assert changes.get(timeout=60) == StateChange(ConnectionState.LOST, first.session, True)
    proxy.do("restore")
    new = changes.get(timeout=60)
    assert (new.state, new.same_session) == (ConnectionState.RECONNECTED, False)
    assert new.session != first.session


def test_states_can_be_iterated_over_and_end_with_the_client(make_client: MakeClient) -> None:
    client = make_client()
    states = client.states()
    client.connect()
    assert next(states).state is ConnectionState.CONNECTED
    client.close()
    rest = [change.state for change in states]
    assert ConnectionState.CONNECTED not in rest
    assert list(client.states()) == []


def test_a_stream_can_be_closed_while_a_thread_waits_in_it(client: forelock.Client) -> None:
    client.connect()
    states = client.states()
    waiting = threading.Thread(target=list, args=(states,))
    waiting.start()
    states.close()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_slow_listener_blocks_neither_the_others_nor_close(make_client: MakeClient, path: str) -> None:
    """Fault 31."""
    client = make_client()
    go_on = threading.Event()
    seen: queue.Queue[StateChange] = queue.Queue()
    client.on_state(lambda _: go_on.wait(60))
    client.on_state(seen.put)
    client.connect()
    assert seen.get(timeout=60).state is ConnectionState.CONNECTED
    with client.mutex(path).acquire(timeout=60):
        pass
    with Limited() as limit:
        client.close()
        limit.is_within(2.0)
    go_on.set()


def test_the_client_may_be_called_from_a_listener(make_client: MakeClient, path: str) -> None:
    """Fault 30."""
    client = make_client()
    results: queue.Queue[object] = queue.Queue()

    def listener(_: StateChange) -> None:
        with client.mutex(path).acquire(timeout=60) as held:
            held.verify()
            results.put(held.token)
        client.on_state(results.put)
        client.close()
        results.put("closed")

    subscription = client.on_state(listener)
    client.connect()
    assert isinstance(results.get(timeout=60), int)
    assert results.get(timeout=60) is not None
    subscription.cancel()


def test_a_listener_may_be_taken_back_and_may_fail(
    make_client: MakeClient, proxy: Proxy, complaints: queue.Queue[logging.LogRecord]
) -> None:
    client = make_client(proxy.connect)
    taken_back: list[StateChange] = []
    told: queue.Queue[StateChange] = queue.Queue()

    def fail(change: StateChange) -> None:
        told.put(change)
        raise RuntimeError("on purpose")

    client.on_state(taken_back.append).cancel()
    client.on_state(fail)
    client.connect()
    told.get(timeout=60)
    proxy.do("cut", "eof")
    assert told.get(timeout=60).state is ConnectionState.SUSPENDED
    assert taken_back == []
    assert "on purpose" in str(complaints.get(timeout=60).exc_info)


async def test_asyncio_states(make_aclient: MakeAClient, proxy: Proxy) -> None:
    client = make_aclient(proxy.connect)
    states = client.states()
    told: asyncio.Queue[StateChange] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    client.on_state(lambda change: loop.call_soon_threadsafe(told.put_nowait, change) and None)
    await client.connect()
    assert (await anext(states)).state is ConnectionState.CONNECTED
    assert (await told.get()).state is ConnectionState.CONNECTED
    proxy.do("cut", "rst")
    seen = []
    async for change in states:
        seen.append(change.state)
        if change.state is ConnectionState.RECONNECTED:
            states.close()
    assert seen == [ConnectionState.SUSPENDED, ConnectionState.RECONNECTED]
    waiting = asyncio.create_task(_all(client.states()))
    await asyncio.sleep(0)
    await client.close()
    await asyncio.wait_for(waiting, 60)


async def _all(states: aio.States) -> list[StateChange]:
    return [change async for change in states]


def test_the_words_are_the_engines() -> None:
    from forelock import _native

    assert [state.value for state in ConnectionState] == _native.connection_states()
    assert [reason.value for reason in forelock.LostReason] == [word for word, _ in _native.lost_reasons()]
    assert str(ConnectionState.READ_ONLY) == "READ_ONLY"
    assert f"{forelock.LostReason.LEASE_ELAPSED}" == "lease_elapsed"
    assert ConnectionState.READ_ONLY.is_connected
    assert not ConnectionState.LOST.is_connected
