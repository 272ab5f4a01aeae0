"""Measures a verdict from the evidence of a whole cluster: seconds on one core, and memory.

Imagined jobs use tensor, data and pipeline parallelism, with records of three groups and a pipeline
for each rank. Events affect one rank, all, or many. Each size runs in its own process, to measure
its own memory. After each size, the parts between the nodes' dumps and the verdict are printed,
each for all ranks.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from tests.synthesis.evidence import Maker, Recording
from tests.synthesis.faults import LOADING, imagine_cut
from tests.synthesis.layout import Layout
from tests.synthesis.messages import write_batches, write_reports
from tests.synthesis.program import Calls
from tests.synthesis.timeline import run
from watchtower.diagnoser.messages import Request, decode_case, limits_for, write_success
from watchtower.diagnoser.process import DiagnoserProcess
from watchtower.diagnoser.summaries import write_summary
from watchtower.diagnosis.diagnosis import diagnose, diagnose_picture
from watchtower.diagnosis.picture import take_picture
from watchtower.evidence.case import Case
from watchtower.fleet.fleet import Fleet
from watchtower.jobs.case_inputs import collect_case_inputs, split_case
from watchtower.jobs.condition import Stall, Why
from watchtower.jobs.detector import Detector
from watchtower.policy import Policy
from watchtower.service.daemon import put_off_full_collections
from watchtower.views.summary import summarize
from watchtower.wire.dumps import DumpBatch, SentBatch

LAYOUTS = {
    "64": Layout(tensor=2, data=8, pipeline=4),
    "1024": Layout(tensor=8, data=16, pipeline=8),
    "16384": Layout(tensor=8, data=128, pipeline=16),
    "131072": Layout(tensor=8, data=1024, pipeline=16),
}
NOW = 1000.0
LIMITS_S = {"64": 1.0, "1024": 1.0, "16384": 1.0, "131072": 10.0}


TWO_ORDERS = "two orders"
TWO_GROUPS = ("two world groups", TWO_ORDERS)
"""Events in which half of the ranks call two groups of all ranks in another order."""

SHARE_STUCK = 4
"""One in this many ranks hangs in the event that affects many: a failed file system."""


def imagine(layout: Layout, event: str) -> Case:
    """Return the case of an event in `EVENTS`."""
    recording = Recording(kept=event != "stacks only")
    if event == "network cut":
        return imagine_cut(layout, recording).case
    if event in TWO_GROUPS:
        return imagine_two_groups(layout.size, recording, is_cycle=event == TWO_ORDERS)
    stuck = [layout.size // 3]
    if event == "a quarter asleep":
        stuck = list(range(0, layout.size, SHARE_STUCK))
    outcome = run(layout, stops=dict.fromkeys(stuck, 1))
    return Maker(layout, recording).make(outcome, dict.fromkeys(stuck, LOADING))


def imagine_two_groups(size: int, recording: Recording, *, is_cycle: bool) -> Case:
    """Return the case of an event in `TWO_GROUPS`.

    Each half of the ranks waits for the other half. Without a cycle, both also wait for one rank,
    which is asleep.
    """
    layout = Layout(data=size)
    stops = {} if is_cycle else {size // 3: 0}
    outcome = run(layout, spoil=dict.fromkeys(range(1, size, 2), _last_call_first), stops=stops)
    return Maker(layout, recording).make(outcome, dict.fromkeys(stops, LOADING))


def _last_call_first(calls: Calls) -> Calls:
    return [calls[-1], *calls[:-1]]


EVENTS = (
    "stacks only",
    "one asleep",
    "network cut",
    "a quarter asleep",
    *TWO_GROUPS,
)
"""All but the first have records."""


def measure(name: str, event: str) -> tuple[float, float, str]:
    """Return seconds, megabytes that the diagnosis added to the peak, and the verdict."""
    case = imagine(LAYOUTS[name], event)
    put_off_full_collections()  # as the tower does
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    said = diagnose(case)
    took_s = time.process_time() - began
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    named = [each.rank for each in said.suspects]
    return took_s, added, f"{said.cause.value} of {named if len(named) < 4 else len(named)}"


_Made = TypeVar("_Made")


def measure_parts(name: str) -> list[tuple[str, float, float]]:
    """Return each part's description, seconds, and megabytes that it added to the peak."""
    layout, rows = LAYOUTS[name], []
    rank = layout.size // 3
    case = Maker(layout).make(run(layout, stops={rank: 1}), {rank: LOADING})
    bodies = [msgspec.json.encode(batch) for batch in write_batches(case, 1)]
    put_off_full_collections()

    def part(words: str, work: Callable[[], _Made]) -> _Made:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        made = work()
        took_s = time.process_time() - began
        added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        rows.append((words, took_s, added))
        return made

    size_mb = sum(map(len, bodies)) / 1e6
    decoder = msgspec.json.Decoder(DumpBatch)
    words = f"decode {len(bodies)} batches, {size_mb:.1f} MB"
    batches = part(words, lambda: [decoder.decode(body) for body in bodies])
    fleet = _fleet_of(case)
    sent = [SentBatch(batch, body) for batch, body in zip(batches, bodies, strict=True)]
    part("take them in", lambda: [fleet.take_dumps(each, NOW) for each in sent])
    attempt, detector = fleet.jobs[case.job].attempt, Detector(Policy())
    stall = Stall(why=Why.OVERDUE, since=NOW - 9.0, ranks=frozenset())
    inputs = part(
        "hold the evidence still",
        lambda: collect_case_inputs(attempt, fleet.nodes, detector, stall, None, NOW),
    )
    parts, held = part("split the case", lambda: split_case(inputs))
    limits = limits_for(layout.size)
    request = Request(limits=limits, parts=parts, bodies=held)
    frames = part("write the request", request.encode)
    made = part("in the process: make the case", lambda: decode_case(frames))
    picture = part("in the process: picture", lambda: take_picture(made))
    found = part("in the process: diagnose", lambda: diagnose_picture(picture))
    part("in the process: summarize", lambda: write_summary(summarize(picture, found)))
    part("in the process: all three, write", lambda: write_success(made))
    diagnoser = DiagnoserProcess()
    diagnoser.ask(request)
    began = time.monotonic()
    diagnoser.ask(request)
    rows.append(("ask the process, wall clock", time.monotonic() - began, _pss_mb(diagnoser.pid)))
    diagnoser.kill()
    return rows


def _pss_mb(pid: int) -> float:
    """Return the memory of a process (PSS) in megabytes. Shared pages count in part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _fleet_of(case: Case) -> Fleet:
    fleet = Fleet(Policy())
    for report in write_reports([case]):
        fleet.take_report(report, NOW)
    return fleet


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1024,16384,131072", help=f"of {list(LAYOUTS)}")
    parser.add_argument("--check", action="store_true", help="exit 1 when one is over its limit")
    args = parser.parse_args()
    slow = False
    print(f"{'ranks':>7} {'event':<22} {'s':>6} {'MB':>6}  verdict")
    for name in args.sizes.split(","):
        for event in EVENTS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                took_s, added, verdict = pool.apply(measure, (name, event))
            slow |= took_s > LIMITS_S[name]
            print(f"{name:>7} {event:<22} {took_s:6.2f} {added:6.0f}  {verdict}", flush=True)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            for words, took_s, added in pool.apply(measure_parts, (name,)):
                print(f"{name:>7} {words:<32} {took_s:6.2f} s {added:6.0f} MB", flush=True)
    return 1 if slow and args.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
