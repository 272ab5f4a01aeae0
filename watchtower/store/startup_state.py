"""Reads the state of the last run that a starting tower needs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from watchtower.fleet.generation import PastGeneration
from watchtower.fleet.pace import Pause
from watchtower.store import rows
from watchtower.store.feedback_rows import read_feedback
from watchtower.store.values import Named, StartupState
from watchtower.wire.drills import is_drill

NAMED = """
SELECT id, job, node, newest.opened_at FROM suspects JOIN
(SELECT id, job, opened_at FROM incidents WHERE shadow = 0 ORDER BY opened_at DESC LIMIT 4096)
AS newest ON newest.id = suspects.incident ORDER BY newest.opened_at, id
"""


def recall_state(db: sqlite3.Connection) -> StartupState:
    """Return the stored state that a starting tower needs. Raises sqlite3.Error."""
    pauses: dict[str, tuple[Pause, ...]] = {}
    for job, phase, frame_class, length_s in db.execute(rows.PAUSES):
        pause = Pause(phase=phase, frame_class=frame_class, length_s=length_s)
        pauses[job] = (*pauses.get(job, ()), pause)
    columns = "job, number, typical_step_s, processes, owner"
    return StartupState(
        pauses=pauses,
        generations={
            job: PastGeneration(
                number=number,
                typical_step_s=typical_step_s,
                processes=rows.read_processes(job, processes),
                owner=owner,
            )
            for job, number, typical_step_s, processes, owner in db.execute(
                f"SELECT {columns} FROM generations"
            )
        },
        incidents=tuple(rows.read_incident(row) for row in db.execute(rows.LEFT_OPEN)),
        silences=tuple(map(rows.read_silence, db.execute(rows.SILENCES))),
        alerts=tuple(rows.read_alert(row) for row in db.execute(rows.ALERTS)),
        blames=rows.read_blames(db.execute(rows.BLAMES)),
        named=_read_named(db.execute(NAMED)),
        feedback=read_feedback(db),
    )


def _read_named(found: Iterable[tuple[object, ...]]) -> tuple[Named, ...]:
    """Return the named nodes of rows of `NAMED`, oldest first, without those of drills."""
    nodes: dict[tuple[str, float], dict[str, None]] = {}
    for ident, job, node, opened_at in found:
        if not is_drill(str(job)):
            nodes.setdefault((str(ident), float(str(opened_at))), {})[str(node)] = None
    return tuple(
        Named(incident=ident, nodes=tuple(names), opened_at=opened_at)
        for (ident, opened_at), names in nodes.items()
    )
