"""Finds the timeout with which a job itself gives up: that of a collective which is not complete.

On NCCL, torch's watchdog ends the process. On gloo, the call raises an error. The clock of the
library starts with the call, which is about when the stall began.
"""

from __future__ import annotations

from watchtower.core.diagnosis.waits.collective_logs import CollectiveLogs
from watchtower.core.reading.collective_log import find_open_call


def find_own_timeout(logs: CollectiveLogs | None) -> float | None:
    """Return the shortest timeout in seconds; None if no log shows one."""
    if logs is None:
        return None
    known = [
        log.timeout_s
        for log in logs.by_digest.values()
        if log.timeout_s > 0 and find_open_call(log) is not None
    ]
    return min(known, default=None)
