"""Locks of Python, measured as `forelock-bench lock` measures: the same words on the command line, the same
meter, the same line of JSON. One thread for each worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

USAGE = "usage: peer.py lock python|kazoo SERVERS BASE WORKERS SESSIONS own|one SECONDS"
SESSION = 30.0
CONNECTION = 15.0
WARM_UP = 1.0  # at least

Pair = Callable[[], None]
"""Acquires a lock and releases it."""
Connect = Callable[[str], contextlib.AbstractContextManager[Callable[[str], Pair]]]
"""Opens a session, which makes pairs for paths."""


@contextlib.contextmanager
def forelock(servers: str) -> Iterator[Callable[[str], Pair]]:
    import forelock

    with forelock.Client(servers, session_timeout=SESSION, connection_timeout=CONNECTION) as client:

        def lock(path: str) -> Pair:
            mutex = client.mutex(path)
            return lambda: mutex.acquire(timeout=None).release()

        yield lock


@contextlib.contextmanager
def kazoo(servers: str) -> Iterator[Callable[[str], Pair]]:
    from kazoo.client import KazooClient

    client = KazooClient(servers, timeout=SESSION)
    client.start(timeout=CONNECTION)

    def lock(path: str) -> Pair:
        mutex = client.Lock(path)

        def pair() -> None:
            mutex.acquire()
            mutex.release()

        return pair

    try:
        yield lock
    finally:
        client.stop()
        client.close()


PEERS: dict[str, Connect] = {"python": forelock, "kazoo": kazoo}


class Meter:
    """Counts what is done between the moment when everyone has begun and the end."""

    def __init__(self, workers: int) -> None:
        # A count for each thread, so that none waits for another to count.
        self._done = [0] * workers
        self._stop = False

    def work(self, worker: int, pair: Pair) -> None:
        try:
            while not self._stop:
                pair()
                self._done[worker] += 1
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # a rate without this worker would be another load's

    def measure(self, seconds: float) -> tuple[float, float]:
        """Pairs a second, and the milliseconds of processor time of each."""
        warm_at = time.perf_counter() + WARM_UP
        while not all(self._done) or time.perf_counter() < warm_at:
            time.sleep(0.01)
        began, cpu, before = time.perf_counter(), time.process_time(), sum(self._done)
        time.sleep(seconds)
        done = sum(self._done) - before
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        self._stop = True
        return done / took, cpu * 1e3 / max(done, 1)


def main(words: list[str]) -> int:
    match words:
        case ["lock", who, servers, base, workers, sessions, "own" | "one" as shape, seconds] if who in PEERS:
            workers, sessions, own = int(workers), int(sessions), shape == "own"
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    meter = Meter(workers)
    with contextlib.ExitStack() as open_sessions:
        locks = [open_sessions.enter_context(PEERS[who](servers)) for _ in range(sessions)]
        threads = []
        for worker in range(workers):
            pair = locks[worker % sessions](f"{base}/{worker if own else 'one'}")
            threads.append(threading.Thread(target=meter.work, args=(worker, pair)))
        for thread in threads:
            thread.start()
        per_second, cpu = meter.measure(float(seconds))
        for thread in threads:
            thread.join()
    report = {"who": who, "workers": workers, "sessions": sessions, "own": own}
    print(json.dumps({**report, "per_second": per_second, "cpu_ms_each": cpu}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
