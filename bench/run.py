"""Forelock and its peers, one after the other on one ZooKeeper server, round by round.

What counts are the ratios within a round: the machine and the server's state were then much the same for
everyone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VERSION = "3.9.5"
TICK_MS = 2000
SHAPES = {
    **{f"one-{workers}": ("one", workers, 10) for workers in (10, 50, 200, 1000)},
    **{f"own-{workers}": ("own", workers, 8) for workers in (64, 256, 1024)},
}
"""By name: one lock that all want or one for each, how many workers, and how many sessions they share."""
PEERS = {
    "bare": "the requests of a lock and nothing else, in Rust",
    "forelock": "Forelock in Rust",
    "python": "Forelock in Python, a thread for each worker",
    "curator": "Curator's InterProcessMutex in Java, a thread for each worker",
    "kazoo": "kazoo's Lock in Python, a thread for each worker",
}
BASES = ("bare", "curator")
"""To whom the others are compared."""
FIGURES = {"per_second": "pairs/s", "cpu_ms_each": "cpu ms each"}
LIMIT = 120.0
"""How many seconds a peer may take beyond those that are measured: for everyone's first turn and last."""


class Server:
    """A ZooKeeper, started through the testkit's binary. It ends when we do."""

    def __init__(self, testkit: str) -> None:
        command = [testkit, "serve", "--version", VERSION, "--tick-ms", str(TICK_MS)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("ZooKeeper did not start; what the testkit says about it is above")
        self.connect: str = json.loads(line)["connect"]

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()


@dataclass(frozen=True)
class Run:
    """What one peer did in one round, or why it could not."""

    round: int
    shape: str
    who: str
    per_second: float = 0.0
    cpu_ms_each: float = 0.0
    failed: str = ""
    load: float = 0.0
    """How many processes wanted a processor in the minute before."""

    @property
    def measured(self) -> bool:
        return not self.failed


def measure(command: list[str], server: Server, run: Run, seconds: int) -> Run:
    """Runs one peer, in a process of its own."""
    how, workers, sessions = SHAPES[run.shape]
    path = f"/bench/{run.shape}/{run.round}/{run.who}"
    words = ["lock", run.who, server.connect, path, str(workers), str(sessions), how, str(seconds)]
    facts = {"round": run.round, "shape": run.shape, "who": run.who, "load": round(os.getloadavg()[0], 2)}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command + words, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            told, _ = process.communicate(timeout=seconds + LIMIT)
            ended = f"ended with {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            told, ended = "", f"not done in {seconds + LIMIT:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        errors.seek(0)
        complaint = errors.read().strip().splitlines()
    if ended:
        return Run(**facts, failed=": ".join([ended, *complaint[-1:]]))
    line = json.loads(told.strip().splitlines()[-1])
    if line["per_second"] == 0:
        return Run(**facts, failed=f"not one hand-off in {seconds} s")
    return Run(**facts, per_second=line["per_second"], cpu_ms_each=line["cpu_ms_each"])


@dataclass(frozen=True)
class Spread:
    """What the rounds gave: the least, the median and the most."""

    min: float
    median: float
    max: float

    @staticmethod
    def of(values: Iterable[float]) -> Spread | None:
        values = sorted(values)
        return Spread(values[0], statistics.median(values), values[-1]) if values else None

    def __str__(self) -> str:
        return "..".join(figure(value) for value in (self.min, self.median, self.max))


def figure(value: float) -> str:
    """Three significant digits, and no exponent."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def ratios(runs: list[Run], who: str, base: str, of: Callable[[Run], float]) -> Spread | None:
    """How many times the base's figure, in each round that has both."""
    measured = {(run.round, run.who): of(run) for run in runs if run.measured}
    rounds = {run.round for run in runs}
    both = [(measured.get((number, who)), measured.get((number, base))) for number in rounds]
    return Spread.of(mine / other for mine, other in both if mine is not None and other)


def summarize(runs: list[Run], shape: str, who: str) -> dict[str, Any]:
    """The row of one peer in one shape."""
    runs = [run for run in runs if run.shape == shape]
    mine = [run for run in runs if run.who == who]
    row: dict[str, Any] = {"shape": shape, "who": who}
    for name in FIGURES:
        row[name] = Spread.of(getattr(run, name) for run in mine if run.measured)
        for base in BASES:
            if who != base:
                row[f"{name}_to_{base}"] = ratios(runs, who, base, attrgetter(name))
    row["rounds"] = sum(run.measured for run in mine)
    row["failed"] = [run.failed for run in mine if not run.measured]
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """For people: one line for each peer and shape."""
    columns = {"shape": "", "who": ""}
    for name, title in FIGURES.items():
        columns[name] = title
        columns.update({f"{name}_to_{base}": f"to {base}" for base in BASES})
    columns = {name: title for name, title in columns.items() if any(row.get(name) for row in rows)}
    lines = [list(columns.values())]
    for row in rows:
        lines.append([str(row[name]) if row.get(name) else "" for name in columns])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    failures = ["", *(failure(row["failed"]) for row in rows)]
    return "\n".join(
        "  ".join([*map(str.ljust, line, widths), note]).rstrip()
        for line, note in zip(lines, failures, strict=True)
    )


def failure(failed: list[str]) -> str:
    return f"{len(failed)} failed: {failed[0]}" if failed else ""


def commands(chosen: argparse.Namespace) -> dict[str, list[str]]:
    """How to start each peer."""
    java = ["java", "-cp", f"{chosen.curator}/*", "forelock.bench.CuratorPeer"]
    python = [chosen.python, str(HERE / "peer.py")]
    rust = [chosen.bench]
    return {"bare": rust, "forelock": rust, "python": python, "curator": java, "kazoo": python}


def names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Reads names that are separated by spaces or commas."""

    def read(text: str) -> list[str]:
        given = text.replace(",", " ").split()
        if strange := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"no such thing: {strange[0]}; there is {', '.join(known)}")
        return given or list(known)

    return read


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures Forelock and its peers on one ZooKeeper.")
    parser.add_argument("--testkit", required=True, help="the binary forelock-testkit")
    parser.add_argument("--bench", required=True, help="the binary forelock-bench")
    parser.add_argument("--python", required=True, help="a Python that has forelock and kazoo")
    parser.add_argument("--curator", required=True, help="the folder with Curator's jars and its peer")
    parser.add_argument("--report", required=True, type=Path, help="where the JSON goes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3, help="how long each is measured")
    parser.add_argument("--who", type=names(PEERS), default=list(PEERS), help=", ".join(PEERS))
    parser.add_argument("--shapes", type=names(SHAPES), default=list(SHAPES), help=", ".join(SHAPES))
    return parser.parse_args()


def measure_all(chosen: argparse.Namespace, server: Server) -> list[Run]:
    peers = commands(chosen)
    # The first one would pay for what the server's JVM has yet to compile.
    measure(peers["bare"], server, Run(0, "own-256", "bare"), chosen.seconds)
    runs: list[Run] = []
    for number in range(1, chosen.rounds + 1):
        for shape in chosen.shapes:
            # Each round begins with another peer, so that nobody always follows the same one.
            first = (number - 1) % len(chosen.who)
            for who in chosen.who[first:] + chosen.who[:first]:
                run = measure(peers[who], server, Run(number, shape, who), chosen.seconds)
                figures = (
                    f"{figure(run.per_second):>6} pairs/s  {figure(run.cpu_ms_each):>6} ms of processor each"
                )
                print(f"{number}/{chosen.rounds}  {shape:<9} {who:<9}", run.failed or figures, flush=True)
                runs.append(run)
    return runs


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server ends
    chosen = arguments()
    server = Server(chosen.testkit)
    try:
        runs = measure_all(chosen, server)
    except KeyboardInterrupt:
        print("Interrupted.")
        return 1
    finally:
        server.end()
    rows = [summarize(runs, shape, who) for shape in chosen.shapes for who in chosen.who]
    report = {
        "server": {"version": VERSION, "tick_ms": TICK_MS},
        "machine": {"processors": os.cpu_count(), "system": platform.system(), "arch": platform.machine()},
        "rounds": chosen.rounds,
        "seconds": chosen.seconds,
        "profile": "release",
        "peers": {who: PEERS[who] for who in chosen.who},
        "summary": [{name: plain(value) for name, value in row.items()} for row in rows],
        "runs": [asdict(run) for run in runs],
    }
    chosen.report.parent.mkdir(parents=True, exist_ok=True)
    chosen.report.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nrounds: {chosen.rounds} of {chosen.seconds} s; least..median..most; ratios within a round\n")
    print(table(rows))
    print(f"\nwritten: {chosen.report}")
    return 0


def plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, Spread) else value


if __name__ == "__main__":
    sys.exit(main())
