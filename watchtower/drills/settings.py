"""The `[drill]` section of a configuration file: size, speed and deadlines of a drill.

The `[detection]` section is passed to the tower; only its names are shown here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from watchtower.drills.errors import DrillError
from watchtower.service.settings import ConfigError, convert, read_tables

Schedule = Literal["spin", "yield", "sleep"]
Log = Literal["nccl", "absent", "frozen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillSettings:
    """All numbers of a drill. The demo and the published results use the defaults."""

    step_s: float = 1.0
    """Mean seconds of one training step on one rank."""
    jitter: float = 0.15
    """Standard deviation of a step's parts, as a share of the mean."""
    warmup_steps: int = 12
    """Steps before the fault, to learn the pace. Up to four more are added at random."""
    agent_interval_s: float = 1.0
    """Seconds between reports of an agent."""
    poll_s: float = 0.1
    """Seconds between requests for the tower's verdict."""
    start_deadline_s: float = 60.0
    """Longest time until the tower and the agents are ready and the first step is made."""
    verdict_deadline_s: float = 180.0
    """Longest time from the fault to the final verdict."""
    linger_s: float = 1.0
    """How long a verdict must stay unchanged before the drill judges it."""
    startup_grace_s: float = 15.0
    """The tower's `startup_grace_s` in drills in which a rank never begins to train, and in those
    without heartbeats."""
    sampled_s: float = 66.0
    """Seconds for which a job without heartbeats trains before the fault: it has passed its startup
    grace, and two samples of the tower saw it at work."""
    calm_s: float = 20.0
    """How long a healthy job is watched after an interruption."""
    rounds: int = 2
    """How many checkpoints, evaluations or pauses a drill of a healthy job contains."""
    long_checkpoint_s: float = 60.0
    """Seconds of the checkpoint that is marked with a phase."""
    checkpoint_s: float = 20.0
    """Seconds of the unmarked checkpoint."""
    checkpoint_every: int = 60
    """Steps between unmarked checkpoints."""
    eval_s: float = 30.0
    """Seconds of an evaluation."""
    eval_every: int = 20
    """Steps between evaluations and between marked checkpoints."""
    pause_every: int = 50
    """Steps between rare pauses."""
    pause_factor: float = 10.0
    """Length of a rare pause, in steps."""
    slow_factor: float = 10.0
    """Factor by which the job gets slower in ten_times_slower."""
    straggle_factor: float = 3.0
    """Factor by which the steps of one rank are longer in straggler."""
    slow_steps: int = 6
    """Number of slow steps that are watched in ten_times_slower."""
    leave_gap_s: float = 5.0
    """Seconds between the exits of two ranks in staggered_exit."""
    export_s: float = 60.0
    """Seconds that rank 0 runs longer than the others in rank0_finishes_late."""
    compile_s: float = 45.0
    """How long the last rank compiles before its first step. The others compile for less time."""
    transfer_s: float = 45.0
    """Seconds of a download or an upload."""
    micro_steps: int = 8
    """Passes in one step of grad_accumulation. Only the last one synchronizes gradients."""
    gc_s: float = 12.0
    """Seconds of garbage collection of one rank in gc_pause."""
    clock_step_s: float = 3600.0
    """How far the wall clock jumps forward in clock_step. Then it jumps back twice as far."""
    unreachable_s: float = 25.0
    """How long the tower cannot be reached in tower_unreachable."""
    aftermath_s: float = 60.0
    """Seconds from the end of a hung job to the judgement of its incident."""
    core_after_s: float = 30.0
    """Seconds from the opening of the incident to the core dump in hung_then_core."""
    neighbour_delay_s: float = 2.0
    """Seconds by which the attack may delay the verdict in hostile_neighbour."""
    queued_schedule: Schedule = "spin"
    """How a host of the backend queued waits for its device: spin, yield or sleep."""
    queued_log: Log = "nccl"
    """The collective log of the backend queued: nccl, absent, or frozen as by a graph's replay."""
    queued_engine: bool = False
    """Whether a thread pt_autograd_0 waits in backward instead of the main thread, on queued."""
    heartbeats: bool = True
    """Whether the job sends heartbeats. Without them it may import the client for its log."""
    collective_log: bool = True
    """Whether the client lets agents read the log of collectives that torch keeps."""
    recompile_s: float = 60.0
    """Seconds for which one rank compiles again in recompile."""
    first_collective_s: float = 90.0
    """Seconds of the first collective in first_collective."""
    device_step_s: float = 45.0
    """Seconds of a step in device_bound_steps."""
    device_steps: int = 4
    """Steps of device_bound_steps."""
    late_s: float = 60.0
    """How long modules are imported, or a rank or a node is late, before the first step."""
    alone_s: float = 120.0
    """How long rank 0 evaluates alone in eval_on_rank0 and gpu_errors_beside_eval."""
    idle_s: float = 1800.0
    """How long the server of idle_server gets no request."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        for one in fields(self):
            value = getattr(self, one.name)
            if not isinstance(value, str | bool):
                _check_positive(one.name, value)
        if self.jitter > 0.4:
            raise DrillError(f"[drill] jitter = {self.jitter}: allowed is more than 0, up to 0.4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The content of a configuration file: the drill's own settings and the tower's."""

    drill: DrillSettings = field(default_factory=DrillSettings)
    detection: dict[str, object] = field(default_factory=dict)
    alerts: dict[str, object] = field(default_factory=dict)
    """Only used to notify a destination."""


def read_config(path: Path | None) -> Config:
    """Read a TOML file; without a file, use the defaults. Raises DrillError.

    `[tower]` and `[retention]` are ignored: they are for a permanent tower.
    """
    if path is None:
        return Config()
    try:
        tables = read_tables(path)
    except ConfigError as error:
        raise DrillError(str(error)) from None
    return Config(
        drill=parse_settings(tables.get("drill", {})),
        detection=tables.get("detection", {}),
        alerts=tables.get("alerts", {}),
    )


def parse_settings(table: dict[str, object]) -> DrillSettings:
    """Return the settings in the `[drill]` table. Raises DrillError."""
    try:
        return convert("drill", table, DrillSettings)
    except ConfigError as error:
        raise DrillError(str(error)) from None


def changed_settings(config: Config, overridden: dict[str, object]) -> dict[str, object]:
    """Return the settings that differ from the defaults. `overridden`: those that the drill
    sets.
    """
    default = DrillSettings()
    names = [one.name for one in fields(DrillSettings)]
    drill: dict[str, object] = {
        f"drill.{name}": getattr(config.drill, name)
        for name in names
        if getattr(config.drill, name) != getattr(default, name)
    }
    detection = {**config.detection, **overridden}
    return drill | {f"detection.{name}": value for name, value in detection.items()}


def _check_positive(name: str, value: float) -> None:
    # Written so that NaN is refused too.
    if not 0 < value < float("inf"):
        raise DrillError(f"[drill] {name} = {value}: allowed is a number above 0")
