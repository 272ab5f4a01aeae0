"""Kills the tower with SIGKILL at random moments of incidents, repeatedly, and restarts it.

The tower process, its data folder and its port are real. Imagined nodes report and dump over HTTP
(`imagined.py`). Prints a summary line; exits 1 if one of these conditions is false at the end:

* Every acknowledged batch of dumps is in the store.
* Every hang is exactly one incident, with the right rank and cause.
* No incident of a recovered job is open.
* No start needed a person.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from imagined import NODES, RANKS, Job, Node

from watchtower.commands.client import ClientError, TowerClient
from watchtower.service.interpreter import module_command

DETECTION = """[detection]
suspect_floor_s = 1.0
suspect_factor = 3
hung_floor_s = 0.8
hung_factor = 2
settle_s = 0.4
silence_s = 3
vanish_s = 3
"""
"""The same settings at about eight times the speed: a hang is an incident after two seconds."""

CAUSES = ("dataloader_stall", "process_stopped", "process_died")
MOMENTS = ("stall", "upload", "suspect", "hung", "mend", "recovered")
START_DEADLINE_S = 60.0
STAGE_DEADLINE_S = 60.0
"""Limit of a stage of a hang in seconds, however often the tower is killed meanwhile."""

MOMENT_DEADLINE_S = 3.0
BREATH_S = 2.5
"""Longest pause between two kills. A hang needs two seconds of one tower to become an incident."""


@dataclass
class Findings:
    """The events of a run, and the failures."""

    hangs: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    slowest_start_s: float = 0.0
    violations: list[str] = field(default_factory=list)


class TowerProcess:
    """Successive towers on the same folder and port."""

    def __init__(self, folder: Path, findings: Findings) -> None:
        self._folder, self._findings = folder, findings
        self._config = folder / "tower.toml"
        self._config.write_text(DETECTION, "utf-8")
        self._log = (folder / "tower.log").open("ab")
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a tower and wait until it listens. Raises SystemExit if it does not."""
        begun = time.monotonic()
        words = ["serve", "--port", str(self.port), "--config", str(self._config)]
        words += ["--data-dir", str(self._folder / "data")]
        command = module_command("watchtower", *words)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log)
        guard = threading.Timer(START_DEADLINE_S, self._process.kill)
        guard.start()
        line = self._process.stdout.readline().decode().strip()
        guard.cancel()
        if not line:
            log = (self._folder / "tower.log").read_text("utf-8", "replace")
            raise SystemExit(f"the tower does not start:\n{log[-3000:]}")
        took = time.monotonic() - begun
        self._findings.slowest_start_s = max(self._findings.slowest_start_s, took)
        self.port = int(line.rpartition(":")[2])

    def kill(self) -> None:
        """End it as a loss of power would."""
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def stop(self) -> float:
        """End it normally; return the seconds that took."""
        begun = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        self._process.stdout.close()
        self._log.close()
        return time.monotonic() - begun


class Driver(threading.Thread):
    """Makes one job hang and continue, and checks the tower's incidents."""

    def __init__(self, job: Job, port: int, lock: threading.Lock, loop: CrashLoop) -> None:
        super().__init__(daemon=True)
        self.job, self._lock, self._loop = job, lock, loop
        self._client = TowerClient(f"http://127.0.0.1:{port}", timeout_s=2.0)
        self.truth: list[tuple[int, str]] = []

    def run(self) -> None:
        """Hang repeatedly until the loop has killed enough. The last hang is watched to its end."""
        while not self._loop.is_over.is_set():
            if not self._wait("steps", lambda v: v["status"] in QUIET and self._is_paced()):
                return
            time.sleep(random.uniform(0.5, 2.0))
            if not self._hang_once():
                return

    def _is_paced(self) -> bool:
        """Return whether the tower knows the pace. A hang in the first steps is another case."""
        return self._client.job(self.job.name)["typical_step_s"] > 0

    def _hang_once(self) -> bool:
        culprit, cause = random.randrange(RANKS), random.choice(CAUSES)
        with self._lock:
            self.job.stall(culprit, cause)
        self.truth.append((culprit, cause))
        self._loop.findings.hangs[cause] += 1
        self._loop.record("stall")
        if not self._wait("suspicion", lambda v: v["status"] in ("suspect", "hung")):
            return False
        self._loop.record("suspect")
        # A restarted tower may show the incident of the hang before for a moment.
        if not self._wait("incident", lambda v: v["status"] == "hung" and _says(v, culprit, cause)):
            return False
        self._loop.record("hung")
        time.sleep(random.uniform(0.0, 2.0))
        if not self._wait("right verdict", lambda v: _says(v, culprit, cause)):
            return False
        with self._lock:
            self.job.mend(self._loop.pids)
        self._loop.record("mend")
        if not self._wait("recovery", lambda v: v["status"] in QUIET):
            return False
        self._loop.record("recovered")
        return True

    def _wait(self, what: str, is_it) -> bool:
        until, verdict = time.monotonic() + STAGE_DEADLINE_S, None
        while time.monotonic() < until:
            try:
                verdict = self._client.verdict(self.job.name)
                if is_it(verdict):
                    return True
            except ClientError:
                pass
            time.sleep(0.05)
        said = None if verdict is None else {k: verdict[k] for k in ("status", "cause", "summary")}
        self._loop.findings.violations.append(
            f"{self.job.name}: no {what} in {STAGE_DEADLINE_S:g} s of {self.truth[-1:]}: {said}"
        )
        return False


QUIET = ("healthy", "recovered", "slow")


def _says(verdict: dict, culprit: int, cause: str) -> bool:
    ranks = [suspect["rank"] for suspect in verdict["suspects"]]
    return (ranks, verdict["cause"]) == ([culprit], cause)


class CrashLoop:
    """Jobs that hang, nodes that report, and a tower that is killed."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.findings = Findings()
        self.is_over = threading.Event()
        self.pids = itertools.count(1000)
        self._folder = folder
        self._tower = TowerProcess(folder, self.findings)
        self._lock = threading.Lock()
        self._jobs = [Job(f"job-{number}") for number in range(jobs)]
        self._moments = {moment: threading.Event() for moment in MOMENTS}

    def record(self, moment: str) -> None:
        """Record an event of a job."""
        self._moments[moment].set()

    def run(self, kills: int) -> Findings:
        """Kill the tower this many times, then check the result."""
        for job in self._jobs:
            job.launch(self.pids)
        self._tower.start()
        nodes = [Node(n, self._tower.port, self._jobs, self._lock) for n in range(NODES)]
        drivers = [Driver(job, self._tower.port, self._lock, self) for job in self._jobs]
        for node in nodes:
            node.on_upload = lambda _: self.record("upload")
        for thread in (*nodes, *drivers):
            thread.start()
        for number in range(kills):
            if not self.findings.violations:
                self._kill_once(nodes, number)
        self._finish(nodes, drivers)
        return self.findings

    def _finish(self, nodes: list[Node], drivers: list[Driver]) -> None:
        self.is_over.set()
        for driver in drivers:
            driver.join(5 * STAGE_DEADLINE_S)
        for node in nodes:
            node.stop()
        stopped_s = self._tower.stop()
        if stopped_s > 5:
            self.findings.violations.append(f"SIGTERM took {stopped_s:.1f} s")
        self._check_dumps({ident for node in nodes for ident in node.acknowledged})
        self._check_incidents(drivers)

    def _kill_once(self, nodes: list[Node], number: int) -> None:
        moment = random.choice(MOMENTS)
        self._moments[moment].clear()
        self._moments[moment].wait(MOMENT_DEADLINE_S)
        time.sleep(random.choice((0.0, random.uniform(0, 0.05), random.uniform(0, 1.2))))
        self._tower.kill()
        self.findings.kills[moment] += 1
        time.sleep(random.choice((0.0, random.uniform(0, 1.0))))
        if number % 4 == 3 and not any(job.cause == "process_died" for job in self._jobs):
            random.choice(nodes).restart()
        self._tower.start()
        time.sleep(random.uniform(0, BREATH_S))

    def _check_dumps(self, acknowledged: set[str]) -> None:
        with sqlite3.connect(self._folder / "data" / "watchtower.db") as db:
            stored = {ident for (ident,) in db.execute("SELECT id FROM dumps")}
        db.close()
        self.findings.kills["acknowledged dumps"] = len(acknowledged)
        if lost := acknowledged - stored:
            self.findings.violations.append(f"{len(lost)} acknowledged batches are not stored")

    def _check_incidents(self, drivers: list[Driver]) -> None:
        query = "SELECT status, closed_at, verdict FROM incidents WHERE job = ? ORDER BY opened_at"
        with sqlite3.connect(self._folder / "data" / "watchtower.db") as db:
            for driver in drivers:
                rows = db.execute(query, (driver.job.name,)).fetchall()
                self._compare(driver, rows)
        db.close()

    def _compare(self, driver: Driver, rows: list[tuple[str, float | None, str]]) -> None:
        name, say = driver.job.name, self.findings.violations.append
        if len(rows) != len(driver.truth):
            say(f"{name}: {len(rows)} incidents of {len(driver.truth)} hangs {driver.truth}")
        for (status, closed_at, text), (culprit, cause) in zip(rows, driver.truth, strict=False):
            if closed_at is None:
                say(f"{name}: an incident is still open ({status})")
            if not _says(verdict := json.loads(text), culprit, cause):
                say(f"{name}: rank {culprit} {cause}, but: {verdict['summary']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, help="folder for the data and the tower's log")
    args = parser.parse_args()
    seed = random.randrange(10**6) if args.seed is None else args.seed
    random.seed(seed)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="crash-loop-") as folder:
        found = CrashLoop(args.keep or Path(folder), args.jobs).run(args.kills)
    dumps = found.kills.pop("acknowledged dumps", 0)
    print(
        f"kills={found.kills.total()} ({', '.join(f'{k} {n}' for k, n in found.kills.items())})  "
        f"hangs={found.hangs.total()}  dumps={dumps}  slowest_start={found.slowest_start_s:.1f}s  "
        f"took={time.monotonic() - begun:.0f}s  seed={seed}  violations={len(found.violations)}"
    )
    for violation in found.violations:
        print(f"VIOLATION {violation}")
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
