"""One server for all tests; a path, a proxy and clients for each."""

from __future__ import annotations

import itertools
import logging
import queue
from collections.abc import AsyncIterator, Callable, Iterator

import forelock
import pytest
import pytest_asyncio
from forelock import aio
from support.observer import Observer
from support.testkit import Proxy, Server

TICK = 0.2
SESSION = 4.0

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server(tick_ms=int(TICK * 1000))
    yield server
    server.close()


@pytest.fixture(scope="session")
def observer(server: Server) -> Iterator[Observer]:
    observer = Observer(server.connect)
    yield observer
    observer.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.connect)
    yield proxy
    proxy.close()


@pytest.fixture
def path() -> str:
    return f"/test/{next(_numbers)}"


@pytest.fixture
def make_client(server: Server) -> Iterator[Callable[..., forelock.Client]]:
    """Makes clients that know the server's tick, and closes them after the test."""
    made: list[forelock.Client] = []

    def make(servers: str | None = None, **options: object) -> forelock.Client:
        defaults: dict[str, object] = {"session_timeout": SESSION, "tick": TICK}
        client = forelock.Client(servers or server.connect, **{**defaults, **options})  # type: ignore[arg-type]
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(make_client: Callable[..., forelock.Client]) -> forelock.Client:
    return make_client()


@pytest.fixture
def rival(make_client: Callable[..., forelock.Client]) -> forelock.Client:
    """Another client, with a session of its own."""
    return make_client()


@pytest.fixture
def complaints() -> Iterator[queue.Queue[logging.LogRecord]]:
    """The errors that are logged, as they come."""
    records: queue.Queue[logging.LogRecord] = queue.Queue()
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.put  # type: ignore[method-assign]
    logging.getLogger("forelock").addHandler(handler)
    yield records
    logging.getLogger("forelock").removeHandler(handler)


@pytest_asyncio.fixture
async def make_aclient(server: Server) -> AsyncIterator[Callable[..., aio.Client]]:
    made: list[aio.Client] = []

    def make(servers: str | None = None, **options: object) -> aio.Client:
        defaults: dict[str, object] = {"session_timeout": SESSION, "tick": TICK}
        client = aio.Client(servers or server.connect, **{**defaults, **options})  # type: ignore[arg-type]
        made.append(client)
        return client

    yield make
    for client in made:
        await client.close()


@pytest_asyncio.fixture
async def aclient(make_aclient: Callable[..., aio.Client]) -> aio.Client:
    return make_aclient()


@pytest_asyncio.fixture
async def arival(make_aclient: Callable[..., aio.Client]) -> aio.Client:
    return make_aclient()
