"""The table of outages."""

from __future__ import annotations

from collections import Counter
from typing import Any

from watchtower.commands.printing import table
from watchtower.writing.times import format_time

MAX_JOBS = 3
"""Jobs of an outage that are named."""


def write_outages(outages: list[dict[str, Any]], now: float) -> str:
    """Return the table of outages."""
    if not outages:
        return "No outages: no live jobs with one shared cause hung within two minutes."
    rows = [("OUTAGE", "OPENED", "STATUS", "SHARED CAUSE", "CALL", "RANKS", "JOBS")]
    for one in outages:
        cause, incidents = one["shared_cause"], one["incidents"]
        opened = format_time(one["opened_at"], now)
        status = f"{one['open_count']} of {len(incidents)} open" if one["open_count"] else "over"
        shared = f"{cause['kind']} {cause['name']}"
        ranks = str(one["rank_count"])
        rows.append((one["id"], opened, status, shared, one["domain"], ranks, _jobs(incidents)))
    return table(rows)


def _jobs(incidents: list[dict[str, Any]]) -> str:
    names = ", ".join(str(one["job"]) for one in incidents[:MAX_JOBS])
    more = len(incidents) - MAX_JOBS
    return f"{names} and {more} more" if more > 0 else names


def find_shared(incidents: list[dict[str, Any]]) -> set[str]:
    """Return the outages that several of these incidents belong to."""
    counts = Counter(str(one["outage"]) for one in incidents if one.get("outage"))
    return {outage for outage, count in counts.items() if count > 1}
