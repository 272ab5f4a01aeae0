"""The matrix of a sample: fault x moment x heartbeats x collective log x backend. Pure.

A cell that makes no sense is left out by a rule of `RULES`, never by hand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product

from watchtower.drills.catalogue import DRILLS, outside
from watchtower.drills.catalogue.stalls import happen
from watchtower.drills.drill_run import Drill
from watchtower.drills.moments import MOMENTS, Moment
from watchtower.drills.settings import DrillSettings
from watchtower.drills.setup import BACKENDS, Variables

ACTS = (happen, outside.stop, outside.trace)
"""What a drill of the matrix does: a fault of the program, or one from outside at a given step."""
READS = "slow_storage"
"""The act that also works where the program makes no step: it reads there, too."""
NO_EPOCHS = ("grid", "pipeline", "stranger_fsdp2", "stranger_pipelining")
"""Kinds of programs that are one loop of steps, without epochs."""
SOME = Variables(settings=DrillSettings(), rank=1, ranks=8, step=12)
"""Values with which a drill's plan is read here."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """One combination; each field is a plain value of the results file."""

    fault: str
    moment: str
    heartbeats: bool
    log: bool
    backend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A cell with its drill and its moment, as the rules read them."""

    cell: Cell
    drill: Drill
    moment: Moment


RULES: Mapping[str, Callable[[Known], bool]] = {
    "the drill has no program for the backend": (
        lambda known: known.cell.backend not in known.drill.backends
    ),
    "the standard library's collectives have no log": (
        lambda known: known.cell.log and known.cell.backend == "stdlib"
    ),
    "outside of steps the program only reads its data": (
        lambda known: (
            known.moment.place is not None
            and known.drill.act is happen
            and not known.drill.hangs_anywhere
            and not _only_reads(known.drill)
        )
    ),
    "from outside, a rank is only met at its start or in a step": (
        lambda known: known.moment.place not in (None, "setup") and known.drill.act is not happen
    ),
    "the program has no epochs": (
        lambda known: known.moment.name == "epoch_end" and known.drill.parallelism in NO_EPOCHS
    ),
}
"""Why a cell is left out, and whether this one is."""


def faults() -> list[Drill]:
    """Return the drills of the matrix: those whose moment is free and whose tower is the usual."""
    return [
        drill
        for drill in DRILLS
        if drill.is_fault
        and drill.expected.is_incident
        and drill.act in ACTS
        and drill.step is None
        and not drill.sampled
        and not drill.own_gpus
        and not drill.networked
        and drill.named
        and not _is_about_setup(drill)
    ]


def all_cells() -> list[Known]:
    """Return every combination, those that make no sense too."""
    settings = product((True, False), (True, False), BACKENDS)
    combined = product(faults(), MOMENTS, settings)
    return [
        Known(
            cell=Cell(
                fault=drill.name, moment=moment.name, heartbeats=beats, log=log, backend=backend
            ),
            drill=drill,
            moment=moment,
        )
        for drill, moment, (beats, log, backend) in combined
    ]


def why_not(known: Known) -> str | None:
    """Return the first rule that leaves the cell out; None if it makes sense."""
    return next((why for why, is_out in RULES.items() if is_out(known)), None)


def sensible_cells() -> list[Cell]:
    """Return the cells that make sense, in the order of the catalogue."""
    return [known.cell for known in all_cells() if why_not(known) is None]


def draw(cells: list[Cell], seed: int) -> list[Cell]:
    """Return the cells in the random order of this seed: the first N are the sample of N.

    A larger sample contains the smaller one, so a sample can be continued. A new drill only adds
    cells between those of before.
    """
    return sorted(cells, key=lambda cell: hashlib.sha256(f"{seed} {cell}".encode()).digest())


def choose(cells: list[Cell], only: Mapping[str, frozenset[str]]) -> list[Cell]:
    """Return the cells with these values: {"moment": {"exit"}}. Raises ValueError."""
    names = set(Cell.__dataclass_fields__)
    if unknown := set(only) - names:
        raise ValueError(f"a cell has {', '.join(sorted(names))}; not {', '.join(sorted(unknown))}")
    return [cell for cell in cells if _has(cell, only)]


def parse_only(text: str) -> dict[str, frozenset[str]]:
    """Return the values in `fault=busy_loop,fault=exception,moment=exit`."""
    pairs = [part.partition("=") for part in text.split(",") if part]
    names = dict.fromkeys(name for name, _, _ in pairs)
    return {name: frozenset(value for key, _, value in pairs if key == name) for name in names}


def count_left_out() -> Iterator[tuple[str, int]]:
    """Return for each rule how many cells it leaves out first."""
    reasons = [why_not(known) for known in all_cells()]
    for why in RULES:
        yield why, reasons.count(why)


def plain(value: object) -> str:
    """Return a value as `--only` and tables write it: on and off for the two switches."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _has(cell: Cell, only: Mapping[str, frozenset[str]]) -> bool:
    values = {name: plain(value) for name, value in asdict(cell).items()}
    return all(values[name] in wanted for name, wanted in only.items())


def _only_reads(drill: Drill) -> bool:
    events = drill.plan(SOME).get("events")
    return isinstance(events, list) and all(event["act"] == READS for event in events)


def _is_about_setup(drill: Drill) -> bool:
    return drill.expected.cause == "init_stuck"
