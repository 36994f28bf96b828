"""An independent look at the tree, by kazoo."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

WAIT = 60.0


class Observer:
    """Sees what the server has, and waits for it by watches."""

    def __init__(self, hosts: str) -> None:
        self.zk = KazooClient(hosts=hosts, timeout=30)
        self.zk.start(timeout=WAIT)

    def close(self) -> None:
        self.zk.stop()
        self.zk.close()

    def children(self, path: str) -> list[str]:
        """The names below a path, in the order of their numbers; none if there is no such path."""
        try:
            return sorted(self.zk.get_children(path), key=lambda name: name[-10:])
        except NoNodeError:
            return []

    def wait_children(self, path: str, fits: Callable[[list[str]], bool], within: float = WAIT) -> list[str]:
        """Waits until the names below a path, which must exist, are as wanted."""
        until = time.monotonic() + within
        while True:
            changed = threading.Event()
            names = sorted(
                self.zk.get_children(path, watch=lambda _, changed=changed: changed.set()),
                key=lambda name: name[-10:],
            )
            if fits(names):
                return names
            if not changed.wait(max(0.0, until - time.monotonic())):
                raise AssertionError(f"{path} has {names} after {within} s")

    def wait_count(self, path: str, count: int, within: float = WAIT) -> list[str]:
        return self.wait_children(path, lambda names: len(names) == count, within)

    def wait_exists(self, path: str, within: float = WAIT) -> None:
        made = threading.Event()
        if self.zk.exists(path, watch=lambda _: made.set()) is None and not made.wait(within):
            raise AssertionError(f"{path} was not made within {within} s")

    def delete(self, path: str) -> None:
        self.zk.delete(path)

    def czxid(self, path: str) -> int:
        stat = self.zk.exists(path)
        assert stat is not None
        return int(stat.czxid)
