"""Fault 35: fork, multiprocessing, and servers that load before they fork."""

from __future__ import annotations

import pytest
from support.observer import Observer
from support.script import Script, run
from support.testkit import Server

PRELUDE = """
import asyncio, gc, multiprocessing, os, sys, threading, time, warnings
import forelock
from forelock import aio
servers, path = sys.argv[1:3]
# Python 3.12 and later warn of every fork in a process with threads.
warnings.simplefilter("ignore", DeprecationWarning)

def child(function):
    '''Runs a function in a forked child, which then exits as any program does. Gives back the exit code.'''
    pid = os.fork()
    if pid == 0:
        function()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def refused(function):
    began = time.monotonic()
    try:
        function()
    except forelock.Forked:
        took = time.monotonic() - began
        # Of the 30 s that an acquire may take.
        assert took < 10.0, took
    else:
        raise SystemExit(f"not refused: {function}")
"""


def test_every_call_is_refused_at_once_and_the_parents_session_is_left_alone(
    server: Server, observer: Observer, path: str
) -> None:
    source = """
client = forelock.Client(servers, session_timeout=4, tick=0.2)
mutex = client.mutex(path)
held = mutex.acquire()
held.on_lost(lambda reason: os.write(1, b"told of a loss\\n"))
client.on_state(lambda change: None)
states = client.states()

def in_child():
    for call in (
        mutex.acquire, mutex.try_acquire, mutex.__enter__, client.connect, client.states, client.metrics,
        lambda: client.ensure_root(path), lambda: client.on_state(print), lambda: client.session,
        lambda: client.state, held.release, lambda: client.mutex(path).acquire(timeout=None),
        lambda: held.__exit__(None, None, None),
    ):
        refused(call)
    assert not held.is_valid()
    assert held.remaining() == 0.0
    assert held.lost_reason is forelock.LostReason.FORKED
    assert held.wait_lost() is forelock.LostReason.FORKED
    for call in (held.ensure, held.verify):
        try:
            call()
        except (forelock.LockLost, forelock.Forked):
            pass
        else:
            raise SystemExit("not lost")
    assert "forked" in repr(client) and "forked" in repr(held)
    with client:
        pass
    client.close()
    assert not client.is_closed
    async def in_loop():
        aclient = aio.Client(servers)
        try:
            await aclient.connect()
        except forelock.Forked:
            pass
        else:
            raise SystemExit("the parent's engine was used")
    asyncio.run(in_loop())

assert child(in_child) == 0
assert child(lambda: globals().clear() or gc.collect()) == 0
assert held.is_valid()
held.verify()
print(client.session.id == client.state.session, held.token)
assert client.metrics().losses == 0
held.release()
client.close()
"""
    out = run(PRELUDE + source.replace("globals().clear() or gc.collect()", "[]"), server.connect, path)
    assert out.startswith("True ")
    assert observer.children(path) == []


def test_dropping_everything_in_the_child_does_nothing_to_the_parent(
    server: Server, observer: Observer, path: str
) -> None:
    source = """
class All: pass
all = All()
all.client = forelock.Client(servers)
all.held = all.client.mutex(path).acquire()
all.states = all.client.states()
all.lost = all.held._native.lost()
all.lost.poll(print)
def in_child():
    all.__dict__.clear()
    gc.collect()
for _ in range(5):
    assert child(in_child) == 0
all.held.verify()
print(all.held.is_valid())
"""
    assert run(PRELUDE + source, server.connect, path) == "True\n"


def test_a_child_that_leaves_a_block_of_its_parent(server: Server, observer: Observer, path: str) -> None:
    source = """
client = forelock.Client(servers)
pid = None
try:
    with client.mutex(path) as held:
        pid = os.fork()
except forelock.Forked:
    assert pid == 0
    # As a program ends, with everything that is registered for that.
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
with client.mutex(path) as held:
    held.verify()
    print("fine")
"""
    assert run(PRELUDE + source, server.connect, path) == "fine\n"


def test_fork_while_threads_and_a_loop_are_busy(server: Server, observer: Observer, path: str) -> None:
    source = """
import logging
logging.basicConfig(level=logging.DEBUG, filename=os.devnull)
client = forelock.Client(servers)
aclient = aio.Client(servers)
going = True
def spin(number):
    mutex = client.mutex(f"{path}/{number % 2}")
    while going:
        mutex.acquire().release()
async def aspin():
    mutex = aclient.mutex(f"{path}/0")
    while going:
        async with mutex as held:
            held.on_lost(print)
threads = [threading.Thread(target=spin, args=(number,)) for number in range(3)]
threads.append(threading.Thread(target=lambda: asyncio.run(aspin())))
for thread in threads:
    thread.start()
def in_child():
    refused(client.mutex(path).acquire)
    refused(lambda: asyncio.run(aclient.connect()))
for _ in range(30):
    assert child(in_child) == 0
going = False
for thread in threads:
    thread.join()
print("fine")
"""
    assert run(PRELUDE + source, server.connect, path) == "fine\n"


def test_a_client_made_but_not_used_before_the_fork_works_in_the_child(
    server: Server, observer: Observer, path: str
) -> None:
    """As a web server does that loads the application before it forks its workers."""
    source = """
client = forelock.Client(servers)
aclient = aio.Client(servers)
mutex = client.mutex(path)

@mutex
def job(number):
    print("worker", number, flush=True)

async def ajob():
    async with aclient.mutex(path) as held:
        assert held.is_valid()

def worker(number):
    with client:
        job(number)
        states = client.states()
        told = threading.Event()
        with mutex as held:
            held.on_lost(lambda reason: told.set())
            held.mark_superseded()
            assert told.wait(60)
            try:
                held.release()
            except forelock.LockLost:
                pass
    asyncio.run(ajob())

for number in range(2):
    assert child(lambda: worker(number)) == 0
# The parent may use it in the end.
job("parent")
print(client.session is not None)
"""
    expected = "worker 0\nworker 1\nworker parent\nTrue\n"
    assert run(PRELUDE + source, server.connect, path) == expected


def test_a_forked_worker_that_exits_closes_its_own_session(server: Server, observer: Observer, path: str) -> None:
    source = """
client = forelock.Client(servers)
def worker():
    global held
    held = client.mutex(path).acquire()
assert child(worker) == 0
print("exited")
input()
"""
    script = Script(PRELUDE + source, server.connect, path)
    assert script.line() == "exited"
    observer.wait_count(path, 0, within=10.0)
    script.say("")
    assert script.finish() == (0, "", "")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(server: Server, observer: Observer, path: str, method: str) -> None:
    source = f"""
from support import mp_work
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    with context.Pool(3, mp_work.prepare, (servers, path)) as pool:
        tokens = pool.map(mp_work.work, range(30), chunksize=1)
        pool.close()
        pool.join()
    assert len(set(tokens)) == 30, tokens
    processes = [context.Process(target=mp_work.leave_held, args=(servers, f"{{path}}/{{n}}")) for n in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    print("fine")
"""
    assert run(PRELUDE + source, server.connect, path) == "fine\n"
    for number in range(2):
        # Left held, with a session of 30 s: the children closed it when they ended.
        observer.wait_count(f"{path}/{number}", 0, within=10.0)


def test_multiprocessing_by_fork_from_a_parent_that_uses_locks(
    server: Server, observer: Observer, path: str
) -> None:
    source = """
client = forelock.Client(servers)
held = client.mutex(path).acquire()
context = multiprocessing.get_context("fork")
def work(queue):
    try:
        client.mutex(path).acquire()
    except forelock.ForelockError as error:
        queue.put(error)
queue = context.Queue()
process = context.Process(target=work, args=(queue,))
process.start()
error = queue.get(timeout=60)
process.join()
assert process.exitcode == 0
print(type(error).__name__, error.code)
held.verify()
held.release()
"""
    assert run(PRELUDE + source, server.connect, path) == "Forked FORKED\n"


def test_a_signal_handler_that_forks_while_the_main_thread_waits(
    server: Server, observer: Observer, path: str
) -> None:
    source = """
import signal
blocker = forelock.Client(servers)
held = blocker.mutex(path).acquire()
client = forelock.Client(servers)
pids = []
def handler(*_):
    pids.append(os.fork())
    if pids[0] != 0:
        threading.Thread(target=held.release, kwargs={"owner": held.owner}).start()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    granted = client.mutex(path).acquire(owner="me")
except forelock.Forked:
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 5
granted.release(owner="me")
print("fine")
"""
    assert run(PRELUDE + source, server.connect, path) == "fine\n"
