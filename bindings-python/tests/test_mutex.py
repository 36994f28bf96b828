"""The mutex, for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import forelock
import pytest
from support.lateness import Limited
from support.observer import Observer
from support.testkit import Proxy, Server

MakeClient = Callable[..., forelock.Client]


def test_acquire_gives_a_lock_that_release_frees(client: forelock.Client, observer: Observer, path: str) -> None:
    held = client.mutex(path).acquire(timeout=60)
    assert held.is_valid()
    assert held.state is forelock.LockState.HELD
    assert held.path == path
    assert observer.children(path) == [held.node]
    assert held.token == observer.czxid(f"{path}/{held.node}")
    assert held.epoch == observer.czxid(path)
    assert held.sequence == int(held.node[-10:])
    assert held.waited >= 0.0
    held.release()
    assert not held.is_valid()
    assert held.state is forelock.LockState.RELEASED
    assert held.remaining() == 0.0
    assert observer.children(path) == []
    held.release()


def test_a_block_holds_the_lock_and_frees_it(client: forelock.Client, observer: Observer, path: str) -> None:
    mutex = client.mutex(path)
    with mutex.acquire(timeout=60) as held:
        assert observer.children(path) == [held.node]
    with mutex as again:
        assert observer.children(path) == [again.node]
        assert again.token > held.token
    assert observer.children(path) == []


def test_only_one_holds_it_at_a_time_in_the_order_of_asking(make_client: MakeClient, path: str) -> None:
    count = 8
    clients = [make_client() for _ in range(3)]
    inside = 0
    tokens: list[int] = []

    def work(number: int) -> None:
        nonlocal inside
        with clients[number % 3].mutex(path).acquire(timeout=60) as held:
            inside += 1
            assert inside == 1
            tokens.append(held.token)
            held.ensure(0.1)
            inside -= 1

    with ThreadPoolExecutor(count) as pool:
        for _ in range(5):
            list(pool.map(work, range(count)))
    assert len(tokens) == 5 * count
    assert tokens == sorted(tokens)


def test_try_acquire_takes_a_free_lock_and_leaves_nothing_at_a_taken_one(
    client: forelock.Client, rival: forelock.Client, observer: Observer, path: str
) -> None:
    held = client.mutex(path).try_acquire()
    assert held is not None
    assert rival.mutex(path).try_acquire() is None
    observer.wait_children(path, lambda names: names == [held.node])
    held.release()
    again = rival.mutex(path).try_acquire()
    assert again is not None
    again.release()


def test_an_acquire_that_fails_never_runs_the_body(
    client: forelock.Client, rival: forelock.Client, path: str
) -> None:
    """Fault 10."""
    ran = False
    rival.connect()
    with client.mutex(path):
        with Limited() as limit:
            with pytest.raises(forelock.AcquireTimeout) as error, rival.mutex(path).acquire(timeout=1.0):
                ran = True
            limit.is_within(1.1, least=1.0)
        short = rival.mutex(path, acquire_timeout=0.2)
        with pytest.raises(TimeoutError), short:
            ran = True

        @short
        def body() -> None:
            nonlocal ran
            ran = True

        with pytest.raises(forelock.AcquireTimeout):
            body()
    assert not ran
    assert error.value.path == path
    assert error.value.waited >= 1.0
    assert "pytest" in (error.value.holder or "")
    assert path in str(error.value)
    assert "TIMED_OUT" in str(error.value)


def test_a_timeout_is_one_deadline_whatever_the_number_of_wakeups(
    make_client: MakeClient, observer: Observer, path: str
) -> None:
    """Fault 23."""
    ahead = [make_client() for _ in range(3)]
    held = ahead[0].mutex(path).acquire()
    late = make_client()
    late.connect()
    with ThreadPoolExecutor(3) as pool:

        def hold_a_while(number: int) -> None:
            with ahead[number].mutex(path).acquire(timeout=60) as held:
                # Not a wait for anything: the time that a holder needs.
                threading.Event().wait(1.0)
                assert held.is_valid()

        waiting = []
        for number in (1, 2):
            waiting.append(pool.submit(hold_a_while, number))
            observer.wait_count(path, number + 1)
        with Limited() as limit:
            last = pool.submit(late.mutex(path).acquire, 1.5)
            observer.wait_count(path, 4)
            held.release(owner=held.owner)
            with pytest.raises(forelock.AcquireTimeout):
                last.result()
            limit.is_within(1.5 + 0.2, least=1.5)
        for one in waiting:
            one.result()


@pytest.mark.parametrize("fault", ["refuse", "blackhole", "stall"])
@pytest.mark.parametrize("connected", [False, True], ids=["before the first connection", "connected"])
def test_a_timeout_holds_with_the_servers_gone(
    make_client: MakeClient, proxy: Proxy, path: str, fault: str, connected: bool
) -> None:
    """Fault 22: within the timeout and 100 ms (and some more for Python), however the servers fail."""
    client = make_client(proxy.connect, operation_timeout=0.5, close_timeout=0.2)
    if connected:
        client.connect()
    proxy.do(fault)
    if connected and fault == "refuse":
        proxy.do("cut", "rst")
    mutex = client.mutex(path)
    for call in (lambda: mutex.acquire(timeout=0.5), mutex.try_acquire):
        with Limited() as limit:
            with pytest.raises((forelock.AcquireTimeout, forelock.ConnectionLost)):
                call()
            limit.is_within(0.5 + 0.25)


def test_a_timeout_of_none_waits_for_longer_than_the_default(
    make_client: MakeClient, observer: Observer, path: str
) -> None:
    client = make_client(acquire_timeout=0.1)
    held = client.mutex(path).acquire()
    with ThreadPoolExecutor(2) as pool:
        impatient = pool.submit(make_client(acquire_timeout=0.1).mutex(path).acquire)
        with pytest.raises(forelock.AcquireTimeout):
            impatient.result()
        patient = pool.submit(make_client(acquire_timeout=0.1).mutex(path).acquire, None)
        observer.wait_children(path, lambda names: len(names) == 2)
        with pytest.raises(forelock.AcquireTimeout):
            pool.submit(make_client().mutex(path, acquire_timeout=0.1).acquire).result()
        assert not patient.done()
        held.release()
        granted = patient.result(timeout=60)
    granted.release(owner=granted.owner)


def test_verify_asks_the_server(client: forelock.Client, observer: Observer, path: str) -> None:
    held = client.mutex(path).acquire()
    held.verify()
    observer.delete(f"{path}/{held.node}")
    with pytest.raises(forelock.LockLost):
        held.verify()
    with pytest.raises(forelock.LockLost):
        held.release()


def test_ensure_reads_the_clock(client: forelock.Client, path: str) -> None:
    with client.mutex(path) as held:
        held.ensure()
        held.ensure(0.5)
        assert 0.5 < held.remaining() <= 4.0
        with pytest.raises(forelock.LeaseTooShort):
            held.ensure(60.0)
    with pytest.raises(forelock.LockLost) as error:
        held.ensure()
    assert error.value.reason is None


def test_a_decorated_function_runs_under_the_lock(client: forelock.Client, observer: Observer, path: str) -> None:
    mutex = client.mutex(path)

    @mutex
    def plain(word: str, *, times: int) -> str:
        """Repeats."""
        assert len(observer.children(path)) == 1
        return word * times

    @mutex.locked(timeout=5)
    def with_token() -> int:
        with mutex as held:
            return held.token

    assert plain("ab", times=2) == "abab"
    assert plain.__name__ == "plain"
    assert plain.__doc__ == "Repeats."
    assert with_token() > 0
    assert observer.children(path) == []


def test_a_decorator_refuses_what_would_run_after_the_release(client: forelock.Client, path: str) -> None:
    mutex = client.mutex(path)

    async def coroutine() -> None: ...

    def generator():  # type: ignore[no-untyped-def]
        yield 1

    async def async_generator():  # type: ignore[no-untyped-def]
        yield 1

    for function in (coroutine, generator, async_generator):
        with pytest.raises(TypeError):
            mutex(function)


def test_a_dropped_lock_is_released_with_a_warning(client: forelock.Client, observer: Observer, path: str) -> None:
    with pytest.warns(ResourceWarning, match=path):
        client.mutex(path).acquire()
    observer.wait_count(path, 0)


def test_max_hold_takes_the_lock_away(client: forelock.Client, observer: Observer, path: str) -> None:
    held = client.mutex(path, max_hold=0.2).acquire()
    assert held.wait_lost(timeout=60) is forelock.LostReason.MAX_HOLD
    observer.wait_count(path, 0)
    with pytest.raises(forelock.LockLost):
        held.release()


def test_ensure_root_makes_the_root_ahead_of_time(client: forelock.Client, observer: Observer, path: str) -> None:
    epoch = client.ensure_root(path)
    assert epoch == observer.czxid(path)
    assert client.ensure_root(path) == epoch
    with client.mutex(path) as held:
        assert held.epoch == epoch


def test_a_namespace_is_on_the_server_only(make_client: MakeClient, observer: Observer, path: str) -> None:
    client = make_client(namespace="apps/ledger/")
    assert client.namespace == "/apps/ledger"
    with client.mutex(f"/{path}//a/") as held:
        assert held.path == f"{path}/a"
        assert observer.children(f"/apps/ledger{path}/a") == [held.node]


def test_a_label_and_the_program_tell_who_holds_it(make_client: MakeClient, path: str) -> None:
    holder = make_client(label="month end", program="ledger")
    impatient = make_client()
    impatient.connect()
    with (
        holder.mutex(path),
        pytest.raises(forelock.AcquireTimeout, match=r"held by ledger on .*MainThread \(month end\)"),
    ):
        impatient.mutex(path).acquire(timeout=1.0)


@pytest.mark.parametrize("naming", ["curator", "kazoo", "epoch"])
def test_every_naming_excludes_itself(make_client: MakeClient, path: str, naming: forelock.Naming) -> None:
    with make_client().mutex(path, naming=naming):
        assert make_client().mutex(path, naming=naming).try_acquire() is None


def test_kazoo_and_we_exclude_each_other(client: forelock.Client, observer: Observer, path: str) -> None:
    """Fault 6."""
    ours = client.mutex(path, naming="kazoo")
    theirs = observer.zk.Lock(path, "kazoo")
    with ours:
        assert not theirs.acquire(blocking=False)
    assert theirs.acquire(timeout=60)
    assert ours.try_acquire() is None
    theirs.release()
    with ours:
        pass


def test_other_threads_run_while_one_waits(
    client: forelock.Client, rival: forelock.Client, observer: Observer, path: str
) -> None:
    held = client.mutex(path).acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rival.mutex(path).acquire)
        observer.wait_count(path, 2)
        held.release()
        granted = waiting.result(timeout=60)
    granted.release(owner=granted.owner)


def test_a_held_gil_costs_nothing(make_client: MakeClient, path: str) -> None:
    """Fault 43: three session timeouts without a single Python instruction, in this process."""
    import ctypes

    client = make_client(session_timeout=2.0)
    with client.mutex(path) as held:
        session = client.session
        # A PyDLL call keeps the GIL.
        ctypes.PyDLL(None).usleep(6_000_000)
        assert held.is_valid()
        held.verify()
        assert client.session == session


def test_close_ends_waits_and_locks(
    client: forelock.Client, rival: forelock.Client, observer: Observer, path: str
) -> None:
    with ThreadPoolExecutor(2) as pool:
        blocker = rival.mutex(path).acquire()
        waiting = pool.submit(client.mutex(path).acquire, None)
        observer.wait_count(path, 2)
        elsewhere = client.mutex(f"{path}/elsewhere").acquire()
        lost = pool.submit(elsewhere.wait_lost)
        client.close()
        with pytest.raises(forelock.ClientClosed):
            waiting.result(timeout=60)
        assert lost.result(timeout=60) is forelock.LostReason.CLOSED
    assert client.is_closed
    client.close()
    with pytest.raises(forelock.ClientClosed):
        client.mutex(path).acquire()
    with pytest.raises(forelock.ClientClosed):
        client.connect()
    with pytest.raises(forelock.LockLost):
        elsewhere.release()
    observer.wait_children(path, lambda names: blocker.node in names)
    blocker.release()


def test_close_is_bounded_with_the_servers_gone(make_client: MakeClient, proxy: Proxy, path: str) -> None:
    client = make_client(proxy.connect, close_timeout=0.3)
    client.connect()
    proxy.do("blackhole")
    with Limited() as limit:
        client.close()
        limit.is_within(1.0)


def test_a_client_that_was_never_used_closes_at_once(server: Server) -> None:
    with forelock.Client(server.connect) as client:
        states = client.states()
        assert client.session is None
        assert client.state is None
    assert list(states) == []


def test_the_session_and_its_warnings_are_shown(make_client: MakeClient) -> None:
    client = make_client(session_timeout=900.0)
    client.connect()
    session = client.session
    assert session is not None
    # A twentieth of what was granted: that the server's limit was set by hand can't be known.
    assert (session.asked_timeout, session.timeout, session.tick) == (900.0, 60.0, 3.0)
    assert 0.0 < session.margin < session.survivable_outage < session.timeout
    assert any("maxSessionTimeout" in warning for warning in session.warnings)
    assert session.id != 0


def test_metrics_count(client: forelock.Client, path: str) -> None:
    with client.mutex(path):
        pass
    metrics = client.metrics()
    assert (metrics.acquires, metrics.grants, metrics.releases, metrics.losses) == (1, 1, 1, 0)
    assert metrics.cleanup_pending == 0
