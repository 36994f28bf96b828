"""The agent that plays actors with the blocking Python API.

A lock belongs to the thread that acquired it, so every owner of a scenario is a thread here; one called ``main`` is
the main thread, where Ctrl-C arrives. What has no owner gets a thread of its own.
"""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable

import forelock

from agent_protocol import Handle, Handles, Request, Senseless, hold_the_interpreter, requests, say
from forelock_common import (
    cannot,
    client_options,
    grant,
    look,
    mutex_options,
    say_block_ended,
    say_lost,
    say_state,
)

Work = Callable[[], None]


class Owners:
    """Threads by name, each doing what it is given, one thing after the other."""

    def __init__(self) -> None:
        self.main: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._queues = {"main": self.main}
        self._numbers = itertools.count(1)

    def fresh(self) -> str:
        return f"own-{next(self._numbers)}"

    def run(self, name: str, work: Work) -> None:
        if name not in self._queues:
            self._queues[name] = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(name,), name=name, daemon=True).start()
        self._queues[name].put(work)

    def _serve(self, name: str) -> None:
        while (work := self._queues[name].get()) is not None:
            work()

    def serve_main(self) -> None:
        """Returns when there is nothing more to do."""
        while True:
            try:
                work = self.main.get()
                if work is None:
                    return
                work()
            except KeyboardInterrupt:
                # It came between two calls: nobody's.
                continue


class Block:
    """A block whose body runs on a thread of its own until it is told how to end."""

    def __init__(self) -> None:
        self.end: queue.SimpleQueue[tuple[Request, bool]] = queue.SimpleQueue()


class Agent:
    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._client: forelock.Client | None = None
        self._handles: Handles[forelock.HeldLock] = Handles()
        self._blocks: dict[str, Block] = {}
        self._unblock = threading.Event()

    @property
    def client(self) -> forelock.Client:
        if self._client is None:
            raise Senseless("there is no client")
        return self._client

    def begin(self, request: Request) -> None:
        """Begins what is asked on the thread that it belongs to. What only reads the clock is done at once."""
        try:
            work, owner = self._work(request)
        except Exception as error:
            request.failed(error)
            return
        if work is not None:
            self._owners.run(owner, lambda: self._guarded(request, work))

    def _guarded(self, request: Request, work: Callable[[Request], None]) -> None:
        try:
            work(request)
        except (Exception, KeyboardInterrupt) as error:
            request.failed(error)

    def _work(self, request: Request) -> tuple[Callable[[Request], None] | None, str]:
        owner = request.args.get("owner")
        match request.verb:
            case "ping":
                request.answer("ok")
                return None, ""
            case "unblock-listener":
                self._unblock.set()
                request.answer("ok")
                return None, ""
            case "state":
                change = self.client.state
                request.answer("none" if change is None else change.state.value)
                return None, ""
            case "connect" | "close" | "ensure-root" | "listen":
                return getattr(self, "_" + request.verb.replace("-", "_")), self._owners.fresh()
            case "acquire" | "try-acquire":
                name = owner or self._owners.fresh()
                return (lambda request: self._acquire(request, name)), name
            case "enter-block":
                return self._block, owner or self._owners.fresh()
            case "leave-block" | "throw-in-block":
                block = self._blocks.pop(request.path, None)
                if block is None:
                    raise Senseless(f"no block at {request.path}")
                block.end.put((request, request.verb == "throw-in-block"))
                return None, ""
            case "fork-use":
                return self._fork_use, "main"
            case "stall-runtime":
                return self._stall, self._owners.fresh()
        handle = self._handles.find(request.path)
        if look(handle.held, request):
            return None, ""
        match request.verb:
            case "release":
                by = request.args.get("by", handle.owner)
                return (lambda request: self._release(request, handle)), by
            case "hand-over":
                return (lambda request: self._hand_over(request, handle)), request.args["to"]
            case "verify":
                return (lambda request: self._verify(request, handle)), self._owners.fresh()
            case "await-revocation":
                return (lambda request: self._await_revocation(request, handle)), self._owners.fresh()
        raise cannot(request)

    def _connect(self, request: Request) -> None:
        client = forelock.Client(request.args["servers"], **client_options(request))
        client.on_state(say_state)
        self._client = client
        if "lazily" not in request.args:
            client.connect()
        request.answer("ok")

    def _close(self, request: Request) -> None:
        self.client.close()
        request.answer("ok")

    def _ensure_root(self, request: Request) -> None:
        self.client.ensure_root(request.path)
        request.answer("ok")

    def _acquire(self, request: Request, owner: str) -> None:
        mutex = self.client.mutex(request.path, **mutex_options(request))
        held = mutex.try_acquire() if request.verb == "try-acquire" else mutex.acquire()
        if held is None:
            request.answer("none")
            return
        request.answer("held", **grant(held))
        self._handles.add(Handle(request.path, held, owner))
        if self._handles.is_new(held.token):
            held.on_lost(lambda reason: say_lost(request.path, held, reason))

    def _block(self, request: Request) -> None:
        mutex = self.client.mutex(request.path, **mutex_options(request))
        block = Block()
        told = None
        entered = False
        body_error = RuntimeError("the body's own")
        error: BaseException | None = None
        try:
            with mutex as held:
                entered = True
                self._blocks[request.path] = block
                request.answer("held", **grant(held))
                say(event="body", path=request.path)
                held.on_lost(lambda reason: say_lost(request.path, held, reason))
                told, throw = block.end.get()
                if throw:
                    raise body_error
        except Exception as raised:
            error = raised
        if not entered and error is not None:
            raise error
        if told is not None:
            say_block_ended(told, error, body_error)

    def _release(self, request: Request, handle: Handle[forelock.HeldLock]) -> None:
        try:
            handle.held.release()
        except forelock.NotOwner:
            raise
        except forelock.ForelockError:
            handle.released = True
            raise
        handle.released = True
        request.answer("ok")

    def _hand_over(self, request: Request, handle: Handle[forelock.HeldLock]) -> None:
        # We are on the thread that is to own it.
        handle.held.hand_over(forelock.current_owner())
        handle.owner = request.args["to"]
        request.answer("ok")

    def _verify(self, request: Request, handle: Handle[forelock.HeldLock]) -> None:
        handle.held.verify()
        request.answer("ok")

    def _await_revocation(self, request: Request, handle: Handle[forelock.HeldLock]) -> None:
        handle.held.wait_revocation_asked()
        request.answer("ok")

    def _listen(self, request: Request) -> None:
        client = self.client

        def listener(change: forelock.StateChange) -> None:
            if change.state.value != request.args["on"]:
                return
            subscription.cancel()
            try:
                if request.args["do"] == "acquire":
                    client.mutex(request.path).acquire().release()
                    say(event="listener", result="held")
                else:
                    self._unblock.wait()
                    say(event="listener", result="ok")
            except Exception as error:
                say(event="listener", error=getattr(error, "code", type(error).__name__), message=str(error))

        subscription = client.on_state(listener)
        request.answer("ok")

    def _fork_use(self, request: Request) -> None:
        """Forks; the child uses the client, tells what came of it, and ends in order."""
        held = self._handles.find(request.path).held
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            told = "an error of another kind"
            try:
                self.client.mutex(request.path).acquire(timeout=1)
                told = "held"
            except forelock.ForelockError as error:
                told = error.code
            finally:
                os.write(writing, ("the child thinks that it holds" if held.is_valid() else told).encode())
                atexit._run_exitfuncs()
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as told_by_child:
            told = told_by_child.read()
        os.waitpid(child, 0)
        say(id=request.id, began=request.began, error=told)

    def _stall(self, request: Request) -> None:
        hold_the_interpreter(request.seconds("for") or 0.0)
        request.answer("ok")


def main() -> None:
    owners = Owners()
    agent = Agent(owners)

    def read() -> None:
        for request in requests():
            agent.begin(request)
        owners.main.put(None)

    threading.Thread(target=read, name="requests", daemon=True).start()
    owners.serve_main()


if __name__ == "__main__":
    main()
    sys.exit()
