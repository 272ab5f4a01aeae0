"""A fleet for pictures: one job that hangs, of as many ranks as wanted, beside a few healthy ones.

Its agents are imagined and report over real HTTP. The evidence is that of a real layout: a rank
reads from a file, its tensor group waits for it, and the others wait for that group.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from tests.synthesis.evidence import PER_NODE, Appearance, Maker, own
from tests.synthesis.layout import Layout
from tests.synthesis.messages import write_batches, write_reports
from tests.synthesis.timeline import run
from tests.towers import JSON, RunningTower, running_tower
from tests.waiting import wait_until
from watchtower.evidence.case import Case
from watchtower.wire.dumps import KernelWait
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Beat, JobLabels, ProcessState, Report
from watchtower.wire.series import Lane, Series, SeriesBatch, SeriesOrder, encode_points

LAYOUTS = {
    8: Layout(tensor=2, data=2, pipeline=2),
    4096: Layout(tensor=8, data=64, pipeline=8),
    16384: Layout(tensor=8, data=128, pipeline=16),
}
JOB = "llama-70b-pt"
ROUND_S = 2.0
"""Seconds between two reports of a node, if this machine is fast enough."""

STEP_S = 2.0
CHECKPOINT = 1204
"""The step in which all jobs write a checkpoint."""

POINTS = 900
"""Points of a series: the last 15 minutes."""

CONFIG = """
[detection]
suspect_floor_s = 20
hung_floor_s = 10
silence_s = 120
vanish_s = 120
settle_s = 1
"""

READING = Appearance(
    frames=(
        own("read", 31, "/job/shards.py"),
        own("__next__", 88, "/job/data.py"),
        own("train", 14, looped=True),
        own("<module>", 80),
    ),
    state=ProcessState.UNINTERRUPTIBLE,
    kernel=KernelWait(
        state=ProcessState.UNINTERRUPTIBLE,
        wchan="rpc_wait_bit_killable",
        syscall="read",
        target="/mnt/shards/0042.tar",
    ),
)


def name_nodes(case: Case, prefix: str) -> Case:
    """Return a case with nodes such as gpu-042."""
    ranks = tuple(
        replace(item, node=f"{prefix}-{item.rank // PER_NODE + 1:03}") for item in case.ranks
    )
    return replace(case, ranks=ranks)


def imagine(layout: Layout) -> Case:
    """Return the evidence of the hung job."""
    rank = layout.size * 2 // 3
    outcome = run(layout, stops={rank: 1})
    case = Maker(layout).make(outcome, {rank: READING})
    return name_nodes(replace(case, job=JOB), "gpu")


def imagine_healthy() -> list[Case]:
    """Return jobs beside it."""
    layout = Layout(tensor=2, data=4)
    case = Maker(layout).make(run(layout, stops={}), {})
    return [
        name_nodes(replace(case, job=name), f"cpu-{name[:3]}")
        for name in ("bert-base-finetune", "vit-l16-imagenet", "whisper-small")
    ]


LABELS = {
    JOB: JobLabels(
        job=JOB, scheduler="slurm", scheduler_id="48213", user="alice", partition="train"
    ),
    "bert-base-finetune": JobLabels(
        job="bert-base-finetune", scheduler="slurm", scheduler_id="48190", user="bob"
    ),
}


@dataclass
class ImaginedFleet:
    """Reports in a thread until it is stopped."""

    tower: RunningTower
    hung: Case
    healthy: list[Case] = field(default_factory=imagine_healthy)
    step: int = 1200
    _hangs_since: float | None = None
    _stops: threading.Event = field(default_factory=threading.Event)

    def hang(self) -> None:
        """No rank of the large job steps from now on."""
        self._hangs_since = time.monotonic()

    def send_dumps(self) -> None:
        """Send two rounds of dumps of all ranks."""
        connection = self._connect()
        for number in (1, 2):
            for batch in write_batches(self.hung, number):
                _post(connection, "/ingest/v1/dumps", batch)

    def run(self) -> None:
        """Report round after round."""
        connection = self._connect()
        while not self._stops.is_set():
            began = time.monotonic()
            moving = self.healthy if self._hangs_since else [*self.healthy, self.hung]
            self.step += 1
            phase = "checkpoint" if self.step == CHECKPOINT else ""
            beat = Beat(step=self.step, age_s=0.1, phase=phase, advanced=1, interval_s=STEP_S)
            for report in write_reports(moving, beat):
                self._report(connection, report)
            if self._hangs_since:
                age_s = time.monotonic() - self._hangs_since
                stuck = Beat(step=self.hung_step, age_s=age_s)
                states = {item.rank: item.state for item in self.hung.ranks}
                for report in write_reports([self.hung], stuck):
                    ranks = tuple(replace(one, state=states[one.rank]) for one in report.ranks)
                    self._report(connection, replace(report, ranks=ranks))
            else:
                self.hung_step = self.step
            self._stops.wait(max(0.0, ROUND_S - (time.monotonic() - began)))

    def stop(self) -> None:
        """Stop to report."""
        self._stops.set()

    def _report(self, connection: http.client.HTTPConnection, report: Report) -> None:
        names = dict.fromkeys(rank.job for rank in report.ranks)
        labels = tuple(LABELS[name] for name in names if name in LABELS)
        made = replace(report, interval_s=ROUND_S, jobs=labels)
        reply = _post(connection, "/ingest/v1/report", made)
        for order in msgspec.json.decode(reply, type=ReportReply).series:
            _post(connection, "/ingest/v1/series", self._write_series(report, order))

    def _write_series(self, report: Report, order: SeriesOrder) -> SeriesBatch:
        """Return what the ranks and their GPUs did: 0.5 steps a second, then nothing."""
        stalled = round(time.monotonic() - (self._hangs_since or 0.0))
        steps = [self.hung_step - max(0, POINTS - stalled - n) // 2 for n in range(POINTS)]
        series = []
        for one in report.ranks:
            if one.job != order.job or one.rank not in order.ranks:
                continue
            is_suspect = one.rank in order.suspects
            watts = [690] * (POINTS - stalled) + [96 if is_suspect else 131] * stalled
            moved = [7 if is_suspect else 5] * (POINTS - stalled) + [0] * stalled
            process = {"step": ("", 1.0, steps), "moved": ("B/s", 1e6, moved)}
            for gpu, lanes in (("", process), ("pci:0000:3b:00", {"power": ("W", 1.0, watts)})):
                made = [
                    Lane(name=name, unit=unit, scale=scale, values=encode_points(list(points)))
                    for name, (unit, scale, points) in lanes.items()
                ]
                series.append(
                    Series(
                        rank=one.rank,
                        pid=one.pid,
                        start_time=one.start_time,
                        gpu=gpu,
                        gpu_index=one.rank % PER_NODE if gpu else None,
                        lanes=tuple(made),
                    )
                )
        return SeriesBatch(
            version=report.version,
            id=f"{order.id}-{report.node}",
            node=report.node,
            job=order.job,
            incident=order.incident,
            owner=order.owner,
            held_s=0.0,
            series=tuple(series),
        )

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.tower.address, timeout=60)


def _post(connection: http.client.HTTPConnection, path: str, message: object) -> bytes:
    connection.request("POST", path, msgspec.json.encode(message), JSON)
    reply = connection.getresponse()
    body = reply.read()
    assert reply.status == 200, body
    return body


@contextmanager
def hung_fleet(folder: Path, ranks: int) -> Iterator[tuple[RunningTower, str]]:
    """Yield a tower with a hung job of so many ranks, and the id of its incident."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tower.toml").write_text(CONFIG)
    with running_tower(folder, "--config", str(folder / "tower.toml")) as tower:
        fleet = ImaginedFleet(tower, imagine(LAYOUTS[ranks]))
        thread = threading.Thread(target=fleet.run, daemon=True)
        thread.start()
        try:
            wait_until(lambda: fleet.step >= 1208, "the jobs make steps", 600)
            fleet.hang()
            wait_until(lambda: _ask(tower, JOB)["status"] == "suspect", "it is suspect", 600)
            fleet.send_dumps()
            wait_until(lambda: _ask(tower, JOB)["incident"], "the incident opens", 600)
            wait_until(
                lambda: _ask(tower, JOB)["cause"] == "uninterruptible_io",
                "the verdict is made of both dumps",
                600,
            )
            incident = _ask(tower, JOB)["incident"]
            wait_until(lambda: _ask_series(tower, incident), "its series arrive", 600)
            yield tower, incident
        finally:
            fleet.stop()
            thread.join(60)


def _ask(tower: RunningTower, job: str) -> dict:
    connection = http.client.HTTPConnection(*tower.address, timeout=60)
    connection.request("GET", f"/api/v1/jobs/{job}/verdict")
    return msgspec.json.decode(connection.getresponse().read())


def _ask_series(tower: RunningTower, incident: str) -> list:
    connection = http.client.HTTPConnection(*tower.address, timeout=60)
    connection.request("GET", f"/api/v1/incidents/{incident}/series")
    return msgspec.json.decode(connection.getresponse().read())["items"]
