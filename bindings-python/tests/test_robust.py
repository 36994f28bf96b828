"""Fault 41: whatever it is given, native code raises a plain exception; it never aborts, hangs or panics."""

from __future__ import annotations

from support.script import run
from support.testkit import Server

PRELUDE = """
import asyncio, gc, itertools, sys, threading, warnings
import forelock
from forelock import _native, aio
servers, path = sys.argv[1:3]
warnings.simplefilter("ignore")
strange = [
    None, True, -1, 0, 2**31, 2**64, -2**63, 0.0, -0.0, 1e-320, 1e308, float("nan"), float("inf"),
    "", "/", "/a", "\\0", "\\ud800", "x" * 70000, "/" + "a/" * 3000, b"", b"\\xff",
    [], [None], (), {}, {"a": 1}, object(), print, int,
]
tried = refused = 0
def attempt(function, *arguments, **options):
    global tried, refused
    tried += 1
    try:
        return function(*arguments, **options)
    except Exception:
        refused += 1
    # Anything else, such as a panic, ends the program.
"""


def test_every_native_call_with_strange_arguments(server: Server, path: str) -> None:
    source = """
client = _native.Client(servers, {"acquire_timeout": 0.05, "operation_timeout": 0.3, "session_timeout": 4})
mutex = client.mutex(path, "curator", False, None, None)
held = mutex.acquire(True, 5.0, None, None).result()
def things():
    return [client, mutex, held, client.states(), held.verify(), _native.Operation, _native.States]
skip = {"wait", "result", "close", "stop_wakeups", "stop_records", "next_wakeups", "next_records"}
for thing in things():
    for name in dir(thing):
        if name.startswith("_") or name in skip:
            continue
        method = getattr(thing, name)
        for count in (0, 1):
            for arguments in itertools.product(strange, repeat=count):
                attempt(method, *arguments)
for values in itertools.product(strange[::3], repeat=2):
    attempt(held.release, *values[:1])
    attempt(mutex.acquire, True, values[0], values[1], None)
    attempt(client.mutex, values[0], "curator", True, values[1], None)
    attempt(_native.lock_path, *values)
    attempt(_native.Client, *values)
for name in ("set_log_level", "lock_path", "Client"):
    for value in strange:
        attempt(getattr(_native, name), value)
_native.set_log_level(20)
print(tried > 500, refused > 300)
"""
    assert run(PRELUDE + source, server.connect, path) == "True True\n"


def test_every_public_option_with_strange_values(server: Server, path: str) -> None:
    source = """
import inspect
options = [name for name in inspect.signature(forelock.Client).parameters if name != "servers"]
for name, value in itertools.product(options, strange):
    attempt(forelock.Client, servers, **{name: value})
for value in strange:
    attempt(forelock.Client, value)
client = forelock.Client(servers, session_timeout=4, acquire_timeout=0.2, operation_timeout=0.2)
for value in strange:
    attempt(client.ensure_root, value)
    attempt(client.mutex, path, naming=value)
    attempt(client.mutex, path, max_hold=value)
    attempt(client.mutex, path, acquire_timeout=value)
    mutex = client.mutex(path)
    if value is not None:
        for call in (lambda: mutex.acquire(timeout=value), lambda: mutex.acquire(owner=value)):
            held = attempt(call)
            if held is not None:
                held.hand_over(None)
                for check in (held.ensure, held.on_lost, held.hand_over):
                    attempt(check, value)
                held.release(owner=held.owner)
print(tried > 500, refused > 300)
"""
    assert run(PRELUDE + source, server.connect, path) == "True True\n"


def test_operations_misused(server: Server, path: str) -> None:
    source = """
client = _native.Client(servers, {"session_timeout": 4})
blocker = client.mutex(path, "curator", False, None, None).acquire(True, 5.0, None, None).result()

def acquiring():
    return client.mutex(path, "curator", False, None, None).acquire(True, None, None, None)

def internal(function):
    try:
        function()
    except forelock.ForelockError as error:
        assert error.code == "INTERNAL", error
    else:
        raise SystemExit("not refused")

operation = acquiring()
internal(operation.take)
assert operation.poll(print) is False
internal(operation.take)
assert operation.wait(0.0) is False
operation.cancel()
operation.cancel()
for call in (operation.take, operation.result, lambda: operation.poll(print)):
    internal(call)

# Two threads, one operation.
operation = acquiring()
began = threading.Event()
def wait():
    began.set()
    operation.wait(1.0)
thread = threading.Thread(target=wait)
thread.start()
began.wait()
while True:
    try:
        operation.poll(lambda: None)
    except forelock.ForelockError:
        break
operation.cancel()
thread.join()
operation.cancel()

# Cancelled by its own wakeup, dropped by it, with a wakeup that fails.
for round in range(20):
    operation = client.connect()
    done = threading.Event()
    def wake(operation=operation):
        operation.cancel()
        done.set()
        raise RuntimeError("on purpose")
    from forelock import _threads
    _threads.start_wakeups()
    if not operation.poll(wake):
        assert done.wait(60)
    del operation
    gc.collect()
print("fine")
"""
    assert run(PRELUDE + source, server.connect, path) == "fine\n"


def test_classes_cannot_be_made_by_hand() -> None:
    source = """
for kind in (_native.HeldLock, _native.Mutex, _native.Operation, _native.States):
    attempt(kind)
    attempt(object.__new__, kind)
    attempt(type, "Sub", (kind,), {})
print(tried, refused)
"""
    assert run(PRELUDE + source, "localhost:1", "/x") == "12 12\n"
