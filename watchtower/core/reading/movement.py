"""Whether a process tree moves: what its use of CPU, storage and network amounts to.

Every threshold of movement is here. How much CPU counts as moving is a setting, and an argument.
"""

from __future__ import annotations

from watchtower.wire.report import Movement

MOVING_BYTES_PER_S = 65536.0
"""Storage traffic from which a rank counts as moving: more than a log file, less than any data."""

MOVING_SOCKET_BYTES_PER_S = 16_384.0
"""Network traffic from which a rank counts as transferring something: keep-alive and progress
reports of a process that does nothing stay below it, no download worth waiting for does."""

BUSY_CORES = 0.5
"""CPU use at which a process is working rather than waiting with some background threads."""

FULL_CORE = 0.8
"""CPU use that one spinning thread has when no other thread competes for its core."""

ONE_THREAD_CORES = 1.5
"""CPU use that one spinning thread stays below, whatever its idle helpers use: more is work."""

SHARED_CORE = 0.08
"""Least CPU use of a spinning thread on a crowded machine, if every sample finds it running. A
thread that uses less otherwise is found running by three samples in a row once in two thousand
times."""


def moves_storage(movement: Movement) -> bool:
    """Return whether the process tree reads or writes storage."""
    stored = max(movement.read_bytes_per_s, movement.write_bytes_per_s)
    return stored >= MOVING_BYTES_PER_S


def transfers(movement: Movement) -> bool:
    """Return whether the process tree moves data through the network."""
    return movement.socket_bytes_per_s >= MOVING_SOCKET_BYTES_PER_S


def is_moving(movement: Movement, moving_cpu_cores: float) -> bool:
    """Return whether the process tree computes, or reads or writes storage."""
    return movement.cpu_cores >= moving_cpu_cores or moves_storage(movement)


def uses_a_core(movement: Movement, *, always_runs: bool) -> bool:
    """Return whether it uses what one spinning thread gets; `always_runs`: in every sample."""
    cores = movement.cpu_cores
    return cores >= FULL_CORE or (always_runs and cores >= SHARED_CORE)
