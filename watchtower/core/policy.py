"""All numbers that decide when a job is suspect, hung or slow. Each number is a setting."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.core.settings import check_ranges, setting

RENAMED = {
    "unbeaten_look_s": "no_heartbeat_sample_s",
    "unbeaten_looks": "no_heartbeat_samples",
}
"""New names of settings by their old names. The next release rejects the old names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Detection settings, the `[detection]` table of the configuration file. Seconds or factors."""

    suspect_floor_s: float = setting(
        5, 0.1, 3600, "A rank is suspect at the earliest after this long without a step."
    )
    suspect_factor: float = setting(
        5,
        1.5,
        1000,
        "A rank is suspect at the earliest after this many typical steps without a step.",
    )
    hung_floor_s: float = setting(
        10,
        0.1,
        86400,
        "A motionless suspect whose peers wait is hung at the earliest this long after suspicion.",
    )
    hung_factor: float = setting(
        5,
        0,
        1000,
        "A motionless suspect is hung at the earliest this many typical steps after suspicion.",
    )
    moving_floor_s: float = setting(
        30,
        0.1,
        86400,
        "A suspect that moves (CPU, bytes) is hung at the earliest this long after suspicion.",
    )
    moving_factor: float = setting(
        20,
        0,
        1000,
        "A suspect that moves is hung at the earliest this many typical steps after suspicion.",
    )
    class_patience_s: float = setting(
        900,
        0.1,
        86400,
        "A suspect that compiles, saves or transfers data, or whose child process works, "
        "is hung this long after suspicion.",
    )
    phase_patience_s: float = setting(
        900,
        0.1,
        86400,
        "A rank in a marked phase of unknown length is suspect after this long. If a "
        "suspect works in a phase, or no rank waits for another, the job is hung this "
        "long after suspicion.",
    )
    phase_still_s: float = setting(
        60, 0.1, 86400, "A suspect in a marked phase without any movement for this long is hung."
    )
    startup_grace_s: float = setting(
        120, 0.1, 86400, "A job that has not made its first steps is suspect after this long."
    )
    startup_patience_s: float = setting(
        1800,
        0.1,
        86400,
        "Before the first steps: a suspect that works is hung this long after suspicion.",
    )
    settle_s: float = setting(
        2,
        0.1,
        600,
        "Wait this long after a death before it is judged: the ranks that die because of "
        "it are often reported first.",
    )
    aftermath_settle_s: float = setting(
        30,
        0.1,
        3600,
        "A death in an open incident may change its verdict if no other rank ends for this long.",
    )
    silence_s: float = setting(
        10, 0.5, 3600, "An agent is silent after this long without a report."
    )
    vanish_s: float = setting(
        10, 0.5, 3600, "A rank counts as ended when its agent has not reported it for this long."
    )
    moving_cpu_cores: float = setting(
        0.05, 0.001, 64, "CPU use of a rank's process tree, in cores, that counts as movement."
    )
    slow_factor: float = setting(
        2, 1.5, 1000, "Steps that take this many times their usual length make a job slow."
    )
    learned_factor: float = setting(
        1.5,
        1,
        100,
        "A stall may last this many times the longest pause of the same kind before it is hung.",
    )
    learned_max_s: float = setting(
        1800, 0.1, 86400, "Pauses seen before never extend a time limit beyond this."
    )

    no_step_floor_s: float = setting(
        60, 1, 86400, "A job that makes no step for this long is not called healthy."
    )
    no_step_factor: float = setting(
        3, 1, 1000, "A job that makes no step for this many typical steps is not called healthy."
    )
    no_heartbeat_sample_s: float = setting(
        30,
        1,
        3600,
        "A job without heartbeats is checked this often, with one cheap dump of each rank.",
    )
    no_heartbeat_samples: float = setting(
        3,
        2,
        1000,
        "A job without heartbeats is suspect when this many checks in a row find no change.",
    )

    def __post_init__(self) -> None:
        """Raise ValueError with setting, value and range if a value is out of range."""
        check_ranges(self)
