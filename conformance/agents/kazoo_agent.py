"""The agent that plays a peer with kazoo's Lock. It knows only what a peer needs."""

from __future__ import annotations

import os
import threading

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import LockTimeout
from kazoo.recipe.lock import Lock

from agent_protocol import Handle, Handles, Request, Senseless, now, requests, say


class TimedOut(Exception):
    """What kazoo calls LockTimeout, by the code that scenarios know."""

    code = "TIMED_OUT"


class Agent:
    def __init__(self) -> None:
        self._client: KazooClient | None = None
        self._handles: Handles[Lock] = Handles()
        self._acquiring: dict[int, Lock] = {}

    @property
    def client(self) -> KazooClient:
        if self._client is None:
            raise Senseless("there is no client")
        return self._client

    def begin(self, request: Request) -> None:
        threading.Thread(target=self._guarded, args=(request,), daemon=True).start()

    def _guarded(self, request: Request) -> None:
        try:
            self._act(request)
        except Exception as error:
            request.failed(error)

    def _act(self, request: Request) -> None:
        match request.verb:
            case "ping":
                request.answer("ok")
            case "connect":
                self._client = KazooClient(request.args["servers"], timeout=request.seconds("session") or 10.0)
                self._client.add_listener(self._say_state)
                self._client.start()
                request.answer("ok")
            case "close":
                self.client.stop()
                request.answer("ok")
            case "acquire" | "try-acquire":
                self._acquire(request)
            case "cancel":
                self._acquiring[request.args["of"]].cancel()
                request.answer("ok")
            case "release":
                handle = self._handles.find(request.path)
                handle.released = True
                request.answer("ok" if handle.held.release() else "none")
            case "is-valid":
                request.answer("true" if self._handles.find(request.path).held.is_acquired else "false")
            case _:
                raise Senseless(f"kazoo's agent can't {request.verb}")

    def _say_state(self, state: KazooState) -> None:
        session, _ = self.client.client_id or (None, None)
        say(event="state", at=now(), state=str(state), session=session)

    def _acquire(self, request: Request) -> None:
        patterns = tuple(request.args.get("patterns", "").split())
        lock = self.client.Lock(request.path, f"kazoo {os.getpid()}", extra_lock_patterns=patterns)
        self._acquiring[request.id] = lock
        try:
            got = lock.acquire(blocking=request.verb == "acquire", timeout=request.seconds("timeout"))
        except LockTimeout as error:
            raise TimedOut(str(error)) from error
        if not got:
            request.answer("none")
            return
        at = now()
        # The token of a grant is the czxid of its node, whoever made it.
        stat = self.client.exists(f"{request.path}/{lock.node}")
        request.answer("held", at=at, token=stat.czxid if stat else None)
        self._handles.add(Handle(request.path, lock, "kazoo"))


def main() -> None:
    agent = Agent()
    for request in requests():
        agent.begin(request)
    # As a program that ends in order does.
    if agent._client is not None:
        agent._client.stop()


if __name__ == "__main__":
    main()
