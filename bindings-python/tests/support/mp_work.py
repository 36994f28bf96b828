"""What the children of `multiprocessing` do: a module, so that spawned ones can import it."""

from __future__ import annotations

import forelock

client: forelock.Client | None = None
held: forelock.HeldLock | None = None
mutex: forelock.Mutex


def prepare(servers: str, path: str) -> None:
    global client, mutex
    client = forelock.Client(servers, session_timeout=4.0)
    mutex = client.mutex(path)


def work(_: int) -> int:
    with mutex.acquire(timeout=60) as held:
        held.verify()
        return held.token


def leave_held(servers: str, path: str) -> None:
    global client, held
    client = forelock.Client(servers)
    held = client.mutex(path).acquire()
