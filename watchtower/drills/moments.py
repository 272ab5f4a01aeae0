"""The moments of a job's life at which a drill can have its fault. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from watchtower.drills.errors import DrillError
from watchtower.drills.setup import Expected, Plan

EVALUATED_S = 5.0
"""Seconds of the evaluation at an epoch's end: long enough to be a pause, too short to matter."""
LAST_STEP = 14
"""Steps of a job whose fault comes at its exit."""
STUCK_EARLY = "init_stuck"
"""The cause of what hangs before all ranks have joined, whatever it is."""


def _nothing(_: int) -> Plan:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment: between steps, or in a place of the program that has no step."""

    name: str
    shows: str
    step: int = 0
    place: str | None = None
    """The `when` of the program's events. None: that of the drill, at the step."""
    plan: Callable[[int], Plan] = field(default=_nothing)
    """Returns what else the program does, from the step."""
    is_early: bool = False
    """Whether ranks have not all joined: then `init_stuck` is right too."""

    def move(self, plan: Plan) -> Plan:
        """Return the plan with its events at this moment."""
        moved = {**plan, **self.plan(self.step)}
        events = plan.get("events")
        if self.place and isinstance(events, list):
            moved["events"] = [{**event, "when": self.place, "step": 0} for event in events]
        return moved

    def expect(self, expected: Expected) -> Expected:
        """Return the right answer to a fault at this moment."""
        if not self.is_early:
            return expected
        return replace(expected, or_causes=(*expected.or_causes, STUCK_EARLY))


MOMENTS = (
    Moment(name="setup", shows="before the rank joins", place="setup", is_early=True),
    Moment(
        name="first_collective",
        shows="after the rank has joined, while the others are in the first collective",
        place="joined",
        is_early=True,
    ),
    Moment(name="step_0", shows="before the first step"),
    Moment(name="step_2", shows="before the third step", step=2),
    Moment(name="step_12", shows="before the thirteenth step", step=12),
    Moment(
        name="phase",
        shows="in a phase that the program marks",
        step=15,
        plan=lambda step: {"phase_at": step},
    ),
    Moment(
        name="epoch_end",
        shows="in the first step after an evaluation",
        step=16,
        plan=lambda step: {"evaluation": {"every": step - 1, "seconds": EVALUATED_S}},
    ),
    Moment(name="middle", shows="after forty steps", step=40),
    Moment(
        name="exit",
        shows="after the last step, while the others wait at the last barrier",
        step=LAST_STEP,
        place="exit",
        plan=lambda step: {"steps": step},
    ),
)


def find_moment(name: str) -> Moment:
    """Return the moment with this name. Raises DrillError."""
    for moment in MOMENTS:
        if moment.name == name:
            return moment
    raise DrillError(
        f"no moment is called {name!r}: allowed is {', '.join(m.name for m in MOMENTS)}"
    )
