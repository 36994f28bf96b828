"""One of several workers that post the month's entries, one at a time, under one lock."""

from __future__ import annotations

import forelock

from ledger import Entry, Ledger, StaleToken, read_entries
from link import Link


def main() -> None:
    link = Link()
    job = link.job
    entries = read_entries(job.entries)
    ledger = Ledger(job.database, job.lock)
    with forelock.Client(job.connect, session_timeout=job.session, tick=job.tick, label=job.name) as client:
        mutex = client.mutex(job.lock)
        while len(ledger.posted()) < len(entries):
            link.say("waiting")
            try:
                with mutex.acquire(timeout=30) as held:
                    take_turn(held, ledger, entries, link)
            except StaleToken as refusal:
                link.say("refused", token=refusal.token, newest=refusal.newest)
            except forelock.LockLost as loss:
                link.say("left", reason=loss.reason)
    link.say("done")


def take_turn(held: forelock.HeldLock, ledger: Ledger, entries: list[Entry], link: Link) -> None:
    """Posts the next few entries while the lock is ours."""
    link.say("granted", token=held.token)
    held.on_lost(lambda reason: link.say("lost", token=held.token, reason=reason))

    posted = ledger.begin_turn(held.token)
    unposted = [entry for entry in entries if entry.id not in posted]
    for entry in unposted[: link.job.batch]:
        if not held.is_valid():
            return  # and leaving the block says why
        # The lock is ours. It need not be one line later: a process can be stopped in between, for any length
        # of time, and no check is close enough to the write. So the ledger compares the token.
        link.about_to_post(held, entry.id)
        ledger.post(held.token, entry, link.job.name)
        link.say("posted", token=held.token, entry=entry.id)
    link.handing_back(held)


if __name__ == "__main__":
    main()
