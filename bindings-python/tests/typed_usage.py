"""Uses the whole API, for the type checkers. Never run."""

from __future__ import annotations

import asyncio
from typing import assert_type  # Python 3.11 and later, which the checkers are told to assume.

import forelock
from forelock import (
    AclEntry,
    ConnectionState,
    LockState,
    LostReason,
    RetryPolicy,
    SaslDigestMd5,
    StateChange,
    Subscription,
    TlsConfig,
    aio,
)


def in_threads() -> None:
    with forelock.Client(
        "zk1:2181",
        session_timeout=10,
        connection_timeout=5.0,
        acquire_timeout=None,
        operation_timeout=3,
        release_timeout=1,
        close_timeout=1,
        retry=RetryPolicy.times(3, delay=0.1),
        namespace="/a",
        tick=2.0,
        heartbeat="quorum",
        allow_read_only=True,
        acl=[AclEntry("world", "anyone", "r")],
        container_parents=True,
        label="label",
        program="program",
        auth=[("digest", "user:password"), ("digest", b"bytes")],
        tls=TlsConfig.from_files("ca.pem", "certificate.pem", "key.pem", verify_host=False),
        sasl=SaslDigestMd5("user", "password"),
    ) as client:
        assert_type(client, forelock.Client)
        client.connect()
        assert_type(client.ensure_root("/locks"), int)
        assert_type(client.metrics().cleanup_pending, int)
        assert_type(client.is_closed, bool)
        assert_type(client.namespace, str)
        assert_type(client.state, StateChange | None)
        session = client.session
        if session is not None:
            assert_type(session.warnings, tuple[str, ...])
            assert_type(session.survivable_outage, float)
        subscription = client.on_state(lambda change: print(change.state, change.session, change.same_session))
        assert_type(subscription, Subscription)
        subscription.cancel()
        for change in client.states():
            assert_type(change.state, ConnectionState)
            assert_type(change.state.is_connected, bool)

        mutex = client.mutex("/locks/a", naming="kazoo", acquire_timeout=forelock.DEFAULT, max_hold=60)
        assert_type(mutex.path, str)
        with mutex.acquire(timeout=10) as held:
            assert_type(held, forelock.HeldLock)
            assert_type(held.token, int)
            assert_type(held.epoch, int)
            assert_type(held.sequence, int)
            assert_type(held.path, str)
            assert_type(held.node, str)
            assert_type(held.waited, float)
            assert_type(held.is_valid(), bool)
            assert_type(held.remaining(), float)
            assert_type(held.state, LockState)
            assert_type(held.lost_reason, LostReason | None)
            assert_type(held.owner, str | None)
            held.ensure()
            held.ensure(2.5)
            held.verify()
            held.mark_superseded()
            assert_type(held.is_revocation_asked(), bool)
            held.wait_revocation_asked(timeout=1)
            assert_type(held.wait_lost(), LostReason | None)
            assert_type(held.wait_lost(timeout=1), LostReason | None)
            held.on_lost(lambda reason: print(reason.value)).cancel()
            held.hand_over(forelock.current_owner())
            held.release(owner=forelock.CURRENT)
            held.release(owner=None)
        with mutex as held:
            assert_type(held, forelock.HeldLock)
        assert_type(mutex.acquire(None, owner="job"), forelock.HeldLock)
        assert_type(mutex.try_acquire(), forelock.HeldLock | None)

        @mutex
        def plain(number: int, *, word: str = "") -> str:
            return word * number

        @mutex.locked(timeout=5)
        def with_timeout(number: int) -> str:
            return str(number)

        assert_type(plain(2, word="a"), str)
        assert_type(with_timeout(2), str)
        client.close()

    try:
        mutex.acquire(timeout=forelock.DEFAULT)
    except forelock.AcquireTimeout as error:
        as_timeout: TimeoutError = error
        print(as_timeout)
        assert_type(error.code, str)
        assert_type(error.holder, str | None)
        assert_type(error.waited, float | None)
        assert_type(error.path, str | None)
    except forelock.LockLost as error:
        assert_type(error.reason, LostReason | None)
    except (
        forelock.ClientClosed,
        forelock.Conflict,
        forelock.ConnectionLost,
        forelock.Forked,
        forelock.InvalidArgument,
        forelock.LeaseTooShort,
        forelock.NotAcquired,
        forelock.NotOwner,
        forelock.NotPermitted,
        forelock.OutOfResources,
    ) as error:
        base: forelock.ForelockError = error
        print(base)
    assert_type(forelock.lock_path("order", "123"), str)


async def in_asyncio() -> None:
    async with aio.Client("zk1:2181", heartbeat="session", retry=RetryPolicy.none()) as client:
        assert_type(client, aio.Client)
        await client.connect()
        assert_type(await client.ensure_root("/locks"), int)
        async for change in client.states():
            assert_type(change, StateChange)
        mutex = client.mutex("/locks/a", naming="epoch")
        held = await mutex.acquire()
        assert_type(held, aio.HeldLock)
        assert_type(await asyncio.wait_for(mutex.acquire(), 1), aio.HeldLock)
        task = asyncio.create_task(mutex.acquire(None, owner="job"))
        assert_type(await task, aio.HeldLock)
        assert_type(await mutex.try_acquire(), aio.HeldLock | None)
        async with mutex.acquire(timeout=10, cancel_on_lost=True) as held:
            assert_type(held.token, int)
            await held.verify()
            assert_type(await held.wait_lost(), LostReason | None)
            await held.wait_revocation_asked()
            await held.release(owner=None)
        async with mutex as held:
            assert_type(held, aio.HeldLock)
        async with held:
            pass

        @mutex
        async def plain(number: int) -> str:
            return str(number)

        @mutex.locked(5, cancel_on_lost=True)
        async def with_timeout(number: int, *, word: str) -> int:
            return number * len(word)

        assert_type(await plain(2), str)
        assert_type(await with_timeout(2, word="a"), int)
        await client.close()
