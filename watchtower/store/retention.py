"""Limits of the stored data. Data over a limit is deleted in small batches.

Over a limit of amount, the owner with the most loses its oldest first: the many incidents of one
owner do not push out those of another one.

SQLite's file does not shrink: it uses the space of deleted rows again. Open incidents and their
cases are never deleted. Dumps are deleted by age and amount only: dumps of an open incident are
deleted if other jobs of its owner send too many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from watchtower.jobs.pace import MAX_PAUSES
from watchtower.service.settings import check_ranges, setting
from watchtower.store.database import Database

BITE = 32
"""Rows deleted between two other writes. This takes a few milliseconds, so that dumps are
acknowledged without delay while a year of history is deleted."""

BITE_BYTES = 16_000_000
"""Bytes deleted between two other writes. At least one row is deleted."""

MB = 1_000_000
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Limits of the stored data: the `[retention]` table of the configuration file."""

    incidents: float = setting(
        10_000,
        10,
        10_000_000,
        "Number of stored incidents. Over it, the owner with the most loses its oldest. One has "
        "about 2 KB without its evidence.",
    )
    incident_days: float = setting(
        400,
        1,
        36_500,
        "Days after which a closed incident is deleted. 400 days include the whole last year.",
    )
    evidence_mb: float = setting(
        2_000,
        10,
        1_000_000,
        "MB of evidence of all incidents. Over it, the owner with the most loses its oldest.",
    )
    summaries_mb: float = setting(
        500,
        1,
        1_000_000,
        "MB of summaries of evidence, which pages show. They stay when the evidence is deleted. "
        "Over it, the owner with the most loses its oldest. One has 5 to 30 kB.",
    )
    dumps_mb: float = setting(
        1_000,
        10,
        1_000_000,
        "MB of dumps of all jobs. Over it, the owner with the most loses its oldest. 1000 MB are "
        "about 50,000 batches of a node with 8 ranks.",
    )
    dumps_per_job_mb: float = setting(
        400, 1, 1_000_000, "MB of dumps of one job. 400 MB are two dumps of 16,384 ranks."
    )
    dump_days: float = setting(
        30,
        0.01,
        36_500,
        "Days after which dumps are deleted. The evidence of an incident is stored separately.",
    )
    series_mb: float = setting(
        200,
        1,
        1_000_000,
        "MB of series of all incidents (15 minutes of the suspects and of three healthy ranks). "
        "Over it, the owner with the most loses its oldest. One incident has about 0.1 MB.",
    )
    jobs: float = setting(
        20_000,
        5_000,
        10_000_000,
        "Jobs whose last attempt and learned pauses are stored. Up to 4096 are live.",
    )
    job_days: float = setting(
        90, 2, 36_500, "Days after which the data of a job that is not reported is deleted."
    )

    def __post_init__(self) -> None:
        """Raise ValueError, with setting, value and range, for a value outside its range."""
        check_ranges(self)


def prune(db: Database, keep: Retention, wall: float) -> bool:
    """Delete one batch of the first kind of data over its limit. Return False if there is none."""
    return any(step(db, keep, wall) for step in _STEPS)


def _old_dumps(db: Database, keep: Retention, wall: float) -> bool:
    oldest = "SELECT id, size_bytes FROM dumps WHERE received_at < ? ORDER BY received_at LIMIT ?"
    rows = db.execute(oldest, (wall - keep.dump_days * DAY_S, BITE)).fetchall()
    return _remove(db, "dumps", "id", _until(BITE_BYTES, rows))


def _too_many_dumps(db: Database, keep: Retention, wall: float) -> bool:
    excess, sharer = _find_excess(db, "dumps", "SUM(size_bytes)", keep.dumps_mb * MB)
    oldest = "SELECT id, size_bytes FROM dumps WHERE sharer = ? ORDER BY received_at LIMIT ?"
    rows = db.execute(oldest, (sharer, BITE)).fetchall()
    return _remove(db, "dumps", "id", _until(excess, rows))


def _too_many_dumps_of_a_job(db: Database, keep: Retention, wall: float) -> bool:
    limit = keep.dumps_per_job_mb * MB
    sums = "SELECT job, SUM(size_bytes) FROM dumps GROUP BY job HAVING SUM(size_bytes) > ? LIMIT 1"
    for job, total in db.execute(sums, (limit,)).fetchall():
        oldest = "SELECT id, size_bytes FROM dumps WHERE job = ? ORDER BY taken_at LIMIT ?"
        rows = db.execute(oldest, (job, BITE)).fetchall()
        return _remove(db, "dumps", "id", _until(total - limit, rows))
    return False


def _old_incidents(db: Database, keep: Retention, wall: float) -> bool:
    oldest = (
        "SELECT id, evidence_bytes FROM incidents WHERE opened_at < ? AND closed_at < ?"
        " ORDER BY opened_at LIMIT ?"
    )
    before = wall - keep.incident_days * DAY_S
    rows = db.execute(oldest, (before, before, BITE)).fetchall()
    return _remove_incidents(db, _until(BITE_BYTES, rows))


def _too_many_incidents(db: Database, keep: Retention, wall: float) -> bool:
    excess, sharer = _find_excess(db, "incidents", "COUNT(*)", keep.incidents, "COUNT(closed_at)")
    oldest = (
        "SELECT id, evidence_bytes FROM incidents WHERE sharer = ? AND closed_at IS NOT NULL"
        " ORDER BY opened_at LIMIT ?"
    )
    rows = db.execute(oldest, (sharer, min(math.ceil(excess), BITE))).fetchall()
    return _remove_incidents(db, _until(BITE_BYTES, rows))


def _too_much_evidence(db: Database, keep: Retention, wall: float) -> bool:
    return _remove_parts(db, "evidence", "evidence_bytes", keep.evidence_mb * MB)


def _too_many_summaries(db: Database, keep: Retention, wall: float) -> bool:
    return _remove_parts(db, "summaries", "summary_bytes", keep.summaries_mb * MB)


def _remove_parts(db: Database, table: str, size: str, limit: float) -> bool:
    """Delete rows of a table of parts of incidents. `size` is the column with their bytes."""
    deletable = f"SUM(CASE WHEN closed_at IS NULL THEN 0 ELSE {size} END)"
    excess, sharer = _find_excess(db, "incidents", f"SUM({size})", limit, deletable)
    oldest = (
        f"SELECT id, {size} FROM incidents WHERE sharer = ? AND {size} > 0"
        " AND closed_at IS NOT NULL ORDER BY opened_at LIMIT ?"
    )
    ids = list(_until(excess, db.execute(oldest, (sharer, BITE)).fetchall()))
    bare = f"UPDATE incidents SET {size} = 0 WHERE id = ?"
    db.executemany(bare, [(ident,) for ident in ids])
    return _remove(db, table, "incident", ids)


def _too_many_series(db: Database, keep: Retention, wall: float) -> bool:
    excess, sharer = _find_excess(db, "series", "SUM(size_bytes)", keep.series_mb * MB)
    oldest = "SELECT incident, size_bytes FROM series WHERE sharer = ? ORDER BY taken_at LIMIT ?"
    rows = db.execute(oldest, (sharer, BITE)).fetchall()
    return _remove(db, "series", "incident", _until(excess, rows))


def _old_series(db: Database, keep: Retention, wall: float) -> bool:
    """Delete series whose incident was never stored."""
    oldest = "SELECT incident, size_bytes FROM series WHERE taken_at < ? LIMIT ?"
    rows = db.execute(oldest, (wall - keep.incident_days * DAY_S, BITE)).fetchall()
    return _remove(db, "series", "incident", _until(BITE_BYTES, rows))


def _old_jobs(db: Database, keep: Retention, wall: float) -> bool:
    oldest = "SELECT job FROM attempts WHERE seen_at < ? ORDER BY seen_at LIMIT ?"
    return _remove_jobs(db, oldest, (wall - keep.job_days * DAY_S, BITE))


def _too_many_jobs(db: Database, keep: Retention, wall: float) -> bool:
    excess, owner = _find_excess(db, "attempts", "COUNT(*)", keep.jobs, sharer="owner")
    oldest = "SELECT job FROM attempts WHERE owner = ? ORDER BY seen_at LIMIT ?"
    return _remove_jobs(db, oldest, (owner, min(math.ceil(excess), BITE)))


def _remove_jobs(db: Database, query: str, values: tuple[object, ...]) -> bool:
    jobs = [job for (job,) in db.execute(query, values).fetchall()]
    db.executemany("DELETE FROM pauses WHERE job = ?", [(job,) for job in jobs])
    return _remove(db, "attempts", "job", jobs)


def _too_many_pauses(db: Database, keep: Retention, wall: float) -> bool:
    many = "SELECT job, COUNT(*) FROM pauses GROUP BY job HAVING COUNT(*) > ? LIMIT 1"
    for job, number in db.execute(many, (MAX_PAUSES,)).fetchall():
        shortest = (
            "SELECT job, phase, frame_class FROM pauses WHERE job = ? ORDER BY length_s LIMIT ?"
        )
        rows = db.execute(shortest, (job, min(number - MAX_PAUSES, BITE))).fetchall()
        gone = "DELETE FROM pauses WHERE job = ? AND phase = ? AND frame_class = ?"
        db.executemany(gone, rows)
        return True
    return False


def _past_silences(db: Database, keep: Retention, wall: float) -> bool:
    past = db.execute("SELECT id FROM silences WHERE until <= ? LIMIT ?", (wall, BITE)).fetchall()
    return _remove(db, "silences", "id", [ident for (ident,) in past])


def _find_excess(
    db: Database,
    table: str,
    amount: str,
    limit: float,
    deletable: str = "1",
    sharer: str = "sharer",
) -> tuple[float, str]:
    """Return the owner with the most of a table over its limit, and how much it loses.

    It loses what is over the same amount for all owners with something deletable. It loses 0 if the
    table is not over its limit.
    """
    sums = f"SELECT {sharer}, {amount}, {deletable} FROM {table} GROUP BY {sharer}"
    by_sharer = db.execute(sums).fetchall()
    losers = sorted((has, name) for name, has, may_lose in by_sharer if may_lose)
    room = limit - sum(has for _, has, may_lose in by_sharer if not may_lose)
    for place, (has, _) in enumerate(losers):
        share = room / (len(losers) - place)
        if has > share:
            most, sharer = losers[-1]
            return most - share, sharer
        room -= has
    return 0.0, ""


def _until(excess: float, rows: list[tuple[str, int]]) -> Iterator[str]:
    """Yield the first rows that have at least `excess` or `BITE_BYTES` bytes together."""
    excess = min(excess, BITE_BYTES)
    for ident, size_bytes in rows:
        if excess <= 0:
            return
        excess -= size_bytes
        yield ident


def _remove_incidents(db: Database, idents: Iterable[str]) -> bool:
    idents = list(idents)
    for table in ("evidence", "summaries", "series", "suspects", "feedback", "deliveries"):
        _remove(db, table, "incident", idents)
    return _remove(db, "incidents", "id", idents)


def _remove(db: Database, table: str, key: str, values: Iterable[str]) -> bool:
    rows = [(value,) for value in values]
    db.executemany(f"DELETE FROM {table} WHERE {key} = ?", rows)
    return bool(rows)


_STEPS: tuple[Callable[[Database, Retention, float], bool], ...] = (
    _old_dumps,
    _too_many_dumps,
    _too_many_dumps_of_a_job,
    _old_incidents,
    _too_many_incidents,
    _too_much_evidence,
    _too_many_summaries,
    _old_series,
    _too_many_series,
    _old_jobs,
    _too_many_jobs,
    _too_many_pauses,
    _past_silences,
)
