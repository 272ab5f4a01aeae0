"""Decides whether a process tree moves, from its use of CPU, storage and network.

The rule, the same for every reader: data that moves always counts. CPU counts unless the training
thread waits, because helper threads and threads that poll use CPU in every wait.

All thresholds of movement are here, except the CPU use that counts as computing. This threshold is
a setting, and an argument of `read_movement`.
"""

from __future__ import annotations

from typing import NamedTuple

from watchtower.wire.report import Movement

MOVING_BYTES_PER_S = 65536.0
"""A rank with at least this storage traffic is moving: more than a log file, less than any data."""

MOVING_SOCKET_BYTES_PER_S = 16_384.0
"""A rank with at least this network traffic transfers data. Keep-alive and progress messages of an
idle process are below it. Every download that is worth waiting for is above it."""

BUSY_CORES = 0.5
"""A process with at least this CPU use is working. A waiting process with background threads uses
less."""

FULL_CORE = 0.8
"""A spinning thread uses at least this many cores if no other thread competes for its core."""

ONE_THREAD_CORES = 1.5
"""A spinning thread and its idle helper threads use less than this. More is work."""

SHARED_CORE = 0.08
"""A spinning thread uses at least this many cores on an overloaded machine, and every sample finds
it running. A thread that is not spinning and uses less is found running by three samples in a row
once in two thousand times."""


WORK_S = 0.001
"""A thread that waits again and again, and works in between, computes for at least this many
seconds between two waits. One that only asks again computes for a tenth of it, however often it
asks."""


class MovementReading(NamedTuple):
    """The ways in which one process tree moves."""

    computes: bool
    """It uses CPU, and its training thread is not known to wait."""
    stores: bool
    """It reads or writes storage."""
    transfers: bool
    """It moves data through the network."""

    @property
    def moves_data(self) -> bool:
        """Whether it moves data, through storage or the network."""
        return self.stores or self.transfers


def read_movement(
    movement: Movement, moving_cpu_cores: float, *, waits: bool = False
) -> MovementReading:
    """Return how a process tree moves; `waits`: its training thread is known to wait."""
    stored = max(movement.read_bytes_per_s, movement.write_bytes_per_s)
    return MovementReading(
        movement.cpu_cores >= moving_cpu_cores and not waits,
        stored >= MOVING_BYTES_PER_S,
        movement.socket_bytes_per_s >= MOVING_SOCKET_BYTES_PER_S,
    )


def moves_data(movement: Movement) -> bool:
    """Return whether a process tree moves data, through storage or the network."""
    return (
        movement.read_bytes_per_s >= MOVING_BYTES_PER_S
        or movement.write_bytes_per_s >= MOVING_BYTES_PER_S
        or movement.socket_bytes_per_s >= MOVING_SOCKET_BYTES_PER_S
    )


def uses_a_core(movement: Movement, *, always_runs: bool) -> bool:
    """Return whether the process uses as much CPU as one spinning thread.

    `always_runs`: every sample found the thread running.
    """
    cores = movement.cpu_cores
    return cores >= FULL_CORE or (always_runs and cores >= SHARED_CORE)
