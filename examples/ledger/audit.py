"""What must hold after the story, checked from what it left behind: the ledger and the recorded events."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ledger import Entry, Line

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Event:
    """Something that a worker told, or that the director did, at a time in nanoseconds."""

    at: int
    who: str
    what: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def token(self) -> int:
        return int(self.details["token"])

    @property
    def entry(self) -> str:
        return str(self.details["entry"])

    @property
    def is_valid_claim(self) -> bool:
        """Whether the worker could rely on the lock at this moment."""
        return float(self.details["remaining"]) > 0

    @property
    def good_until(self) -> int:
        """Until when the worker could rely on the lock if it heard nothing more."""
        return self.at + int(float(self.details["remaining"]) * SECOND)


@dataclass(frozen=True)
class Posted:
    """An entry as it stands in the ledger."""

    entry: Entry
    token: int
    worker: str


@dataclass(frozen=True)
class Record:
    """Everything that a run has left behind."""

    entries: list[Entry]
    """As the file has them."""
    posted: list[Posted]
    """As the ledger has them, in the order of posting."""
    fence: int
    """The largest token that the ledger has seen."""
    events: list[Event]
    leftovers: list[str]
    """The lock nodes that were there after everybody had ended."""
    session: float
    tick: float
    slack: float
    """What is allowed for the machine, in seconds, when a time is checked."""

    def told(self, *what: str, by: str | None = None) -> list[Event]:
        """The events of a kind in the order of their times."""
        found = [event for event in self.events if event.what in what and by in (None, event.who)]
        return sorted(found, key=lambda event: event.at)


@dataclass(frozen=True)
class Claim:
    """The time for which a worker could rely on its lock."""

    who: str
    token: int
    start: int
    end: int


def read_ledger(path: Path, lock: str) -> tuple[list[Posted], int]:
    """What stands in the ledger in the order of posting, and the largest token that it has seen."""
    db = sqlite3.connect(path)
    lines: dict[str, list[Line]] = {}
    for id, account, cents in db.execute("SELECT entry, account, cents FROM line ORDER BY rowid"):
        lines.setdefault(id, []).append(Line(account, cents))
    posted = [
        Posted(Entry(id, date, text, tuple(lines.get(id, []))), token, worker)
        for id, date, text, token, worker in db.execute(
            "SELECT id, date, text, token, worker FROM entry ORDER BY position"
        )
    ]
    fence = db.execute("SELECT token FROM fence WHERE lock = ?", (lock,)).fetchone()
    db.close()
    return posted, 0 if fence is None else fence[0]


def claims(record: Record) -> list[Claim]:
    """Every grant as a stretch of time, in the order of its start.

    It ends where the lock was handed back, or when the lease ran out as last told before the loss. The times
    within it were taken before the question was asked, so that no stretch is longer than what was promised.
    """
    found = []
    for grant in record.told("granted"):
        own = [
            e
            for e in record.events
            if e.who == grant.who and e.details.get("token") == grant.details["token"]
        ]
        looks = [e for e in own if "remaining" in e.details and e.is_valid_claim]
        end = max([grant.at] + [e.good_until for e in looks])
        end = min([end] + [e.at for e in own if e.what == "lost"])
        back = [e.at for e in looks if e.what == "handing-back"]
        end = back[0] if back else max([end] + [e.at for e in looks])
        found.append(Claim(grant.who, grant.token, grant.at, end))
    return found


@dataclass(frozen=True)
class Freeze:
    """What happened around a worker that was stopped."""

    who: str
    token: int
    entry: str
    froze: int
    woke: int
    first_check: Event | None
    """The first look at the lock after waking."""
    told: int | None
    """When it was known to the worker that the lock was lost."""
    lease_end: int
    """When the lease ran out, as the worker last knew before it was stopped."""
    next_grant: Event | None


def freezes(record: Record) -> list[Freeze]:
    ends = {(claim.who, claim.token): claim.end for claim in claims(record)}
    found = []
    for froze, woke in zip(record.told("froze"), record.told("woke"), strict=False):
        who, token = froze.details["worker"], froze.token
        after = [e for e in record.told("checked", "lost", by=who) if e.at >= woke.at and e.token == token]
        checks = [e for e in after if e.what == "checked"]
        losses = [e.at for e in after if e.what == "lost" or not e.details["valid"]]
        grants = [e for e in record.told("granted") if e.at >= froze.at and e.token != token]
        found.append(
            Freeze(
                who,
                token,
                froze.entry,
                froze.at,
                woke.at,
                checks[0] if checks else None,
                min(losses, default=None),
                ends.get((who, token), froze.at),
                grants[0] if grants else None,
            )
        )
    return found


def posted_once(record: Record) -> Iterator[str]:
    counts = Counter(posted.entry.id for posted in record.posted)
    known = {entry.id for entry in record.entries}
    yield from (f"{id} was posted {n} times" for id, n in counts.items() if n > 1)
    yield from (f"{id} was not posted" for id in sorted(known - counts.keys()))
    yield from (f"{id} was posted and is not in the file" for id in sorted(counts.keys() - known))


def posted_in_order(record: Record) -> Iterator[str]:
    place = {entry.id: n for n, entry in enumerate(record.entries)}
    ids = [posted.entry.id for posted in record.posted if posted.entry.id in place]
    yield from (f"{b} was posted after {a}" for a, b in pairwise(ids) if place[b] < place[a])


def balanced(record: Record) -> Iterator[str]:
    wanted = {entry.id: entry for entry in record.entries}
    for posted in record.posted:
        entry = posted.entry
        total = sum(line.cents for line in entry.lines)
        if total != 0:
            yield f"{entry.id} is out of balance by {money(total)}"
        if entry != wanted.get(entry.id, entry):
            yield f"{entry.id} is not what the file says"


def tokens_never_go_back(record: Record) -> Iterator[str]:
    for a, b in pairwise(record.posted):
        if b.token < a.token:
            yield f"{b.entry.id} was accepted with token {b.token} after {a.entry.id} with token {a.token}"
    largest = max((posted.token for posted in record.posted), default=0)
    if record.fence < largest:
        yield f"the ledger remembers token {record.fence}, and token {largest} has posted"


def ledger_agrees(record: Record) -> Iterator[str]:
    told = Counter((event.who, event.token, event.entry) for event in record.told("posted"))
    stands = Counter((posted.worker, posted.token, posted.entry.id) for posted in record.posted)
    granted = {(event.who, event.token) for event in record.told("granted")}
    for who, token, entry in told - stands:
        yield f"{who} says that it posted {entry} with token {token}, and the ledger does not"
    for who, token, entry in stands - told:
        yield f"the ledger has {entry} by {who} with token {token}, and {who} did not say so"
    for who, token in {(who, token) for who, token, _ in stands} - granted:
        yield f"{who} posted with token {token}, which it was never granted"


def tokens_rise(record: Record) -> Iterator[str]:
    for a, b in pairwise(claims(record)):
        if b.token <= a.token:
            yield f"{b.who} was granted token {b.token} after {a.who} had token {a.token}"


def claims_do_not_overlap(record: Record) -> Iterator[str]:
    if not record.told("granted"):
        yield "nobody was granted the lock"
    latest: Claim | None = None
    for claim in claims(record):
        if latest is not None and claim.start < latest.end:
            both = (latest.end - claim.start) / SECOND
            pair = f"{claim.who} (token {claim.token}) and {latest.who} (token {latest.token})"
            yield f"{pair} held at the same time for {both:.3f} s"
        if latest is None or claim.end > latest.end:
            latest = claim


def lost_stays_lost(record: Record) -> Iterator[str]:
    over: dict[tuple[str, int], int] = {}
    for event in record.told("lost", "checked"):
        if event.what == "lost" or not event.details["valid"]:
            over.setdefault((event.who, event.token), event.at)
    for event in record.told("about-to-post", "checked", "handing-back"):
        end = over.get((event.who, event.token))
        if end is not None and event.at > end and event.is_valid_claim:
            yield f"{event.who}: token {event.token} was lost, and valid again at {event.what}"


def woken_is_told(record: Record) -> Iterator[str]:
    found = freezes(record)
    if not found:
        yield "nobody was frozen and woken"
    for freeze in found:
        if freeze.first_check is None:
            yield f"{freeze.who} never looked at its lock after waking"
        elif freeze.first_check.details["valid"]:
            yield f"{freeze.who} was told that it still held the lock when it woke"
        later = [event.at for event in record.told("posted", by=freeze.who) if event.at >= freeze.woke]
        if later and (freeze.told is None or min(later) < freeze.told):
            yield f"{freeze.who} posted after waking before it was told of the loss"


def late_writes_refused(record: Record) -> Iterator[str]:
    tries = record.told("late-write")
    refusals = {(event.who, event.token) for event in record.told("refused")}
    accepted = {(posted.worker, posted.token, posted.entry.id) for posted in record.posted}
    if not tries:
        yield "no late write was tried"
    for event in tries:
        if (event.who, event.token, event.entry) in accepted:
            yield f"the late write of {event.entry} by {event.who} with token {event.token} was accepted"
        elif (event.who, event.token) not in refusals:
            yield f"the late write of {event.entry} by {event.who} with token {event.token} had no answer"
    for event in record.told("refused"):
        if event.token >= int(event.details["newest"]):
            yield f"{event.who} was refused with token {event.token}, which was the newest"


def next_is_granted(record: Record) -> Iterator[str]:
    bound = record.session + record.tick + record.slack
    for freeze in freezes(record):
        if freeze.next_grant is None:
            yield f"nobody was granted the lock after {freeze.who} froze"
            continue
        took = (freeze.next_grant.at - freeze.froze) / SECOND
        if took > bound:
            yield f"{freeze.next_grant.who} was granted the lock {took:.2f} s after {freeze.who} froze"


def nothing_left(record: Record) -> Iterator[str]:
    yield from (f"{node} is still there" for node in record.leftovers)


INVARIANTS: list[tuple[str, Callable[[Record], Iterable[str]]]] = [
    ("every entry is posted exactly once", posted_once),
    ("in the file's order", posted_in_order),
    ("each as the file says, and in balance", balanced),
    ("tokens never go back from one posted entry to the next", tokens_never_go_back),
    ("tokens rise from grant to grant", tokens_rise),
    ("the ledger holds what the workers say they posted, no more", ledger_agrees),
    ("no two workers could rely on the lock at the same time", claims_do_not_overlap),
    ("a lost lock stays lost", lost_stays_lost),
    ("the frozen worker's first check says lost, before it posts again", woken_is_told),
    ("every late write is refused", late_writes_refused),
    ("the next one is granted within session + tick", next_is_granted),
    ("no lock node is left", nothing_left),
]


def problems(record: Record) -> dict[str, list[str]]:
    """Each invariant with what speaks against it."""
    return {name: list(check(record)) for name, check in INVARIANTS}


def money(cents: int) -> str:
    return f"{cents / 100:,.2f}"
