"""The story as text: one line for each event, in the order of their times."""

from __future__ import annotations

import heapq
import os
from typing import TextIO

from audit import SECOND, Event, money
from ledger import Entry

# Lines that come in by different ways are put in order as long as none is later than this.
HOLD = SECOND // 10

RED, GREEN, YELLOW, BOLD, DIM = "31", "32", "33", "1", "2"
OF_WORKERS = ("36", "35", "34", "33", "96", "95", "94", "93")


class Timeline:
    """Prints events as they come, a moment late, so that they can be put in order."""

    def __init__(self, out: TextIO, entries: list[Entry], workers: list[str]) -> None:
        self._out = out
        self._start: int | None = None
        self._entries = {entry.id: entry for entry in entries}
        self._colours = {name: OF_WORKERS[n % len(OF_WORKERS)] for n, name in enumerate(workers)}
        self._coloured = out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._width = max(len(name) for name in ["director", *workers])
        self._waiting: list[tuple[int, int, str]] = []
        self._count = 0

    def add(self, event: Event) -> None:
        text = self._text(event)
        if self._start is None:
            self._start = event.at
        if text is not None:
            who = self._paint(event.who.ljust(self._width), self._colours.get(event.who, BOLD))
            self._count += 1
            line = f"{(event.at - self._start) / SECOND:8.3f}  {who}  {text}"
            heapq.heappush(self._waiting, (event.at, self._count, line))

    def print_until(self, time: int | None) -> None:
        """Prints what happened before this time; all with None."""
        while self._waiting and (time is None or self._waiting[0][0] < time):
            print(heapq.heappop(self._waiting)[2], file=self._out, flush=True)

    def heading(self, text: str) -> None:
        print(f"\n{self._paint(text, BOLD)}", file=self._out, flush=True)

    def verdict(self, holds: bool, text: str) -> None:
        word = self._paint("held  ", GREEN) if holds else self._paint("BROKEN", RED)
        print(f"  {word}  {text}", file=self._out, flush=True)

    def note(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def _paint(self, text: str, colour: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._coloured else text

    def _text(self, event: Event) -> str | None:
        """What an event is called; none for those that would only fill the screen."""
        details = event.details
        match event.what:
            case "serving":
                return f"ZooKeeper {details['version']} serves at {details['connect']}; {details['settings']}"
            case "ready":
                return f"process {details['pid']}, {details['language']}, forelock {details['forelock']}"
            case "waiting":
                return self._paint("waits for the lock", DIM)
            case "granted":
                return self._paint(f"granted, token {event.token}", GREEN)
            case "posted":
                entry = self._entries[event.entry]
                return f"  posted {entry.id}  {money(entry.cents):>10}  {entry.text}"
            case "handing-back":
                return self._paint(f"hands the lock back, token {event.token}", DIM)
            case "froze":
                return self._paint(
                    f"freezes {details['worker']} (token {event.token}), which has just found its lock valid"
                    f" and is about to post {event.entry}",
                    YELLOW,
                )
            case "lease-over":
                return self._paint(f"{details['worker']}'s lease is over, which it can't know yet", YELLOW)
            case "woke":
                return self._paint(f"wakes {details['worker']} after {details['after']:.2f} s", YELLOW)
            case "checked" if not details["valid"]:
                return self._paint(f"first check: lost ({details['reason']})", RED)
            case "lost":
                return self._paint(f"told: token {event.token} is lost ({details['reason']})", RED)
            case "late-write":
                return self._paint(
                    f"  posts {event.entry} all the same, late, with token {event.token} …", RED
                )
            case "refused":
                return self._paint(
                    f"  … refused: the ledger has seen token {details['newest']}, and this is {event.token}",
                    RED,
                )
            case "left":
                return self._paint(f"left its turn: lost ({details['reason']})", RED)
            case "done":
                return self._paint("nothing left to post", DIM)
            case "failed":
                return self._paint(str(details["error"]), RED)
        return None
