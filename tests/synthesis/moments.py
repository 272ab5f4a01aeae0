"""Cases of jobs that go on: every rank is dumped twice, and each of them at moments of its own."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.synthesis.evidence import IN_FUTEX, LOOP, Appearance, Maker, Recording, own
from tests.synthesis.faults import LOADING, LOCKED, SPINNING
from tests.synthesis.program import Call, Outcome
from tests.synthesis.timeline import Timeline
from watchtower.evidence.case import Case
from watchtower.wire.stacks import Frame

HISTORY = 40

Moments = Mapping[int, tuple[float, float]]
"""When each rank is dumped, by the clock of its job."""


@dataclass(frozen=True)
class Manners:
    """The evidence of ranks between calls, and in those that no Python frame names."""

    recording: Recording = field(default_factory=Recording)
    device: bool = False
    """Ranks that wait for their calls do so in `synchronize`, else in `work.wait()`."""
    runs_ahead: bool = False


WORK = (
    SPINNING,
    SPINNING,
    LOADING,
    LOCKED,
    replace(SPINNING, active=False, cpu_cores=0.6),
    replace(
        SPINNING,
        frames=(
            Frame(function="backward", file="torch/_tensor.py", line=600, library=True),
            own("train", 38, looped=True),
            own("<module>", 80),
        ),
    ),
    replace(
        SPINNING,
        frames=(
            Frame(function="step", file="torch/optim/adam.py", line=220, library=True),
            own("train", 46, looped=True),
            own("<module>", 80),
        ),
    ),
)
"""The evidence of a rank that computes."""


def draw_moments(
    timeline: Timeline, rng: random.Random, spread_s: float, gap_s: float, latest_s: float
) -> Moments:
    """Draw when ranks are dumped: first within `spread_s` of each other, again after `gap_s`."""
    begin = rng.uniform(0, max(latest_s - spread_s - gap_s, 0))
    first = {rank: begin + rng.uniform(0, spread_s) for rank in range(timeline.layout.size)}
    return {rank: (moment, moment + gap_s) for rank, moment in first.items()}


def goes_on(timeline: Timeline, moments: Moments, rank: int, *, recorded: bool) -> bool:
    """Return whether the two dumps show that a rank gets on, in its collectives where recorded."""
    before, after = (timeline.place_at(rank, moment) for moment in moments[rank])
    if not recorded:
        return (before.at, before.inside) != (after.at, after.inside)
    calls = timeline.programs[rank]
    over = (place.at + place.inside - place.under_way for place in (before, after))
    first, last = over
    return any(call.group for call in calls[first:last])


def synthesize_case(
    timeline: Timeline,
    moments: Moments,
    rng: random.Random,
    manners: Manners,
    appearances: Mapping[int, Appearance] | None = None,
) -> Case:
    """Make the case of a job whose ranks are dumped at these moments.

    `appearances` are of ranks with a fault of their own, in the dumps of which they are in no call.
    """
    maker = Maker(timeline.layout, manners.recording)
    work = {
        (rank, at): rng.choice(WORK)
        for rank, calls in enumerate(timeline.programs)
        for at in range(len(calls) + 1)
    }
    for rank, appearance in (appearances or {}).items():
        work[rank, len(timeline.visits[rank])] = appearance
    first, last = (
        _make_at(maker, timeline, {rank: moments[rank][index] for rank in moments}, work, manners)
        for index in (0, 1)
    )
    return join_moments(first, last)


def join_moments(first: Case, last: Case) -> Case:
    """Make one case of what the first dumps and the last ones show."""
    ranks = tuple(
        replace(new, dumps=(*old.dumps[:1], *new.dumps[-1:]))
        for old, new in zip(first.ranks, last.ranks, strict=True)
    )
    stacks = {stack.digest: stack for stack in (*first.stacks, *last.stacks)}
    logs = {log.digest: log for log in (*first.group_logs, *last.group_logs)}
    return replace(
        last, ranks=ranks, stacks=tuple(stacks.values()), group_logs=tuple(logs.values())
    )


def _make_at(
    maker: Maker,
    timeline: Timeline,
    moments: Mapping[int, float],
    work: Mapping[tuple[int, int], Appearance],
    manners: Manners,
) -> Case:
    places = [timeline.place_at(rank, moments[rank]) for rank in range(timeline.layout.size)]
    appearances = {}
    for rank, place in enumerate(places):
        appearance = (
            _appearance_inside(timeline.programs[rank][place.at], manners)
            if place.inside
            else _at_line(work[rank, place.at], timeline.programs[rank], place.at)
        )
        if appearance is not None:
            appearances[rank] = appearance
    outcome = Outcome(timeline.programs, places, HISTORY, timeline.usual)
    return maker.make(outcome, appearances)


def _appearance_inside(call: Call, manners: Manners) -> Appearance | None:
    """Return the appearance of a rank in a call; null where a frame names it."""
    counted = call.peer < 0 or call.operation in manners.recording.counts
    if counted and not manners.runs_ahead:
        return None
    frames = (own("train", call.line, looped=call.line < 60), own("<module>", 80))
    if not manners.device:
        return Appearance(frames=frames, kernel=IN_FUTEX)
    sync = Frame(function="synchronize", file="torch/cuda/__init__.py", line=801, library=True)
    return Appearance(frames=(sync, *frames))


def _at_line(appearance: Appearance, calls: Sequence[Call], at: int) -> Appearance:
    """Put what a rank does before the call that it makes next."""
    line = calls[at].line - 1 if at < len(calls) else 50
    frames = tuple(
        replace(frame, line=line, loops=LOOP) if frame.function == "train" else frame
        for frame in appearance.frames
    )
    return replace(appearance, frames=frames)
