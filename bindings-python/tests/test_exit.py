"""Ctrl-C, and the end of the interpreter."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import forelock
import pytest
from support.lateness import Limited
from support.observer import Observer
from support.script import Script, run
from support.testkit import Proxy, Server, freeze

PRELUDE = """
import asyncio, atexit, os, signal, sys, threading, time
import forelock
from forelock import aio
servers, path = sys.argv[1:3]
"""


@pytest.mark.parametrize("waiting_for", ["the lock", "the connection"])
def test_ctrl_c_ends_a_blocking_acquire_and_takes_its_node_away(
    client: forelock.Client, server: Server, observer: Observer, proxy: Proxy, path: str, waiting_for: str
) -> None:
    """Fault 36."""
    source = """
client = forelock.Client(servers, close_timeout=0.5)
mutex = client.mutex(path)
print("ready")
try:
    mutex.acquire(timeout=None)
except KeyboardInterrupt:
    print("interrupted")
input()
with forelock.Client(sys.argv[3]) as other, other.mutex(path + "/other"):
    print("usable")
client.close()
"""
    with client.mutex(path):
        if waiting_for == "the connection":
            proxy.do("blackhole")
            script = Script(PRELUDE + source, proxy.connect, path, server.connect)
            assert script.line() == "ready"
            # Until it waits.
            while proxy.do("connections")["connections"] == []:
                pass
        else:
            script = Script(PRELUDE + source, server.connect, path, server.connect)
            assert script.line() == "ready"
            observer.wait_count(path, 2)
        with Limited() as limit:
            script.signal(signal.SIGINT)
            assert script.line() == "interrupted"
            limit.is_within(1.0)
        # The process lives on, and its node is gone.
        observer.wait_count(path, 1)
        script.say("")
        assert script.line() == "usable"
        assert script.finish() == (0, "", "")


def test_ctrl_c_at_any_moment_of_acquiring_and_releasing_leaves_no_node(
    server: Server, observer: Observer, path: str
) -> None:
    """Fault 36: in a loop of acquires, the interrupt comes before, between and after the grant."""
    source = """
import warnings
warnings.simplefilter("ignore", ResourceWarning)
client = forelock.Client(servers, session_timeout=4)
mutex = client.mutex(path)
mutex.acquire().release()
for round in range(200):
    timer = threading.Timer(round * 0.00005, signal.raise_signal, [signal.SIGINT])
    try:
        timer.start()
        while True:
            with mutex:
                pass
    except KeyboardInterrupt:
        pass
    except forelock.ForelockError as error:
        raise SystemExit(repr(error))
    timer.join()
held = mutex.acquire(timeout=10, owner="another")
held.release(owner="another")
print("done")
"""
    assert run(PRELUDE + source, server.connect, path) == "done\n"
    assert observer.children(path) == []


def test_a_signal_handler_may_raise_and_may_go_on(
    client: forelock.Client, server: Server, observer: Observer, path: str
) -> None:
    source = """
import queue
client = forelock.Client(servers)
seen = []
signal.signal(signal.SIGUSR1, lambda *_: (seen.append(1), print("seen")))
print("ready")
held = client.mutex(path).acquire()
print("granted", len(seen))
held.release()
"""
    held = client.mutex(path).acquire()
    script = Script(PRELUDE + source, server.connect, path)
    assert script.line() == "ready"
    observer.wait_count(path, 2)
    script.signal(signal.SIGUSR1)
    assert script.line() == "seen"
    held.release()
    assert script.line() == "granted 1"
    assert script.finish() == (0, "", "")


def test_ctrl_c_cancels_an_acquire_in_asyncio(
    client: forelock.Client, server: Server, observer: Observer, path: str
) -> None:
    """Fault 36."""
    source = """
async def main():
    async with aio.Client(servers) as client:
        print("ready")
        async with client.mutex(path).acquire(None):
            print("never")
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
input()
"""
    with client.mutex(path):
        script = Script(PRELUDE + source, server.connect, path)
        assert script.line() == "ready"
        observer.wait_count(path, 2)
        script.signal(signal.SIGINT)
        assert script.line() == "interrupted"
        observer.wait_count(path, 1)
        script.say("")
        assert script.finish() == (0, "", "")


@pytest.mark.parametrize("way", ["end", "sys.exit", "exception", "ctrl-c"])
def test_a_session_is_closed_at_exit(server: Server, observer: Observer, path: str, way: str) -> None:
    """With a session of 30 s, the node would otherwise stay for as long."""
    ends = {
        "end": "",
        "sys.exit": "sys.exit(0)",
        "exception": "raise SystemExit",
        "ctrl-c": "signal.raise_signal(signal.SIGINT)",
    }
    source = f"""
client = forelock.Client(servers)
held = client.mutex(path).acquire()
print("held")
{ends[way]}
"""
    script = Script(PRELUDE + source, server.connect, path)
    assert script.line() == "held"
    script.finish()
    observer.wait_count(path, 0, within=10.0)


def test_a_session_is_closed_at_exit_of_an_asyncio_program(server: Server, observer: Observer, path: str) -> None:
    source = """
async def main():
    global client, held
    client = aio.Client(servers)
    held = await client.mutex(path).acquire()
asyncio.run(main())
"""
    run(PRELUDE + source, server.connect, path)
    observer.wait_count(path, 0, within=10.0)


@pytest.mark.parametrize("fault", ["blackhole", "stall", "refuse"])
def test_exit_is_bounded_with_the_servers_gone(
    server: Server, proxy: Proxy, observer: Observer, path: str, fault: str
) -> None:
    source = """
clients = [forelock.Client(servers, close_timeout=20) for _ in range(3)]
locks = [client.mutex(f"{path}/{number}").acquire() for number, client in enumerate(clients)]
print("held")
input()
"""
    script = Script(PRELUDE + source, proxy.connect, path)
    assert script.line() == "held"
    proxy.do(fault)
    if fault == "refuse":
        proxy.do("cut", "rst")
    with Limited() as limit:
        script.say("")
        assert script.finish() == (0, "", "")
        limit.is_within(4.5)


@pytest.mark.parametrize("repeat", range(3))
def test_daemon_threads_and_loops_that_wait_at_exit_disturb_nothing(
    client: forelock.Client, server: Server, observer: Observer, path: str, repeat: int
) -> None:
    """Fault 41."""
    source = """
import logging
logging.basicConfig(level=logging.DEBUG, filename=os.devnull)
client = forelock.Client(servers, tick=0.2)
aclient = aio.Client(servers, tick=0.2)
client.on_state(print)
client.connect()
def thread(target, *arguments):
    threading.Thread(target=target, args=arguments, daemon=True).start()
def quietly(function):
    try:
        function()
    except forelock.ForelockError:
        pass
for _ in range(3):
    thread(quietly, lambda: client.mutex(path).acquire(None))
held = client.mutex(path + "-mine").acquire()
held.on_lost(lambda reason: time.sleep(60))
thread(held.wait_lost)
thread(lambda: [change for change in client.states()])
async def wait():
    await asyncio.gather(*(aclient.mutex(path).acquire(None) for _ in range(3)), return_exceptions=True)
thread(asyncio.run, wait())
def spin():
    mutex = client.mutex(path + "-spin")
    while True:
        quietly(lambda: mutex.acquire().release())
for _ in range(2):
    thread(spin)
print("ready")
input()
"""
    with client.mutex(path):
        script = Script(PRELUDE + source, server.connect, path)
        while script.line() != "ready":
            pass
        observer.wait_count(path, 7)
        script.say("")
        code, _, err = script.finish()
        assert code == 0, err
        assert "Fatal" not in err
        assert "panick" not in err
        observer.wait_count(path, 1, within=10.0)


def test_nothing_is_left_when_a_client_is_dropped(server: Server, observer: Observer, path: str) -> None:
    source = """
import gc
client = forelock.Client(servers)
held = client.mutex(path).acquire()
client.on_state(lambda change: None)
held.release()
before = threading.active_count()
del client, held
gc.collect()
while any(thread.name == "forelock-states" for thread in threading.enumerate()):
    time.sleep(0.01)
print(before - threading.active_count())
"""
    assert run(PRELUDE + source, server.connect, path) == "1\n"


def test_atexit_handlers_of_the_program_may_use_the_client(server: Server, observer: Observer, path: str) -> None:
    source = """
client = forelock.Client(servers)
def last():
    with client.mutex(path) as held:
        print(held.is_valid())
atexit.register(last)
client.connect()
"""
    assert run(PRELUDE + source, server.connect, path) == "True\n"


def test_use_after_exit_began_is_a_clear_error_or_nothing(server: Server, observer: Observer, path: str) -> None:
    source = """
def last():
    try:
        client.mutex(path).acquire(timeout=1)
    except forelock.ClientClosed:
        print("closed")
    try:
        with forelock.Client(servers).mutex(path).acquire(timeout=60):
            print("a new one")
    except forelock.ForelockError as error:
        print(error)
# Registered first, so it runs last.
atexit.register(last)
import importlib
for name in [name for name in sys.modules if name.startswith("forelock")]:
    if name != "forelock._native":
        del sys.modules[name]
import forelock
client = forelock.Client(servers)
client.connect()
"""
    source = "import atexit, sys\nservers, path = sys.argv[1:3]\n" + source
    out = run(source, server.connect, path)
    assert out == "closed\na new one\n"
    observer.wait_count(path, 0)


def test_a_stopped_process_knows_on_its_first_line(
    server: Server, make_client: Callable[..., forelock.Client], path: str
) -> None:
    """Fault 1: stopped for longer than the session, then asked."""
    source = """
client = forelock.Client(servers, session_timeout=2, tick=0.2)
held = client.mutex(path).acquire()
print("held", held.token)
# Runs on at full speed. Where the process was stopped in the middle of asking, the answer may be from before.
valid, seen = True, 0.0
while valid:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    valid = held.is_valid()
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    if valid and after - before < 0.1:
        seen = after
print("lost", held.lost_reason, seen)
"""
    script = Script(PRELUDE + source, server.connect, path)
    word, token = script.line().split()
    assert word == "held"
    freeze(script.pid)
    with make_client().mutex(path).acquire(timeout=60) as rival:
        granted = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert rival.token > int(token)
        script.signal(signal.SIGCONT)
        word, reason, seen = script.line().split()
    assert word == "lost"
    assert reason in ("lease_elapsed", "session_expired")
    assert float(seen) < granted
    script.finish()
