"""The month-end story: workers post to one ledger under one lock, and one is frozen as it writes.

Exits with 0 only if everything in audit.py held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import ledger
from audit import SECOND, Event, Record, claims, freezes, money, problems, read_ledger
from link import now
from timeline import HOLD, Timeline

HERE = Path(__file__).parent
LOCK = "/locks/ledger/month-end"
NAMES = ("ada", "ben", "cleo", "dan", "eve", "finn", "gil", "hana")

SESSION = 4.0
TICK = 0.2
SLACK = 1.0  # and more where the machine itself was late
NAP = 0.01  # at most, while nothing happens
HANDS = 3  # how often one thread wakes another between a timer and a worker's code
BATCH = 3
FREEZE_AFTER = 7  # entries
FROZEN_FOR = SESSION + 2 * TICK  # at least, so that no session could outlive it
PACE = 0.05  # seconds from an announced post to its go-ahead, so that one can watch
DEADLINE = 180.0  # seconds for the whole story, on however busy a machine


class Stopped(Exception):
    """The story could not be told to its end."""


class Server:
    """A ZooKeeper, started through the testkit's binary. It ends when we do."""

    def __init__(self, testkit: str) -> None:
        self._testkit = testkit
        command = [testkit, "serve", "--tick-ms", str(round(TICK * 1000))]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
        except OSError as error:
            raise Stopped(f"{testkit} does not start: {error.strerror}") from error
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Stopped("ZooKeeper did not start; what the testkit says about it is above")
        about = json.loads(line)
        self.connect: str = about["connect"]
        self.version: str = about["version"]

    def ephemerals(self) -> list[str]:
        """The paths of the nodes that belong to sessions, by the server's own account."""
        host, port = self.connect.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(b"dump")
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        return [line.strip() for line in answer.splitlines() if line.startswith("\t/")]

    def freeze(self, pid: int) -> None:
        """Stops a process, and returns when it stands still: the signal alone is only a request."""
        if subprocess.run([self._testkit, "freeze", str(pid)], check=False).returncode != 0:
            raise Stopped(f"process {pid} could not be frozen; what the testkit says about it is above")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()


@dataclass
class Worker:
    name: str
    process: subprocess.Popen[str]
    log: Path
    pid: int = 0
    """What to freeze: the process that does the work, which need not be the one that we started."""
    doing: str = "starting"
    posted_in_turn: int = 0

    def tell(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and its last line says so

    def end(self) -> None:
        for pid in {self.pid, self.process.pid} - {0}:
            if self.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # which a frozen one obeys too
        self.process.wait()


@dataclass
class Story:
    """Starts the workers, freezes one at the worst moment, and wakes it when another has posted."""

    server: Server
    timeline: Timeline
    folder: Path
    entries: Path
    commands: list[tuple[str, list[str]]]
    events: list[Event] = field(default_factory=list)
    workers: dict[str, Worker] = field(default_factory=dict)
    frozen: Event | None = None
    others_post: bool = False
    """Whether somebody has posted since."""
    woken: bool = False
    late: float = 0.0
    """The longest that the machine kept us waiting for a processor after a nap."""

    def __post_init__(self) -> None:
        self._inbox: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
        self._go_ahead: list[tuple[float, Worker]] = []

    @property
    def database(self) -> Path:
        return self.folder / "ledger.sqlite"

    def tell(self) -> None:
        ledger.create(self.database)
        self._happened("serving", **self._server_details())
        for name, command in self.commands:
            self._start(name, command)
        deadline = time.monotonic() + DEADLINE
        while any(worker.doing != "ended" for worker in self.workers.values()):
            if time.monotonic() > deadline:
                doing = ", ".join(f"{worker.name}: {worker.doing}" for worker in self.workers.values())
                raise Stopped(f"the story took longer than {DEADLINE:.0f} s ({doing})")
            self._step()
        self.timeline.print_until(None)
        if self.frozen is None:
            raise Stopped("the entries were posted before anyone could be frozen while another waited")

    def end(self) -> None:
        for worker in self.workers.values():
            worker.end()
        self.timeline.print_until(None)
        with open(self.folder / "events.jsonl", "w", encoding="utf-8") as file:
            for event in self.events:
                line = {"at": event.at, "who": event.who, "event": event.what, **event.details}
                print(json.dumps(line), file=file)

    def _server_details(self) -> dict[str, Any]:
        settings = f"session {SESSION:g} s, tick {TICK:g} s"
        return {"version": self.server.version, "connect": self.server.connect, "settings": settings}

    def _start(self, name: str, command: list[str]) -> None:
        log = self.folder / f"{name}.log"
        with open(log, "w", encoding="utf-8") as errors:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    encoding="utf-8",
                    start_new_session=True,
                )
            except OSError as error:
                raise Stopped(f"{name} does not start: {shlex.join(command)}: {error.strerror}") from error
        worker = self.workers[name] = Worker(name, process, log)
        assert process.stdout is not None
        threading.Thread(target=self._read, args=(name, process.stdout), daemon=True).start()
        worker.tell(
            {
                "name": name,
                "connect": self.server.connect,
                "lock": LOCK,
                "database": str(self.database),
                "entries": str(self.entries),
                "session_ms": round(SESSION * 1000),
                "tick_ms": round(TICK * 1000),
                "batch": BATCH,
                "boottime_minus_monotonic_ns": now() - time.monotonic_ns(),
            }
        )

    def _read(self, name: str, lines: IO[str]) -> None:
        for line in lines:
            self._inbox.put((name, line))
        self._inbox.put((name, None))

    def _step(self) -> None:
        """Waits a moment for the next event, and gives those the go-ahead whose time has come."""
        self.timeline.print_until(now() - HOLD)
        began = time.monotonic()
        try:
            name, line = self._inbox.get(timeout=NAP)
        except queue.Empty:
            self.late = max(self.late, time.monotonic() - began - NAP)
        else:
            self._hear(self.workers[name], line)
        if self.frozen is not None and self.others_post and not self.woken:
            self._wake_if_long_enough(self.frozen)
        while self._go_ahead and self._go_ahead[0][0] <= time.monotonic():
            self._go_ahead.pop(0)[1].tell({"go": True})

    def _hear(self, worker: Worker, line: str | None) -> None:
        if line is None:
            worker.process.wait()
            if worker.process.returncode != 0 or worker.doing != "done":
                log = worker.log.read_text(encoding="utf-8").strip()
                raise Stopped(f"{worker.name} ended with {worker.process.returncode}:\n{log}")
            worker.doing = "ended"
            return
        try:
            told = json.loads(line)
            event = Event(int(told.pop("at")), worker.name, told.pop("event"), told)
        except (ValueError, KeyError, AttributeError) as error:
            raise Stopped(f"{worker.name} said what is no event: {line.strip()}") from error
        self._record(event)
        if event.what != "lost":  # which comes from the side, whatever the worker is doing
            worker.doing = event.what
        match event.what:
            case "ready":
                worker.pid = int(event.details["pid"])
            case "granted":
                worker.posted_in_turn = 0
            case "posted":
                worker.posted_in_turn += 1
                if self.frozen is not None and worker.name != self.frozen.details["worker"]:
                    self.others_post = True
            case "about-to-post":
                if event.is_valid_claim and self._is_worst_moment(worker):
                    self._freeze(worker, event)
                else:
                    self._go_ahead.append((time.monotonic() + PACE, worker))

    def _is_worst_moment(self, worker: Worker) -> bool:
        """Whether to freeze this worker, which has checked its lock and is about to post."""
        posted = sum(event.what == "posted" for event in self.events)
        somebody_waits = any(other.doing == "waiting" for other in self.workers.values())
        return self.frozen is None and posted >= FREEZE_AFTER and worker.posted_in_turn > 0 and somebody_waits

    def _freeze(self, worker: Worker, event: Event) -> None:
        self.server.freeze(worker.pid)
        self.frozen = self._happened("froze", worker=worker.name, token=event.token, entry=event.entry)
        self._record(Event(event.good_until, "director", "lease-over", self.frozen.details))

    def _wake_if_long_enough(self, frozen: Event) -> None:
        seconds = (now() - frozen.at) / SECOND
        if seconds < FROZEN_FOR:
            return
        self.woken = True
        worker = self.workers[frozen.details["worker"]]
        worker.tell({"go": True, "even_if_lost": True})
        self._happened("woke", worker=worker.name, token=frozen.token, after=seconds)
        os.kill(worker.pid, signal.SIGCONT)

    def _happened(self, what: str, **details: Any) -> Event:
        event = Event(now(), "director", what, details)
        self._record(event)
        return event

    def _record(self, event: Event) -> None:
        self.events.append(event)
        self.timeline.add(event)


def leftovers(server: Server, slack: float) -> list[str]:
    """The lock nodes that are there, once what goes on in the background has had a moment."""
    until = time.monotonic() + slack
    while True:
        nodes = [path for path in server.ephemerals() if path.startswith(LOCK)]
        if not nodes or time.monotonic() > until:
            return nodes
        time.sleep(0.02)


def summarize(timeline: Timeline, record: Record) -> bool:
    """Prints the summary, and says whether everything held."""
    timeline.heading("Summary")
    turns = claims(record)
    order = " ".join(f"{claim.who}:{claim.token}" for claim in turns)
    lines = sum(len(posted.entry.lines) for posted in record.posted)
    total = sum(line.cents for posted in record.posted for line in posted.entry.lines)
    timeline.note(f"  entries posted         {len(record.posted)} of {len(record.entries)}")
    timeline.note(f"  balance                {money(total)} over {lines} lines")
    timeline.note(
        textwrap.fill(f"  grants (worker:token)  {len(turns)}: {order}", 100, subsequent_indent=" " * 25)
    )
    for freeze in freezes(record):
        if freeze.next_grant is not None:
            since_froze = (freeze.next_grant.at - freeze.froze) / SECOND
            since_lost = (freeze.next_grant.at - freeze.lease_end) / SECOND
            timeline.note(
                f"  from loss to grant     {since_lost:.2f} s from the end of {freeze.who}'s lease to"
                f" {freeze.next_grant.who}'s grant ({since_froze:.2f} s from the freeze)"
            )
    refused = len(record.told("refused"))
    timeline.note(f"  stale writes refused   {refused} of {len(record.told('late-write'))}")
    for event in record.told("late-write"):
        cents = next((entry.cents for entry in record.entries if entry.id == event.entry), 0)
        once_more = f"{event.entry} ({money(cents)}) would stand twice"
        timeline.note(" " * 25 + f"with neither fence nor key, {once_more}")
    timeline.heading("What had to hold")
    held = True
    for name, found in problems(record).items():
        timeline.verdict(not found, name)
        for problem in found:
            timeline.note(f"          {problem}")
            held = False
    return held


def workers(given: list[str], count: int) -> list[tuple[str, list[str]]]:
    """Names and commands: those given as NAME=COMMAND, or so many of our own."""
    if not given:
        return [(name, [sys.executable, str(HERE / "worker.py")]) for name in NAMES[:count]]
    split = [worker.partition("=") for worker in given]
    return [(name, shlex.split(command)) for name, _, command in split]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs the month-end story on a real ZooKeeper.")
    parser.add_argument("--testkit", required=True, help="the binary forelock-testkit")
    parser.add_argument("--workers", type=int, default=4, choices=range(2, len(NAMES) + 1), metavar="N")
    parser.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="a worker of your own instead, in any language (README.md has the protocol); once for each",
    )
    return parser.parse_args()


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nobody stays frozen
    chosen = arguments()
    commands = workers(chosen.worker, chosen.workers)
    entries = ledger.read_entries(HERE / "entries.csv")
    folder = Path(tempfile.mkdtemp(prefix="forelock-ledger-"))
    timeline = Timeline(sys.stdout, entries, [name for name, _ in commands])
    server: Server | None = None
    held = False
    try:
        timeline.note("Starting ZooKeeper (the first time, it is fetched) …")
        server = Server(chosen.testkit)
        story = Story(server, timeline, folder, HERE / "entries.csv", commands)
        try:
            story.tell()
        finally:
            story.end()
        posted, fence = read_ledger(story.database, LOCK)
        slack = SLACK + HANDS * story.late
        left = leftovers(server, slack)
        record = Record(entries, posted, fence, story.events, left, SESSION, TICK, slack)
        held = summarize(timeline, record)
        timeline.heading("Every invariant held." if held else "Not every invariant held.")
    except Stopped as reason:
        timeline.heading(f"Stopped: {reason}")
    except KeyboardInterrupt:
        timeline.heading("Interrupted.")
    finally:
        if server is not None:
            server.end()
        if held:
            shutil.rmtree(folder)
        else:
            timeline.note(f"The ledger, the events and the workers' logs are in {folder}.")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
