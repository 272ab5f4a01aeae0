"""The store in one SQLite file (WAL): one writer thread, every write committed before it answers.

Opening a file of another schema version is refused with a sentence; nothing is changed in it.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import TextIO, TypeVar

import msgspec

from watchtower.core.case import Case
from watchtower.core.fleet.generation import PastGeneration, ProcessKey
from watchtower.core.fleet.pace import Pause
from watchtower.store.records import Incident, Memory
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.verdict import Status, Verdict

SCHEMA_VERSION = 1

MAX_DUMPS = 5_000
"""Batches kept, some 20 KB each: the last looks at many jobs, or a few looks at a large one."""

_T = TypeVar("_T")

_INCIDENT = "id, job, generation, status, opened_at, updated_at, closed_at, verdict"


class StoreError(Exception):
    """The store cannot be opened; the message says why and what to do."""


class SqliteStore:
    """Calls return futures: the writer thread does the work, in order."""

    def __init__(self, path: Path, *, max_dumps: int = MAX_DUMPS) -> None:
        """Open or make the file. Raises StoreError."""
        self._path = path
        self._max_dumps = max_dumps
        self._lock: TextIO | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            self._lock = _lock(path)
            self._db = self._thread.submit(_open, path).result()
        except (sqlite3.Error, OSError) as error:
            self._release()
            what = "check the folder's owner and free space"
            if isinstance(error, sqlite3.DatabaseError) and "not a database" in str(error):
                what = "move the file away to begin an empty one"
            raise StoreError(f"cannot open the store {path}: {error}; {what}") from error
        except StoreError:
            self._release()
            raise

    def close(self) -> None:
        """Finish what was asked for and close the file."""
        self._thread.submit(self._db.close).result()
        self._release()

    def _release(self) -> None:
        self._thread.shutdown()
        if self._lock is not None:
            self._lock.close()

    def recall(self) -> Memory:
        """Read what a starting tower needs to know. Raises StoreError."""
        try:
            return self._thread.submit(self._recall).result()
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise StoreError(
                f"the store {self._path} is damaged: {error}; move it away to begin an empty one"
            ) from error

    def save_incident(self, incident: Incident) -> Future[None]:
        """Insert an incident, or bring it up to date. A missing case keeps the stored one."""
        return self._write(lambda db: _save_incident(db, incident))

    def save_dumps(self, batch: DumpBatch, received_at: float) -> Future[None]:
        """Keep a batch; one that is there already stays as it is."""
        return self._write(lambda db: _save_dumps(db, batch, received_at, self._max_dumps))

    def save_pause(self, job: str, pause: Pause) -> Future[None]:
        """Remember the longest pause of a kind."""
        row = (job, pause.phase, pause.frame_class, pause.length_s)
        return self._write(lambda db: db.execute(_SAVE_PAUSE, row))

    def save_generation(self, job: str, past: PastGeneration) -> Future[None]:
        """Remember a job's last generation."""
        row = (job, past.number, past.typical_step_s, _encode(sorted(past.processes)))
        return self._write(lambda db: db.execute(_SAVE_GENERATION, row))

    def incidents(self, job: str | None = None, limit: int = 100) -> Future[list[Incident]]:
        """Read incidents, newest first, without their cases."""
        where, values = ("WHERE job = ?", (job,)) if job is not None else ("", ())
        query = f"SELECT {_INCIDENT}, NULL FROM incidents {where} ORDER BY opened_at DESC LIMIT ?"
        return self._thread.submit(
            lambda: [_incident(row) for row in self._db.execute(query, (*values, limit))]
        )

    def incident(self, incident_id: str) -> Future[Incident | None]:
        """Read one incident with its case; None when there is none of that id."""
        query = f"SELECT {_INCIDENT}, evidence FROM incidents WHERE id = ?"

        def read() -> Incident | None:
            row = self._db.execute(query, (incident_id,)).fetchone()
            return _incident(row) if row else None

        return self._thread.submit(read)

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> Future[None]:
        def commit() -> None:
            with self._db:
                work(self._db)

        return self._thread.submit(commit)

    def _recall(self) -> Memory:
        pauses: dict[str, tuple[Pause, ...]] = {}
        for job, phase, frame_class, length_s in self._db.execute("SELECT * FROM pauses"):
            pause = Pause(phase=phase, frame_class=frame_class, length_s=length_s)
            pauses[job] = (*pauses.get(job, ()), pause)
        query = f"SELECT {_INCIDENT}, NULL FROM incidents WHERE closed_at IS NULL"
        columns = "job, number, typical_step_s, processes"
        return Memory(
            pauses=pauses,
            generations={
                job: PastGeneration(
                    number=number,
                    typical_step_s=typical_step_s,
                    processes=_decode(processes, frozenset[ProcessKey]),
                )
                for job, number, typical_step_s, processes in self._db.execute(
                    f"SELECT {columns} FROM generations"
                )
            },
            open_incidents=tuple(_incident(row) for row in self._db.execute(query)),
        )


_SAVE_PAUSE = """
INSERT INTO pauses (job, phase, frame_class, length_s) VALUES (?, ?, ?, ?)
ON CONFLICT (job, phase, frame_class) DO UPDATE SET length_s = excluded.length_s
"""

_SAVE_GENERATION = """
INSERT INTO generations (job, number, typical_step_s, processes) VALUES (?, ?, ?, ?)
ON CONFLICT (job) DO UPDATE SET number = excluded.number,
    typical_step_s = excluded.typical_step_s, processes = excluded.processes
"""

_SAVE_INCIDENT = f"""
INSERT INTO incidents ({_INCIDENT}, evidence) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET status = excluded.status, updated_at = excluded.updated_at,
    closed_at = excluded.closed_at, verdict = excluded.verdict,
    evidence = COALESCE(excluded.evidence, incidents.evidence)
"""


def _lock(path: Path) -> TextIO:
    """Take the store for this process alone; the kernel gives it back however we end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_suffix(".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise StoreError(
            f"another tower uses {path.parent}: give each its own --data-dir"
        ) from None
    return lock


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, SCHEMA_VERSION):
        db.close()
        raise StoreError(
            f"the store {path} has schema version {version}, this watchtower needs "
            f"{SCHEMA_VERSION}: run the version that wrote it, or choose another --data-dir"
        )
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")  # acknowledged means: survives a power cut
    db.executescript(files("watchtower.store").joinpath("schema.sql").read_text("utf-8"))
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.commit()
    return db


def _save_incident(db: sqlite3.Connection, incident: Incident) -> None:
    case = None if incident.case is None else _encode(incident.case)
    row = (
        incident.id,
        incident.job,
        incident.generation,
        incident.status.value,
        incident.opened_at,
        incident.updated_at,
        incident.closed_at,
        _encode(incident.verdict),
        case,
    )
    db.execute(_SAVE_INCIDENT, row)


def _save_dumps(
    db: sqlite3.Connection, batch: DumpBatch, received_at: float, max_dumps: int
) -> None:
    row = (batch.id, batch.job, batch.node, received_at, _encode(batch))
    db.execute(
        "INSERT INTO dumps (id, job, node, received_at, batch) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO NOTHING",
        row,
    )
    db.execute(
        "DELETE FROM dumps WHERE received_at <= (SELECT received_at FROM dumps"
        " ORDER BY received_at DESC LIMIT 1 OFFSET ?)",
        (max_dumps,),
    )


def _incident(row: tuple[object, ...]) -> Incident:
    ident, job, generation, status, opened_at, updated_at, closed_at, verdict, case = row
    return msgspec.convert(
        {
            "id": ident,
            "job": job,
            "generation": generation,
            "status": Status(status),
            "opened_at": opened_at,
            "updated_at": updated_at,
            "closed_at": closed_at,
            "verdict": _decode(verdict, Verdict),
            "case": None if case is None else _decode(case, Case),
        },
        Incident,
    )


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _decode(text: object, kind: type[_T]) -> _T:
    return msgspec.json.decode(str(text), type=kind)
