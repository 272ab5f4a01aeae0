"""The plan of one run of a training program, from the JSON file named by --config."""

import argparse
import json
from dataclasses import dataclass, field

from identity import take_identity


@dataclass(frozen=True)
class Rhythm:
    """Something that happens after step `first` and every `every` steps; it takes `seconds`."""

    every: int
    seconds: float
    first: int | None = None  # null: `every`
    marked: bool = False
    rank: int | None = None


@dataclass(frozen=True)
class Plan:
    steps: int = 1_000_000
    step_s: float = 1.0
    jitter: float = 0.15
    host_work_s: float = 0.0  # CPU time of each step
    beats: bool = True
    imports_client: bool = False  # although it sends no heartbeats
    phase_at: int | None = None  # the step with which a phase begins
    batches: int | None = None
    exchanges: list[str] = field(default_factory=list)
    checks_ranks: bool = False  # all ranks pass a monitored barrier before training
    patient: bool = False
    workers: int = 0
    micro_steps: int = 1
    compile_s: float = 0.0
    checkpoint: Rhythm | None = None
    evaluation: Rhythm | None = None
    reindex: Rhythm | None = None
    download: Rhythm | None = None
    upload: Rhythm | None = None
    garbage: Rhythm | None = None
    leave_gap_s: float = 0.0
    export_s: float = 0.0
    outlet: str = ""
    schedule: str = "spin"
    log: str = "nccl"
    engine_thread: bool = False
    ahead: int = 3
    read_every: int = 3
    reader: int | None = None
    reads_in_all_reduce: bool = False  # the function that reads the loss is named like a collective
    first_collective_s: float = 0.0
    events: list[dict] = field(default_factory=list)


RHYTHMS = ("checkpoint", "evaluation", "reindex", "download", "upload", "garbage")


def parse_plan():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--identity", nargs=3, metavar=("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    arguments = parser.parse_args()
    if arguments.identity:
        take_identity(*arguments.identity)
    return read_plan(arguments.config)


def read_plan(path: str) -> Plan:
    with open(path, encoding="utf-8") as file:
        values = json.load(file)
    for name in RHYTHMS:
        if values.get(name) is not None:
            values[name] = Rhythm(**values[name])
    return Plan(**values)


def is_due(rhythm: Rhythm | None, step: int) -> bool:
    if rhythm is None:
        return False
    first = rhythm.every if rhythm.first is None else rhythm.first
    return step >= first and (step - first) % rhythm.every == 0
