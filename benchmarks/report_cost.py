"""Compares what a report costs two versions of the tower: CPU time of the whole process.

    python -m benchmarks.report_cost --base COMMIT

The other version is the working tree. A tower of each version runs, and both get the same messages
over real HTTP, one after the other: each imagined node has its own connection, and reports eight
ranks that make steps. Agents report as often as the tower asks, or twice as often. Only the CPU
times of two processes in the same seconds are compared, because other programs on the machine make
all times longer. They contain everything that a tower does, also its checks of the job.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import uvloop

from benchmarks.fleet import LAYOUTS, Connection, Node, cpu_s, imagine, with_beat
from watchtower.fleet.report_interval import report_interval_s

WARM_S = 4.0
"""Seconds of reports before the measured ones. The job's pace is known after three steps."""

STOP_S = 10.0


@dataclass(frozen=True)
class Measured:
    """One tower while it received reports."""

    cpu_s: float
    reports: int
    refused: int
    seconds: float

    @property
    def each_us(self) -> float:
        """CPU time of one report in microseconds."""
        return 1e6 * self.cpu_s / max(1, self.reports)


@contextlib.contextmanager
def running_tower(source: Path) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """Run a tower from a folder with its source."""
    path = os.pathsep.join((str(source), str(source / "heartbeat")))
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "watchtower", "serve", "--port", "0", "--data-dir", data]
        environment = {**os.environ, "PYTHONPATH": path}
        with subprocess.Popen(
            command,
            cwd=source,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as tower:
            try:
                assert tower.stdout is not None
                port = int(tower.stdout.readline().strip().rpartition(":")[2])
                yield tower, ("127.0.0.1", port)
            finally:
                tower.send_signal(signal.SIGTERM)
                try:
                    tower.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    tower.kill()


@contextlib.contextmanager
def source_of(commit: str) -> Iterator[Path]:
    """Check out a commit of this repository into a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        git = ["git", "-C", str(Path(__file__).parents[1]), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(source), commit], check=True)
        try:
            yield source
        finally:
            subprocess.run([*git, "remove", "--force", str(source)], check=True)


def measure(
    sources: Sequence[Path], nodes: Sequence[Node], every_s: float, seconds: float
) -> list[Measured]:
    """Return what a tower of each version needs for the reports of these nodes."""
    with contextlib.ExitStack() as stack:
        towers = [stack.enter_context(running_tower(source)) for source in sources]
        counts = [Counter[int]() for _ in towers]
        began = time.monotonic() + 0.5

        async def report(node: Node, offset: float) -> None:
            connections = [Connection(node.number, address) for _, address in towers]
            at = began + offset * every_s
            while at < began + WARM_S + seconds:
                await asyncio.sleep(at - time.monotonic())
                now = time.monotonic()
                body = with_beat(node.report, int(now - began) + 1, (now - began) % 1.0, every_s)
                for number, connection in enumerate(connections):
                    status, _, _ = await connection.post("/ingest/v1/report", body)
                    counts[number][status] += at >= began + WARM_S
                at = max(at + every_s, time.monotonic())
            for connection in connections:
                connection.close()

        async def play() -> list[Measured]:
            sending = [report(node, node.number / len(nodes)) for node in nodes]
            all_sent = asyncio.gather(*sending)
            await asyncio.sleep(began + WARM_S - time.monotonic())
            before, since = [cpu_s(tower.pid) for tower, _ in towers], time.monotonic()
            await all_sent
            took = time.monotonic() - since
            return [
                Measured(cpu_s(tower.pid) - used, count.total(), count.total() - count[200], took)
                for (tower, _), used, count in zip(towers, before, counts, strict=True)
            ]

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(play())


def main() -> int:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default="HEAD", help="commit to compare with")
    parser.add_argument("--size", default="2048", choices=list(LAYOUTS), help="ranks")
    parser.add_argument("--rounds", type=int, default=3, help="of both versions")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    nodes, _ = imagine(args.size)
    asked_s = report_interval_s(len(nodes)) or 1.0
    print(f"{args.size} ranks on {len(nodes)} nodes, load {os.getloadavg()[0]:.1f}", flush=True)
    with source_of(args.base) as base:
        for how, every_s in (("obey", asked_s), ("report twice as often", asked_s / 2)):
            sources = (base, Path(__file__).parents[1])
            rounds = [measure(sources, nodes, every_s, args.seconds) for _ in range(args.rounds)]
            print(f"agents that {how}, one report every {every_s:g} s:")
            for name, found in zip(
                (args.base, "working tree"), zip(*rounds, strict=True), strict=True
            ):
                each = sorted(one.each_us for one in found)
                cores = median(one.cpu_s / one.seconds for one in found)
                print(
                    f"  {name:<14} {median(each):6.0f} us of CPU a report ({each[0]:.0f} to "
                    f"{each[-1]:.0f}), {cores:.2f} cores for "
                    f"{median(one.reports / one.seconds for one in found):.0f} reports a second, "
                    f"{sum(one.refused for one in found)} not accepted"
                )
            ratios = sorted(new.cpu_s / old.cpu_s for old, new in rounds)
            print(
                f"  ratio {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
