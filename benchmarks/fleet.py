"""Measures the time from a hang of thousands of ranks to its cause, with a whole fleet over HTTP.

Agents are simulated in separate processes, each node with its own connection and address. They
report while an imagined job makes steps. Then one rank hangs and every node dumps its eight ranks
twice. There are three ways:

* jitter: agents report as often as the tower requests, and spread their dumps over its jitter,
* at once: all dumps come at the same moment,
* storm: the same, and the agents report once a second, give up a dump after 5 s and send it again.

Printed are:

* seconds from suspicion to the right cause and to hung, and from the last accepted dump,
* accepted and refused dumps,
* time of replies inside the tower, and delays of its event loop,
* memory of all its processes, and CPU time of tower and simulators.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from agent.dumps.triggers import ROUND_GAP_JITTERS, ROUND_GAP_S
from benchmarks import fleet_timeline
from benchmarks.fleet_timeline import Mark
from tests.synthesis.evidence import Maker
from tests.synthesis.faults import LOADING
from tests.synthesis.layout import Layout
from tests.synthesis.messages import write_batches, write_reports
from tests.synthesis.timeline import run
from watchtower.service.calls import timeout
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Beat

LAYOUTS = {
    "64": Layout(tensor=8, data=4, pipeline=2),
    "256": Layout(tensor=8, data=8, pipeline=4),
    "2048": Layout(tensor=8, data=16, pipeline=16),
    "8192": Layout(tensor=8, data=64, pipeline=16),
    "16384": Layout(tensor=8, data=128, pipeline=16),
}
JOB = "imagined"
WARM_S = 20.0
"""Seconds of steps before the hang: some to learn the pace, some to measure the steady cost."""
REPORT_WAIT_S = 5.0
"""Seconds that an agent waits for the reply to a report."""
DEADLINE_S = 5.0
"""Seconds without a step until a rank is late, for steps of one second: `suspect_floor_s`."""
WATCH_S = 60.0
"""Seconds to watch after the hang."""
ASK_EVERY_S = 0.2
"""Seconds between two requests for the verdict."""
TIMELINE_PAST_S = 3.0
STEP, AGE_S = 7_777_777, 123.25
"""Values in the template of a report that are replaced."""
SIMULATORS = 2
DECODE = msgspec.json.Decoder(ReportReply).decode


@dataclass
class Node:
    """One node's agent: what it sends, and the results."""

    number: int
    report: bytes
    batches: list[bytes]
    refused: Counter[int] = field(default_factory=Counter)
    accepted_at: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Way:
    """How agents behave."""

    text: str
    spreads: bool = False
    """Whether they spread their dumps."""
    obeys: bool = True
    """Whether they report as rarely as the tower asks."""
    give_up_s: float = 20.0
    """Seconds that they wait for the receipt of a dump, as agents do."""


WAYS = {
    "jitter": Way("spread as the tower asks for", spreads=True),
    "at once": Way("all at once"),
    "storm": Way("all at once, agents obey nothing", obeys=False, give_up_s=5.0),
}


def imagine(name: str) -> tuple[list[Node], int]:
    """Return the nodes of a job, and the rank that hangs."""
    layout = LAYOUTS[name]
    rank = layout.size // 3
    case = Maker(layout).make(run(layout, stops={rank: 1}), {rank: LOADING})
    case = replace(case, job=JOB)
    beat = Beat(step=STEP, age_s=AGE_S, advanced=1, interval_s=1.0)
    reports = [msgspec.json.encode(report) for report in write_reports([case], beat)]
    rounds = [[msgspec.json.encode(b) for b in write_batches(case, n)] for n in (1, 2)]
    both = zip(reports, *rounds, strict=True)
    return [Node(n, report, [one, two]) for n, (report, one, two) in enumerate(both)], rank


def with_beat(
    report: bytes, step: int, age_s: float, interval_s: float, *, advanced: bool = True
) -> bytes:
    """Return the report of an imagined node with this last step of all its ranks."""
    body = report.replace(b"%d" % STEP, b"%d" % step).replace(b"%g" % AGE_S, b"%.3f" % age_s)
    body = body.replace(b'"interval_s":1.0,"ranks"', b'"interval_s":%g,"ranks"' % interval_s)
    return body if advanced else body.replace(b'"advanced":1', b'"advanced":0')


class Agent:
    """Simulates one node: reports over one connection, dumps over another, as an agent."""

    def __init__(self, node: Node, address: tuple[str, int], began: float, way: Way) -> None:
        self.node, self._way, self._began = node, way, began
        self._hangs_at = began + WARM_S
        self._share = random.Random(node.number).random() if way.spreads else 0.0
        self._jitter_s = 0.0
        self._reports = Connection(node.number, address, REPORT_WAIT_S)
        self._dumps = Connection(node.number, address, way.give_up_s)

    async def play(self) -> None:
        await asyncio.gather(self._report_on(), *(self._dump(number) for number in (0, 1)))
        self._reports.close()
        self._dumps.close()

    async def _report_on(self) -> None:
        second, interval_s = 0, 1.0
        offset = random.Random(self.node.number).random()
        while (at := self._began + second + offset) < self._hangs_at + WATCH_S:
            await asyncio.sleep(at - time.monotonic())
            now = time.monotonic()
            # Steps are whole seconds since the start. The last one is at the hang.
            step = int(min(now, self._hangs_at) - self._began)
            age_s = now - (self._began + step)
            advanced = step < int(self._hangs_at - self._began) or age_s < 1.0
            body = with_beat(self.node.report, step, age_s, interval_s, advanced=advanced)
            status, reply, _ = await self._reports.post("/ingest/v1/report", body)
            if status == 200 and (second < 4 or self._hangs_at - 4 < now < self._hangs_at):
                said = DECODE(reply)
                if self._way.obeys:
                    interval_s = max(1.0, said.report_interval_s)
                self._jitter_s = max((each.jitter_s for each in said.deadlines), default=0.0)
            second += math.ceil(interval_s)

    async def _dump(self, number: int) -> None:
        await asyncio.sleep(self._hangs_at - time.monotonic())
        jitter_s = self._jitter_s if self._way.obeys else 0.0
        gap_s = max(ROUND_GAP_S, ROUND_GAP_JITTERS * jitter_s)
        wait_s = DEADLINE_S + self._share * jitter_s + number * gap_s
        await asyncio.sleep(self._hangs_at + wait_s - time.monotonic())
        while time.monotonic() < self._hangs_at + WATCH_S:
            body = self.node.batches[number]
            status, _, again_s = await self._dumps.post("/ingest/v1/dumps", body)
            if status == 200:
                self.node.accepted_at.append(time.monotonic())
                return
            self.node.refused[status] += 1
            await asyncio.sleep(again_s)


class Connection:
    """One connection of a node, from the node's own address. It carries one request at a time."""

    def __init__(
        self, number: int, address: tuple[str, int], give_up_s: float = REPORT_WAIT_S
    ) -> None:
        self._give_up_s = give_up_s
        self._own = f"127.{1 + number // 65536}.{number // 256 % 256}.{number % 256}"
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()

    def close(self) -> None:
        """Close it, if it is open."""
        if self._streams is not None:
            self._streams[1].close()

    async def post(self, path: str, body: bytes) -> tuple[int, bytes, float]:
        """Return the status, the reply, and when to retry. The status is 0 without a reply."""
        async with self._lock:
            try:
                async with timeout(self._give_up_s):
                    return await self._exchange(path, body)
            except (OSError, asyncio.IncompleteReadError):
                self.close()
                self._streams = None
                return 0, b"", 1.0

    async def _exchange(self, path: str, body: bytes) -> tuple[int, bytes, float]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                *self._address, local_addr=(self._own, 0), limit=1 << 20
            )
        reader, writer = self._streams
        line = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{line}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        reply = await reader.readexactly(int(fields.get(b"content-length", b"0")))
        return int(head.split(b" ", 2)[1]), reply, float(fields.get(b"retry-after", b"1"))


def simulate(
    nodes: Sequence[Node], address: tuple[str, int], began: float, way: Way, notes: str
) -> None:
    """Simulate some nodes in this process; write the number of refused messages to a file."""

    async def play() -> None:
        await asyncio.gather(*(Agent(n, address, began, way).play() for n in nodes))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())
    refused = sum((node.refused for node in nodes), Counter[int]())
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {"refused": refused, "accepted_at": [node.accepted_at for node in nodes]}
    Path(notes).write_text(json.dumps(told | {"cpu_s": used.ru_utime + used.ru_stime}))


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of all its descendants."""
    total = 0.0
    for each in family(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def pss_mb(pid: int) -> float:
    """Return the memory of a process and its descendants in MB; shared memory counts once."""
    total = 0
    for each in family(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def family(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:
                continue
    return found


def ask(url: str) -> dict[str, object] | None:
    """Return the verdict; None if the tower does not answer in time."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/jobs/{JOB}/verdict", timeout=10) as reply:
            verdict: dict[str, object] = json.loads(reply.read())
    except OSError:
        return None
    return verdict


@dataclass
class Watched:
    """Observations from outside while the fleet runs, in seconds after the hang."""

    suspect_s: float | None = None
    right_s: float | None = None
    hung_s: float | None = None
    longest_s: float = 0.0
    """Longest reply to a request for the verdict."""
    unanswered: int = 0
    """Requests for the verdict without a reply."""
    steady_cores: float = 0.0
    peak_mb: float = 0.0


def watch(url: str, pid: int, began: float, rank: int) -> Watched:
    hangs_at, seen = began + WARM_S, Watched()
    time.sleep(max(0.0, began + WARM_S / 2 - time.monotonic()))
    before = cpu_s(pid)
    time.sleep(max(0.0, hangs_at - time.monotonic()))
    seen.steady_cores = (cpu_s(pid) - before) / (WARM_S / 2)
    measured_at = 0.0
    while time.monotonic() < hangs_at + WATCH_S and seen.hung_s is None:
        time.sleep(ASK_EVERY_S)
        if time.monotonic() - measured_at > 1.0:  # it stops the process for some milliseconds
            seen.peak_mb, measured_at = max(seen.peak_mb, pss_mb(pid)), time.monotonic()
        asked_at = time.monotonic()
        verdict, at_s = ask(url), time.monotonic() - hangs_at
        seen.longest_s = max(seen.longest_s, time.monotonic() - asked_at)
        if verdict is None:
            seen.unanswered += 1
            continue
        status, suspects = verdict["status"], verdict["suspects"]
        assert isinstance(suspects, list)
        if status in ("suspect", "hung"):
            seen.suspect_s = seen.suspect_s or at_s
        if [each["rank"] for each in suspects] == [rank]:
            seen.right_s = seen.right_s or at_s
        if status == "hung":
            seen.hung_s = at_s
    return seen


def play(name: str, way: Way) -> Watched:
    """Run one fleet on a tower, and print the observations."""
    nodes, rank = imagine(name)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        notes = f"{folder}/tower.json"
        command = [sys.executable, "-m", "benchmarks.fleet_tower", f"{folder}/data", notes]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tower:
            assert tower.stdout is not None
            url = tower.stdout.readline().strip()
            address = ("127.0.0.1", int(url.rpartition(":")[2]))
            began = time.monotonic() + 3.0
            fork = multiprocessing.get_context("fork")
            parts = [
                fork.Process(
                    target=simulate,
                    args=(nodes[n::SIMULATORS], address, began, way, f"{folder}/{n}.json"),
                )
                for n in range(SIMULATORS)
            ]
            for part in parts:
                part.start()
            try:
                seen = watch(url, tower.pid, began, rank)
                for part in parts:
                    part.join()
            finally:
                tower.send_signal(signal.SIGTERM)
        told = [json.loads(Path(f"{folder}/{n}.json").read_text()) for n in range(SIMULATORS)]
        inside = json.loads(Path(notes).read_text())
        marks = fleet_timeline.read(Path(folder))
    load = os.getloadavg()[0]
    print(f"{name} ranks on {len(nodes)} nodes, dumps {way.text}, load {load:.1f}:")
    late = None if seen.suspect_s is None or seen.right_s is None else seen.right_s - seen.suspect_s
    print(
        f"  suspect {say(seen.suspect_s)}, right cause {say(late)} later, hung {say(seen.hung_s)}"
    )
    print(f"  the verdict came after {seen.longest_s:.1f} s at most; {seen.unanswered} times not")
    hang_at = began + WARM_S
    print_dumps(told, hang_at, seen)
    for path, took in sorted(inside["took"].items()):
        if path.startswith("/ingest"):
            print_times(f"{path}, stepping", [s for at, s, _ in took if began + 3 < at < hang_at])
            print_times(f"{path}, hanging", [s for at, s, _ in took if at > hang_at])
    print_times("loop lag, stepping", [s for at, s in inside["lags"] if began + 3 < at < hang_at])
    print_times("loop lag, hanging", [s for at, s in inside["lags"] if at > hang_at])
    share = sum(each["cpu_s"] for each in told) / (WARM_S + WATCH_S)
    print(
        f"  tower {seen.steady_cores:.2f} cores while it steps, {seen.peak_mb:.0f} MB PSS at most; "
        f"simulators {share:.2f} cores",
        flush=True,
    )
    print_timeline(marks, hang_at, seen)
    return seen


def print_dumps(told: Sequence[dict[str, Any]], hang_at: float, seen: Watched) -> None:
    """Print what became of the dumps, seconds after the hang."""
    of_nodes = [sorted(at) for each in told for at in each["accepted_at"]]
    accepted = sorted(at for node in of_nodes for at in node)
    refused = Counter[str]()
    for each in told:
        refused.update(each["refused"])
    print(f"  dumps accepted {len(accepted)} of {2 * len(of_nodes)}, not accepted {dict(refused)}")
    if not accepted:
        return
    firsts = [node[0] for node in of_nodes if node]
    early = sum(node[1] < max(firsts) for node in of_nodes if len(node) > 1)
    late = "never" if seen.right_s is None else f"{seen.right_s + hang_at - max(firsts):.1f} s"
    print(
        f"  first dumps of {len(firsts)} of {len(of_nodes)} nodes accepted by "
        f"{max(firsts) - hang_at:.1f} s, all by {accepted[-1] - hang_at:.1f} s; right cause {late} "
        f"after the last first dump; {early} second dumps before it"
    )


def print_timeline(marks: Sequence[Mark], hang_at: float, seen: Watched) -> None:
    """Print what happened until a second after the right cause: seconds after the suspicion, and
    the CPU seconds of that process since its last line."""
    since = next((mark.at for mark in marks if mark.what == "suspect"), hang_at)
    until = hang_at + (seen.right_s or WATCH_S) + TIMELINE_PAST_S
    used: dict[str, float] = {}
    for mark in marks:
        if hang_at < mark.at < until:
            cpu = mark.cpu_s - used.get(mark.who, mark.cpu_s)
            used[mark.who] = mark.cpu_s
            print(
                f"  {mark.at - since:7.2f} s  {mark.who:<9} {mark.what:<24} cpu {cpu:5.2f} s"
                f"  {mark.more}",
                flush=True,
            )


def say(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"


def print_times(what: str, seconds: Sequence[float]) -> None:
    if seconds:
        ordered = sorted(1000 * s for s in seconds)
        p50, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
        print(f"  {what:<32} p50 {p50:7.1f} ms, p99 {p99:7.1f} ms, most {ordered[-1]:7.1f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="2048,16384", help=f"comma-separated: {list(LAYOUTS)}")
    parser.add_argument("--only", choices=list(WAYS), help="one of the ways")
    args = parser.parse_args()
    was_named = True
    for name in args.sizes.split(","):
        for title, way in WAYS.items():
            if args.only in (None, title):
                seen = play(name, way)
                was_named = was_named and seen.right_s is not None
    return 0 if was_named else 1


if __name__ == "__main__":
    raise SystemExit(main())
