"""The engine's events in Python's `logging`."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator

import forelock
import pytest
from support.script import run
from support.testkit import Server

MakeClient = Callable[..., forelock.Client]
Records = queue.Queue[logging.LogRecord]
logger = logging.getLogger("forelock")


@pytest.fixture
def records() -> Iterator[Records]:
    records: Records = queue.Queue()
    handler = logging.Handler()
    handler.emit = records.put  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def find(records: Records, text: str) -> logging.LogRecord:
    while True:
        record = records.get(timeout=60)
        if text in record.getMessage():
            return record


def test_events_come_with_level_and_fields(make_client: MakeClient, records: Records, path: str) -> None:
    logger.setLevel(logging.INFO)
    client = make_client()
    with client.mutex(path) as held:
        record = find(records, "connection state")
        assert record.levelno == logging.INFO
        assert "CONNECTED" in record.getMessage()
        assert record.threadName == "forelock-log"
        held.mark_superseded()
        record = find(records, "lock lost")
        assert record.levelno == logging.WARNING
        assert f"path={path}" in record.getMessage()
        assert "superseded" in record.getMessage()
        with pytest.raises(forelock.LockLost):
            held.release()


def test_the_engine_has_one_voice(make_client: MakeClient, records: Records) -> None:
    """At any level, what the crates below it say of each connection is left out."""
    logger.setLevel(5)
    client = make_client()
    client.connect()
    client.close()
    connected = find(records, "connected to ")
    assert connected.levelno == logging.INFO
    heard = []
    while not records.empty():
        heard.append(records.get().getMessage())
    assert heard
    assert not [line for line in heard if "establish" in line or "enter state" in line], heard


def test_a_server_that_is_gone_is_told_of_once_and_tried_on_quietly(records: Records) -> None:
    logger.setLevel(logging.DEBUG)
    with forelock.Client("127.0.0.1:1") as client:
        with pytest.raises(forelock.AcquireTimeout):
            client.mutex("/gone").acquire(timeout=1)
    lines = []
    while not records.empty():
        lines.append(records.get())
    told = [line for line in lines if line.levelno >= logging.INFO and "127.0.0.1:1" in line.getMessage()]
    assert len(told) == 1, [line.getMessage() for line in lines]
    assert told[0].levelno == logging.WARNING
    assert "trying again" in told[0].getMessage()
    attempts = [line.getMessage() for line in lines if "could not connect" in line.getMessage()]
    assert attempts
    assert "attempt=1" in attempts[0]


def test_a_level_that_is_lowered_later_counts(make_client: MakeClient, records: Records) -> None:
    logger.setLevel(logging.WARNING)
    client = make_client()
    logger.setLevel(logging.INFO)
    client.connect()
    assert find(records, "connection state").levelno == logging.INFO


def test_a_handler_that_is_slow_or_fails_or_calls_the_client_holds_nothing_up(
    make_client: MakeClient, path: str
) -> None:
    logger.setLevel(logging.INFO)
    client = make_client()
    go_on, called = threading.Event(), threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            client.metrics()
            called.set()
            go_on.wait(60)
            raise RuntimeError("on purpose")

    handler = Handler()
    logger.addHandler(handler)
    try:
        with client.mutex(path).acquire(timeout=60) as held:
            assert called.wait(60)
            held.verify()
    finally:
        logger.removeHandler(handler)
        go_on.set()
        logger.setLevel(logging.NOTSET)


def test_nothing_is_said_unless_logging_is_set_up(server: Server, path: str) -> None:
    source = """
import sys, forelock
with forelock.Client(sys.argv[1], session_timeout=900) as client:
    assert client.mutex(sys.argv[2]).acquire().release() is None
    assert client.session.warnings
"""
    assert run(source, server.connect, path) == ""


def test_records_at_exit_are_written_and_disturb_nothing(server: Server, path: str) -> None:
    source = """
import logging, sys, forelock
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
client = forelock.Client(sys.argv[1])
held = client.mutex(sys.argv[2]).acquire()
"""
    for _ in range(3):
        out = run(source, server.connect, path)
        assert "forelock WARNING lock lost" in out
        assert "Logging error" not in out
