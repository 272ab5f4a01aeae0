"""All numbers that decide when a job is suspect, hung or slow. Each number is a setting."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.service.settings import check_ranges, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Detection settings, the `[detection]` table of the configuration file. Seconds or factors."""

    suspect_floor_s: float = setting(
        5,
        0.1,
        3600,
        "A rank becomes suspect at the earliest after this many seconds without a step.",
    )
    suspect_factor: float = setting(
        5,
        1.5,
        1000,
        "A rank becomes suspect at the earliest when no step came in the time of this many "
        "typical steps.",
    )
    hung_floor_s: float = setting(
        10,
        0.1,
        86400,
        "A suspect that does not move while other ranks wait, or whose GPU alone works or is idle "
        "while all hosts wait for their GPUs, is hung at the earliest this many seconds after "
        "suspicion.",
    )
    hung_factor: float = setting(
        5,
        0,
        1000,
        "A suspect that does not move, or whose GPU alone works or is idle, is hung at the "
        "earliest this many typical steps after suspicion.",
    )
    moving_floor_s: float = setting(
        30,
        0.1,
        86400,
        "A suspect that moves (uses CPU, transfers bytes) is hung at the earliest this many "
        "seconds after suspicion.",
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
        "A suspect that works (evaluates, compiles, saves, transfers data, waits for a working "
        "child) is hung this many seconds after suspicion.",
    )
    phase_patience_s: float = setting(
        900,
        0.1,
        86400,
        "A rank in a marked phase of unknown length is suspect after this many seconds. A suspect "
        "that works in a phase, or for which no rank waits, is hung this many seconds after "
        "suspicion; so is a job whose ranks all wait before its first steps. The time in phases "
        "extends other suspicions up to this many seconds. Entering and leaving phases again and "
        "again excuses a rank until it was outside phases for this many seconds.",
    )
    phase_still_s: float = setting(
        60,
        0.1,
        86400,
        "A suspect in a marked phase that does not move is hung this many seconds after "
        "suspicion, or after it last worked in the phase.",
    )
    early_check_s: float = setting(
        10,
        0.1,
        3600,
        "A job whose step times are not known is checked (dumped and diagnosed, not yet suspect) "
        "when no rank made a step for this many seconds and a rank is still.",
    )
    blocked_suspect_s: float = setting(
        15,
        0.1,
        3600,
        "A rank that is blocked while others wait for it is suspect after this many seconds where "
        "no step time is known: in first steps, in marked phases, without heartbeats. Twice as "
        "many if it waits for something outside its node.",
    )
    blocked_hung_s: float = setting(
        20,
        0.1,
        86400,
        "Where no step time is known, a rank that a lock or a pipe blocks is "
        "hung this many seconds after suspicion.",
    )
    storage_hung_s: float = setting(
        90,
        0.1,
        86400,
        "Where no step time is known, a rank that waits for storage is hung "
        "this many seconds after suspicion.",
    )
    service_hung_s: float = setting(
        300,
        0.1,
        86400,
        "Where no step time is known, a rank that waits for a service, or "
        "sleeps, is hung this many seconds after suspicion.",
    )
    startup_grace_s: float = setting(
        120,
        0.1,
        86400,
        "A job that has not made its first steps becomes suspect after this many seconds "
        "without one.",
    )
    startup_rank_s: float = setting(
        0.05,
        0,
        10,
        "Set-up may take `startup_grace_s` and this many seconds more for each rank, from when the "
        "last rank was found.",
    )
    startup_patience_s: float = setting(
        1800,
        0.1,
        86400,
        "A job that has not made its first steps, but works, is hung this many seconds after "
        "suspicion.",
    )
    settle_s: float = setting(
        2,
        0.1,
        600,
        "The diagnosis of a death waits this many seconds, because ranks that die of it are "
        "often reported first.",
    )
    aftermath_settle_s: float = setting(
        30,
        0.1,
        3600,
        "A death in an open incident may change its verdict if no other rank ends for this "
        "many seconds.",
    )
    silence_s: float = setting(
        10, 0.5, 3600, "An agent counts as silent after this many seconds without a report."
    )
    vanish_s: float = setting(
        10,
        0.5,
        3600,
        "A rank that its agent no longer reports counts as not watched after this many seconds.",
    )
    moving_cpu_cores: float = setting(
        0.05,
        0.001,
        64,
        "A rank whose process tree uses at least this many CPU cores counts as moving.",
    )
    slow_factor: float = setting(
        2,
        1.5,
        1000,
        "A job whose steps take this many times their usual length is slow, until they take less "
        "than 1.5 times.",
    )
    learned_factor: float = setting(
        1.5,
        1,
        100,
        "A suspicion may last this many times the longest pause that the job made in the "
        "same phase and kind of code.",
    )
    learned_max_s: float = setting(
        1800,
        0.1,
        86400,
        "A learned pause never makes a suspicion last longer than this many seconds.",
    )

    no_step_floor_s: float = setting(
        60, 1, 86400, "A job is not healthy at the earliest after this many seconds without a step."
    )
    no_step_factor: float = setting(
        3,
        1,
        1000,
        "A job is not healthy at the earliest when no step came in the time of this many "
        "typical steps.",
    )
    no_heartbeat_sample_s: float = setting(
        30,
        1,
        3600,
        "A job without heartbeats is sampled every so many seconds: one cheap dump of each rank. "
        "While a rank is blocked, a third of this.",
    )
    no_heartbeat_samples: float = setting(
        3,
        2,
        1000,
        "A job without heartbeats becomes suspect when this many samples in a row show no change. "
        "If a rank is blocked, half of their time is enough.",
    )

    def __post_init__(self) -> None:
        """Raise ValueError with setting, value and range if a value is out of range."""
        check_ranges(self)
