"""Measures step times and exit codes of a real job while its watch breaks: is the job harmed?

Each round runs the same job once under every condition: alone, watched, and watched by agents and
towers that are killed, stopped, or left without disk or memory after half of the steps. Only steps
after that moment count. Prints their median and p95, each the median over the rounds, and their
ratios to the job alone in the same round. "alone again" is the same condition twice: it shows how
much of a ratio is noise.

`--check` exits 1 if an exit code changed or a median is more than MAX_RATIO of the job alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from latency import p95
from timed_job import EXIT_CODE

from watchtower.drills.children import Child, wait_for_url
from watchtower.service.interpreter import module_command

RANKS = 2
DEADLINE_S = 60.0
MAX_RATIO = 1.05
"""The noise of two shared cores is as large as this."""
NOTHING = 1 << 20
"""Bytes of address space, less than any process has: every request for more memory fails."""

Break = Callable[[Child, Child], None]
"""Breaks tower or agent."""


def send(number: signal.Signals, *, to: str) -> Break:
    return lambda tower, agent: {"tower": tower, "agent": agent}[to].signal(number)


def limit(kind: int, amount: int) -> Break:
    def set_limits(tower: Child, agent: Child) -> None:
        for child in (tower, agent):
            resource.prlimit(child.pid, kind, (amount, amount))

    return set_limits


CONDITIONS: dict[str, Break | None] = {
    "alone": None,
    "alone again": None,
    "watched": lambda tower, agent: None,
    "agent killed": send(signal.SIGKILL, to="agent"),
    "agent stopped": send(signal.SIGSTOP, to="agent"),
    "tower killed": send(signal.SIGKILL, to="tower"),
    "tower stopped": send(signal.SIGSTOP, to="tower"),
    "no disk for either": limit(resource.RLIMIT_FSIZE, 0),
    "no memory for either": limit(resource.RLIMIT_AS, NOTHING),
}


class Run:
    """One job under one condition, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[Child] = []

    def start(self, name: str, words: Sequence[str], **environment: str) -> Child:
        self.children.append(Child(name, words, self.folder, environment=environment))
        return self.children[-1]

    def start_watch(self) -> tuple[Child, Child]:
        serve = module_command("watchtower", "serve", "--port", "0", "--data-dir", "data")
        tower = self.start("tower", serve)
        url = wait_for_url(tower, DEADLINE_S)
        match = f"WATCHTOWER_JOB={self.folder.name}"
        run = module_command("agent", "run", "--tower", url, "--port", "0", "--match", match)
        agent = self.start("agent", run)
        wait_for_url(agent, DEADLINE_S)
        return tower, agent

    def start_job(self, steps: int, step_s: float) -> list[Child]:
        plan = {"steps": steps, "step_s": step_s, "jitter": 0.0}
        (self.folder / "plan.json").write_text(json.dumps(plan))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        program = str(Path(__file__).with_name("timed_job.py"))
        return [
            self.start(
                f"rank-{rank}",
                [sys.executable, "-I", program, "plan.json", f"times-{rank}.json"],
                WATCHTOWER_JOB=self.folder.name,
                RANK=str(rank),
                WORLD_SIZE=str(RANKS),
                LOCAL_RANK=str(rank),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
            )
            for rank in range(RANKS)
        ]

    def wait(self, job: list[Child], condition: Callable[[], bool]) -> None:
        until = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > until:
                raise SystemExit("the job does not come on:\n" + "\n".join(p.tail() for p in job))
            time.sleep(0.05)

    def end(self) -> None:
        for child in self.children:
            child.end(patience_s=0)


@dataclass
class Outcome:
    """The results under one condition, one item per run if not described otherwise."""

    step_times: list[list[float]] = field(default_factory=list)
    """Step times of all ranks in the second half."""
    exit_codes: list[int | None] = field(default_factory=list)
    """One for each rank and run."""
    ends: list[str] = field(default_factory=list)
    """The state of tower and agent when the job ended; each case once."""
    watch_cores: list[float] = field(default_factory=list)
    """CPU that tower and agent used together in the second half, in cores."""

    def add(self, other: Outcome) -> None:
        self.step_times += other.step_times
        self.exit_codes += other.exit_codes
        self.ends = sorted({*self.ends, *other.ends})
        self.watch_cores += other.watch_cores


def cpu_s(child: Child) -> float:
    """Return the CPU seconds of a process; 0 if it was already waited for."""
    try:
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def describe_end(code: int | None) -> str:
    return "runs" if code is None else f"ended ({code})"


def run_once(breaking: Break | None, steps: int, step_s: float) -> Outcome:
    """Run the job once, and break its watch in the middle."""
    with tempfile.TemporaryDirectory(prefix="harm-") as name:
        run = Run(Path(name))
        try:
            watch = run.start_watch() if breaking else ()
            job = run.start_job(steps, step_s)
            run.wait(job, lambda: "half" in job[0].output.read_text())
            before = [cpu_s(child) for child in watch]
            began = time.monotonic()
            if breaking:
                breaking(*watch)
            run.wait(job, lambda: all(child.exit_code() is not None for child in job))
            lasted_s = time.monotonic() - began
            after = [cpu_s(child) for child in watch]
            used = [max(0.0, end - start) for start, end in zip(before, after, strict=True)]
            times: list[float] = []
            for rank in range(RANKS):
                file = run.folder / f"times-{rank}.json"
                times += json.loads(file.read_text())[steps // 2 :] if file.exists() else []
            return Outcome(
                step_times=[times],
                exit_codes=[child.exit_code() for child in job],
                ends=[f"{child.name} {describe_end(child.exit_code())}" for child in watch],
                watch_cores=[sum(used) / lasted_s],
            )
        finally:
            run.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument(
        "--only", default=",".join(CONDITIONS), help="names of conditions; `alone` is always one"
    )
    parser.add_argument("--step", type=float, default=0.02, help="length of a step in seconds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 when the job was harmed")
    args = parser.parse_args()
    wanted = {"alone", *args.only.split(",")}
    if unknown := wanted - CONDITIONS.keys():
        parser.error(f"unknown condition: {', '.join(sorted(unknown))}")
    names = [name for name in CONDITIONS if name in wanted]
    outcomes = {name: Outcome() for name in names}
    for number in range(args.rounds):
        # Another order in each round, so that other load on the machine affects all conditions
        # equally.
        turned = names[number % len(names) :] + names[: number % len(names)]
        for name in turned:
            outcomes[name].add(run_once(CONDITIONS[name], args.steps, args.step))
            print(f"round {number + 1}: {name}", file=sys.stderr)
    rows = [describe(name, outcomes[name], outcomes["alone"].step_times) for name in names]
    if args.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print("  ".join(f"{key}={value}" for key, value in row.items()))
    harmed = [row for row in rows if not row["same_exit_codes"] or row["median_ratio"] > MAX_RATIO]
    return 1 if args.check and harmed else 0


def describe(name: str, outcome: Outcome, alone: list[list[float]]) -> dict[str, object]:
    mine = outcome.step_times
    return {
        "condition": name,
        "steps": sum(map(len, mine)),
        "median_ms": round(1000 * median(map(median, mine)), 3),
        "median_ratio": ratio(median, mine, alone),
        "p95_ms": round(1000 * median(map(p95, mine)), 3),
        "p95_ratio": ratio(p95, mine, alone),
        "same_exit_codes": set(outcome.exit_codes) == {EXIT_CODE},
        "watch_cores": round(median(outcome.watch_cores), 4),
        "watch": ", ".join(outcome.ends),
    }


def ratio(
    measure: Callable[[list[float]], float], mine: list[list[float]], alone: list[list[float]]
) -> float:
    """Return the median of the ratio over the rounds, because the machine changes between
    rounds.
    """
    rounds = zip(mine, alone, strict=True)
    return round(median(measure(own) / measure(other) for own, other in rounds), 4)


if __name__ == "__main__":
    raise SystemExit(main())
