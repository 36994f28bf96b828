"""The ledger refuses what is stale, and the audit notices what should not be there."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from audit import INVARIANTS, SECOND, Event, Record, claims, freezes, problems, read_ledger
from ledger import SCHEMA, Entry, Ledger, Line, StaleToken, create, read_entries

LOCK = "/locks/test"
CSV = Path(__file__).with_name("entries.csv")


def entry(number: int) -> Entry:
    return Entry(
        f"E{number}", "2025-10-31", "rent", (Line("rent", 100 * number), Line("bank", -100 * number))
    )


ENTRIES = [entry(number) for number in range(1, 6)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    create(path)
    return path


class TestTheLedger:
    def test_refuses_a_smaller_token_and_writes_nothing(self, database: Path) -> None:
        ledger = Ledger(database, LOCK)
        ledger.post(5, entry(1), "ada")
        with pytest.raises(StaleToken) as refusal:
            ledger.post(4, entry(2), "ben")
        assert (refusal.value.token, refusal.value.newest) == (4, 5)
        posted, fence = read_ledger(database, LOCK)
        assert [p.entry for p in posted] == [entry(1)]
        assert fence == 5

    def test_takes_the_same_token_again(self, database: Path) -> None:
        ledger = Ledger(database, LOCK)
        ledger.post(5, entry(1), "ada")
        ledger.post(5, entry(2), "ada")
        assert ledger.posted() == {"E1", "E2"}

    def test_refuses_the_older_holder_from_the_moment_that_a_turn_begins(self, database: Path) -> None:
        old, new = Ledger(database, LOCK), Ledger(database, LOCK)
        old.begin_turn(4)
        assert new.begin_turn(5) == set()
        with pytest.raises(StaleToken):
            old.post(4, entry(1), "ada")
        with pytest.raises(StaleToken):
            old.begin_turn(4)

    def test_keeps_the_tokens_of_other_locks_apart(self, database: Path) -> None:
        Ledger(database, "/locks/other").begin_turn(9)
        Ledger(database, LOCK).post(1, entry(1), "ada")

    def test_does_not_advance_the_token_when_the_entry_is_refused(self, database: Path) -> None:
        ledger = Ledger(database, LOCK)
        ledger.post(5, entry(1), "ada")
        with pytest.raises(sqlite3.IntegrityError):
            ledger.post(6, entry(1), "ben")
        assert read_ledger(database, LOCK)[1] == 5


def test_the_entries_of_the_month_are_in_order_and_in_balance() -> None:
    entries = read_entries(CSV)
    ids = [entry.id for entry in entries]
    assert len(ids) == 40
    assert ids == sorted(set(ids))
    assert [entry.id for entry in entries if sum(line.cents for line in entry.lines)] == []


# A small story: ada posts E1 and freezes before E2; ben posts E2 and E3; ada wakes, and posts the rest later.


def event(at: float, who: str, what: str, **details: object) -> Event:
    return Event(int(at * SECOND), who, what, details)


STORY = [
    event(1.0, "ada", "granted", token=10),
    event(1.1, "ada", "about-to-post", token=10, entry="E1", remaining=3.5),
    event(1.2, "ada", "checked", token=10, valid=True, remaining=3.4, reason=None),
    event(1.3, "ada", "posted", token=10, entry="E1"),
    event(1.4, "ada", "about-to-post", token=10, entry="E2", remaining=3.2),
    event(1.5, "director", "froze", worker="ada", token=10, entry="E2"),
    event(5.4, "ben", "granted", token=12),
    event(5.5, "ben", "about-to-post", token=12, entry="E2", remaining=3.6),
    event(5.6, "ben", "posted", token=12, entry="E2"),
    event(5.7, "director", "woke", worker="ada", token=10),
    event(5.8, "ada", "checked", token=10, valid=False, remaining=0.0, reason="lease_elapsed"),
    event(5.81, "ada", "lost", token=10, reason="lease_elapsed"),
    event(5.82, "ada", "late-write", token=10, entry="E2"),
    event(5.9, "ada", "refused", token=10, newest=12),
    event(6.0, "ben", "posted", token=12, entry="E3"),
    event(6.1, "ben", "handing-back", token=12, remaining=3.5),
    event(6.2, "ada", "granted", token=14),
    event(6.3, "ada", "posted", token=14, entry="E4"),
    event(6.4, "ada", "posted", token=14, entry="E5"),
    event(6.5, "ada", "handing-back", token=14, remaining=3.5),
]


class Run:
    """What a story left behind, to be forged."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "forged.sqlite"
        self.events = list(STORY)
        self.leftovers: list[str] = []
        with sqlite3.connect(self.path) as db:
            # Without the key, so that more can be forged than the ledger would let in.
            db.executescript(SCHEMA.read_text(encoding="utf-8").replace(" UNIQUE", ""))
        ledger = Ledger(self.path, LOCK)
        for told in STORY:
            if told.what == "posted":
                ledger.post(told.token, entry(int(told.entry[1:])), told.who)

    def sql(self, statement: str) -> None:
        with sqlite3.connect(self.path) as db:
            assert db.execute(statement).rowcount == 1

    def insert(self, number: int, token: int, who: str) -> None:
        """Posts past the fence, and says so."""
        self.sql(
            "INSERT INTO entry (id, date, text, token, worker)"
            f" VALUES ('E{number}', '2025-10-31', 'rent', {token}, '{who}')"
        )
        self.events.append(event(7, who, "posted", token=token, entry=f"E{number}"))

    def replace(self, who: str, what: str, at: float | None = None, nth: int = 0, **details: object) -> None:
        place = [n for n, told in enumerate(self.events) if (told.who, told.what) == (who, what)][nth]
        told = self.events[place]
        time = told.at if at is None else int(at * SECOND)
        self.events[place] = dataclasses.replace(told, at=time, details={**told.details, **details})

    def remove(self, who: str, what: str) -> None:
        kept = [told for told in self.events if (told.who, told.what) != (who, what)]
        assert len(kept) < len(self.events)
        self.events = kept

    def record(self) -> Record:
        posted, fence = read_ledger(self.path, LOCK)
        return Record(ENTRIES, posted, fence, self.events, self.leftovers, session=4, tick=0.2, slack=1)

    def broken(self) -> set[str]:
        return {name for name, found in problems(self.record()).items() if found}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_good_story_breaks_nothing(run: Run) -> None:
    assert problems(run.record()) == {name: [] for name, _ in INVARIANTS}


def test_a_claim_ends_with_the_lease_that_was_told_last(run: Run) -> None:
    ends = [(claim.who, claim.token, round(claim.end / SECOND, 3)) for claim in claims(run.record())]
    assert ends == [("ada", 10, 4.6), ("ben", 12, 6.1), ("ada", 14, 6.5)]
    (freeze,) = freezes(run.record())
    assert round(freeze.lease_end / SECOND, 3) == 4.6
    assert freeze.next_grant is not None
    assert freeze.next_grant.who == "ben"


FORGERIES: list[tuple[str, Callable[[Run], None], str]] = [
    ("an entry twice", lambda run: run.insert(5, 14, "ada"), "every entry is posted exactly once"),
    ("an entry of nobody's", lambda run: run.insert(6, 14, "ada"), "every entry is posted exactly once"),
    (
        "an entry missing",
        lambda run: run.sql("DELETE FROM entry WHERE id = 'E3'"),
        "every entry is posted exactly once",
    ),
    (
        "two entries the other way round",
        lambda run: run.sql("UPDATE entry SET position = 9 WHERE id = 'E4'"),
        "in the file's order",
    ),
    (
        "a cent too much",
        lambda run: run.sql("UPDATE line SET cents = cents + 1 WHERE entry = 'E2' AND account = 'rent'"),
        "each as the file says, and in balance",
    ),
    (
        "another account",
        lambda run: run.sql("UPDATE line SET account = 'cash' WHERE entry = 'E2' AND account = 'rent'"),
        "each as the file says, and in balance",
    ),
    (
        "a stale write accepted",
        lambda run: run.insert(2, 10, "ada"),
        "tokens never go back from one posted entry to the next",
    ),
    ("a stale write accepted", lambda run: run.insert(2, 10, "ada"), "every late write is refused"),
    (
        "a fence set back",
        lambda run: run.sql("UPDATE fence SET token = 11"),
        "tokens never go back from one posted entry to the next",
    ),
    (
        "a smaller token granted later",
        lambda run: run.replace("ben", "granted", token=9),
        "tokens rise from grant to grant",
    ),
    (
        "a token granted twice",
        lambda run: run.replace("ben", "granted", token=10),
        "tokens rise from grant to grant",
    ),
    (
        "a write under a token of nobody's",
        lambda run: run.sql("UPDATE entry SET token = 13 WHERE id = 'E3'"),
        "the ledger holds what the workers say they posted, no more",
    ),
    (
        "a write that nobody reported",
        lambda run: run.remove("ben", "posted"),
        "the ledger holds what the workers say they posted, no more",
    ),
    (
        "a grant within the lease of the frozen one",
        lambda run: run.replace("ben", "granted", at=4.59),
        "no two workers could rely on the lock at the same time",
    ),
    (
        "a grant before the lock was handed back",
        lambda run: run.replace("ada", "granted", at=6.09, nth=1),
        "no two workers could rely on the lock at the same time",
    ),
    (
        "a frozen one that still believes when it wakes",
        lambda run: run.replace("ada", "checked", nth=1, valid=True, remaining=0.5),
        "no two workers could rely on the lock at the same time",
    ),
    (
        "a frozen one that still believes when it wakes",
        lambda run: run.replace("ada", "checked", nth=1, valid=True, remaining=0.5),
        "the frozen worker's first check says lost, before it posts again",
    ),
    (
        "no grant at all",
        lambda run: run.events.clear(),
        "no two workers could rely on the lock at the same time",
    ),
    (
        "a lost lock that comes back",
        lambda run: run.events.append(event(5.85, "ada", "checked", token=10, valid=True, remaining=1.0)),
        "a lost lock stays lost",
    ),
    (
        "no check after waking",
        lambda run: run.remove("ada", "checked"),
        "the frozen worker's first check says lost, before it posts again",
    ),
    (
        "a post after waking, before the loss was told",
        lambda run: run.replace("ada", "posted", at=5.75, nth=1),
        "the frozen worker's first check says lost, before it posts again",
    ),
    (
        "nobody frozen",
        lambda run: run.remove("director", "froze"),
        "the frozen worker's first check says lost, before it posts again",
    ),
    (
        "a late write without an answer",
        lambda run: run.remove("ada", "refused"),
        "every late write is refused",
    ),
    ("no late write", lambda run: run.remove("ada", "late-write"), "every late write is refused"),
    (
        "the newest token refused",
        lambda run: run.replace("ada", "refused", newest=10),
        "every late write is refused",
    ),
    (
        "a grant that came too late",
        lambda run: run.replace("director", "froze", at=0.15),
        "the next one is granted within session + tick",
    ),
    (
        "a node left over",
        lambda run: run.leftovers.append(f"{LOCK}/_c_x-lock-0000000000"),
        "no lock node is left",
    ),
]


@pytest.mark.parametrize(
    ("forge", "invariant"),
    [pytest.param(forge, invariant, id=f"{name}: {invariant}") for name, forge, invariant in FORGERIES],
)
def test_the_audit_notices(run: Run, forge: Callable[[Run], None], invariant: str) -> None:
    forge(run)
    assert invariant in run.broken()


def test_every_invariant_has_a_forgery_that_breaks_it() -> None:
    assert {invariant for _, _, invariant in FORGERIES} == {name for name, _ in INVARIANTS}
