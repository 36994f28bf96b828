"""The whole story on a real ZooKeeper: it holds; and with a ledger that ignores tokens, it does not."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTKIT = os.environ.get("FORELOCK_TESTKIT")

pytestmark = pytest.mark.skipif(TESTKIT is None, reason="FORELOCK_TESTKIT does not name the testkit's binary")

# A worker that writes whatever was written since: it compares no token, and lets no key stand in the way.
RECKLESS = """
import sys
sys.path.insert(0, {here!r})
import ledger, worker

class Reckless(ledger.Ledger):
    def _pass_fence(self, token):
        pass

    def post(self, token, entry, name):
        self._db.execute(
            "REPLACE INTO entry (id, date, text, token, worker) VALUES (?, ?, ?, ?, ?)",
            (entry.id, entry.date, entry.text, token, name),
        )

worker.Ledger = Reckless
worker.main()
"""


def tell(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "run.py"), "--testkit", str(TESTKIT), *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "TMPDIR": str(folder)},
        timeout=400,
        check=False,
    )


def test_the_story_holds(tmp_path: Path) -> None:
    story = tell(tmp_path)
    assert story.returncode == 0, story.stdout + story.stderr
    assert "stale writes refused   1 of 1" in story.stdout
    assert "BROKEN" not in story.stdout


def test_without_the_token_it_does_not(tmp_path: Path) -> None:
    script = tmp_path / "reckless.py"
    script.write_text(RECKLESS.format(here=str(HERE)), encoding="utf-8")
    command = shlex.join([sys.executable, str(script)])
    story = tell(tmp_path, *(f"--worker={name}={command}" for name in ("ada", "ben", "cleo")))
    assert story.returncode == 1, story.stdout + story.stderr
    assert "BROKEN  every late write is refused" in story.stdout
    assert "BROKEN  tokens never go back" in story.stdout
    # What the lock alone promises held all the same.
    assert "held    no two workers could rely on the lock at the same time" in story.stdout
    assert "held    the frozen worker's first check says lost" in story.stdout
