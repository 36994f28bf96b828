"""The agent that plays actors with the asyncio API.

A lock belongs to the task that acquired it, so every owner of a scenario is a task here. What has no owner gets a
task of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import threading
from collections.abc import Awaitable, Callable

import forelock
from forelock import aio

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

Work = Callable[[Request], Awaitable[None]]


class Owners:
    """Tasks by name, each doing what it is given, one thing after the other."""

    def __init__(self) -> None:
        self._queues: dict[str, asyncio.Queue[tuple[Request, Work]]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._given: dict[int, str] = {}
        """Whose each request is that has not ended."""
        self._begun: set[int] = set()
        self._cancelled: set[int] = set()
        self._numbers = itertools.count(1)

    def fresh(self) -> str:
        return f"own-{next(self._numbers)}"

    def run(self, name: str, request: Request, work: Work) -> None:
        if name not in self._queues:
            self._queues[name] = asyncio.Queue()
            self._tasks[name] = asyncio.create_task(self._serve(name), name=name)
        self._given[request.id] = name
        self._queues[name].put_nowait((request, work))

    def cancel(self, number: int) -> None:
        """Cancels the task that is busy with a request, or is about to be."""
        if number not in self._given:
            raise Senseless("nothing to cancel")
        self._cancelled.add(number)
        if number in self._begun:
            self._tasks[self._given[number]].cancel()

    async def _serve(self, name: str) -> None:
        while True:
            request, work = await self._queues[name].get()
            self._begun.add(request.id)
            try:
                if request.id in self._cancelled:
                    # Like a task that is cancelled before it has run: it gets no further than its first await.
                    self._tasks[name].cancel()
                await work(request)
            except asyncio.CancelledError:
                if request.id not in self._cancelled:
                    # The end of the program.
                    raise
                task = self._tasks[name]
                if hasattr(task, "uncancel"):
                    task.uncancel()
                request.answer("cancelled")
            except Exception as error:
                request.failed(error)
            finally:
                self._begun.discard(request.id)
                del self._given[request.id]


class Agent:
    def __init__(self) -> None:
        self._owners = Owners()
        self._client: aio.Client | None = None
        self._handles: Handles[aio.HeldLock] = Handles()
        self._blocks: dict[str, asyncio.Queue[tuple[Request, bool]]] = {}
        self._unblock = threading.Event()
        self._listening: set[asyncio.Task[None]] = set()

    @property
    def client(self) -> aio.Client:
        if self._client is None:
            raise Senseless("there is no client")
        return self._client

    def begin(self, request: Request) -> None:
        """Begins what is asked in the task that it belongs to. What only reads the clock is done at once."""
        try:
            work, owner = self._work(request)
        except Exception as error:
            request.failed(error)
            return
        if work is not None:
            self._owners.run(owner, request, work)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)

    def _work(self, request: Request) -> tuple[Work | None, str]:
        owner = request.args.get("owner")
        match request.verb:
            case "ping":
                request.answer("ok")
                return None, ""
            case "cancel":
                self._owners.cancel(request.args["of"])
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
            case "stall-runtime":
                # The loop and the interpreter both.
                hold_the_interpreter(request.seconds("for") or 0.0)
                request.answer("ok")
                return None, ""
            case "fork-use":
                self._fork_use(request)
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
                block.put_nowait((request, request.verb == "throw-in-block"))
                return None, ""
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

    async def _connect(self, request: Request) -> None:
        client = aio.Client(request.args["servers"], **client_options(request))
        self._spawn(self._watch_states(client.states()))
        self._client = client
        if "lazily" not in request.args:
            await client.connect()
        request.answer("ok")

    async def _watch_states(self, states: aio.States) -> None:
        async for change in states:
            say_state(change)

    async def _close(self, request: Request) -> None:
        await self.client.close()
        request.answer("ok")

    async def _ensure_root(self, request: Request) -> None:
        await self.client.ensure_root(request.path)
        request.answer("ok")

    async def _acquire(self, request: Request, owner: str) -> None:
        mutex = self.client.mutex(request.path, **mutex_options(request))
        held = await (mutex.try_acquire() if request.verb == "try-acquire" else mutex.acquire())
        if held is None:
            request.answer("none")
            return
        request.answer("held", **grant(held))
        self._handles.add(Handle(request.path, held, owner))
        if self._handles.is_new(held.token):
            self._spawn(self._watch_loss(request.path, held))

    async def _watch_loss(self, path: str, held: aio.HeldLock) -> None:
        reason = await held.wait_lost()
        if reason is not None:
            say_lost(path, held, reason)

    async def _block(self, request: Request) -> None:
        mutex = self.client.mutex(request.path, **mutex_options(request))
        block: asyncio.Queue[tuple[Request, bool]] = asyncio.Queue()
        told = None
        entered = False
        body_error = RuntimeError("the body's own")
        error: BaseException | None = None
        try:
            async with mutex as held:
                entered = True
                self._blocks[request.path] = block
                request.answer("held", **grant(held))
                say(event="body", path=request.path)
                self._spawn(self._watch_loss(request.path, held))
                told, throw = await block.get()
                if throw:
                    raise body_error
        except Exception as raised:
            error = raised
        if not entered and error is not None:
            raise error
        if told is not None:
            say_block_ended(told, error, body_error)

    async def _release(self, request: Request, handle: Handle[aio.HeldLock]) -> None:
        try:
            await handle.held.release()
        except forelock.NotOwner:
            raise
        except forelock.ForelockError:
            handle.released = True
            raise
        handle.released = True
        request.answer("ok")

    async def _hand_over(self, request: Request, handle: Handle[aio.HeldLock]) -> None:
        # We are in the task that is to own it.
        handle.held.hand_over(forelock.current_owner())
        handle.owner = request.args["to"]
        request.answer("ok")

    async def _verify(self, request: Request, handle: Handle[aio.HeldLock]) -> None:
        await handle.held.verify()
        request.answer("ok")

    async def _await_revocation(self, request: Request, handle: Handle[aio.HeldLock]) -> None:
        await handle.held.wait_revocation_asked()
        request.answer("ok")

    async def _listen(self, request: Request) -> None:
        if request.args["do"] == "acquire":
            self._spawn(self._acquire_when(request, self.client.states()))
        else:
            # A callback that blocks the thread that it is called on.
            def listener(change: forelock.StateChange) -> None:
                if change.state.value == request.args["on"]:
                    self._unblock.wait()
                    say(event="listener", result="ok")

            self.client.on_state(listener)
        request.answer("ok")

    async def _acquire_when(self, request: Request, states: aio.States) -> None:
        async for change in states:
            if change.state.value == request.args["on"]:
                break
        try:
            held = await self.client.mutex(request.path).acquire()
            await held.release()
            say(event="listener", result="held")
        except Exception as error:
            say(event="listener", error=getattr(error, "code", type(error).__name__), message=str(error))

    async def _use(self, path: str) -> None:
        await self.client.mutex(path).acquire(timeout=1)

    def _fork_use(self, request: Request) -> None:
        """Forks; the child uses the client, tells what came of it, and ends in order."""
        held = self._handles.find(request.path).held
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            told = "an error of another kind"
            try:
                asyncio.run(self._use(request.path))
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


async def main() -> None:
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Request | None] = asyncio.Queue()

    def read() -> None:
        for request in requests():
            loop.call_soon_threadsafe(inbox.put_nowait, request)
        loop.call_soon_threadsafe(inbox.put_nowait, None)

    threading.Thread(target=read, name="requests", daemon=True).start()
    agent = Agent()
    while (request := await inbox.get()) is not None:
        agent.begin(request)


if __name__ == "__main__":
    asyncio.run(main())
