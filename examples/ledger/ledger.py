"""A double-entry ledger in SQLite that looks at the token of whoever writes."""

from __future__ import annotations

import csv
import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SCHEMA = Path(__file__).with_name("schema.sql")


@dataclass(frozen=True)
class Line:
    account: str
    cents: int
    """Debit above zero, credit below."""


@dataclass(frozen=True)
class Entry:
    id: str
    date: str
    text: str
    lines: tuple[Line, ...]

    @property
    def cents(self) -> int:
        """What the entry moves: the sum of its debits."""
        return sum(line.cents for line in self.lines if line.cents > 0)


class StaleToken(Exception):
    """The ledger has seen a larger token, so the lock is somebody else's by now. Nothing was written."""

    def __init__(self, token: int, newest: int) -> None:
        super().__init__(f"token {token} is older than {newest}, which the ledger has seen")
        self.token = token
        self.newest = newest


def read_entries(path: str | Path) -> list[Entry]:
    """The entries of a CSV file with one line of an entry in each row."""
    with open(path, newline="", encoding="utf-8") as file:
        grouped = itertools.groupby(
            csv.DictReader(file), key=lambda row: (row["entry"], row["date"], row["text"])
        )
        return [
            Entry(*head, tuple(Line(row["account"], int(row["cents"])) for row in rows))
            for head, rows in grouped
        ]


def create(path: str | Path) -> None:
    """Makes an empty ledger."""
    db = sqlite3.connect(path)
    db.executescript(SCHEMA.read_text(encoding="utf-8"))
    db.close()


class Ledger:
    """The ledger as a worker sees it. ``lock`` names the lock whose tokens count."""

    def __init__(self, path: str | Path, lock: str) -> None:
        self._db = sqlite3.connect(path, timeout=10, isolation_level=None)
        self._lock = lock

    def begin_turn(self, token: int) -> set[str]:
        """Shows the token to the ledger, and returns the ids of what is posted.

        Both in one transaction: what is read here can't be changed any more by a holder from before.
        """
        with self._transaction():
            self._pass_fence(token)
            return self.posted()

    def post(self, token: int, entry: Entry, worker: str) -> None:
        """Posts an entry. Raises :class:`StaleToken`, and writes nothing, if a larger token has been seen."""
        with self._transaction():
            self._pass_fence(token)
            self._db.execute(
                "INSERT INTO entry (id, date, text, token, worker) VALUES (?, ?, ?, ?, ?)",
                (entry.id, entry.date, entry.text, token, worker),
            )
            self._db.executemany(
                "INSERT INTO line (entry, account, cents) VALUES (?, ?, ?)",
                [(entry.id, line.account, line.cents) for line in entry.lines],
            )

    def posted(self) -> set[str]:
        """The ids of what is posted."""
        return {id for (id,) in self._db.execute("SELECT id FROM entry")}

    def _pass_fence(self, token: int) -> None:
        """Compares the token with the largest seen, and advances that; an equal one is the same grant."""
        changed = self._db.execute(
            "INSERT INTO fence (lock, token) VALUES (?, ?)"
            " ON CONFLICT (lock) DO UPDATE SET token = excluded.token WHERE excluded.token >= fence.token",
            (self._lock, token),
        ).rowcount
        if changed == 0:
            (newest,) = self._db.execute("SELECT token FROM fence WHERE lock = ?", (self._lock,)).fetchone()
            raise StaleToken(token, newest)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
