"""The store in a PostgreSQL database: connected again when the connection is lost, and fenced.

A store owns a partition by a lease: a row with the epoch of its owner. Each transaction begins with
an update of that row, which succeeds only with the epoch of this store. The row is locked until the
commit, so that another store becomes the owner before the transaction or after it, and nothing of
an earlier owner is written after that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import FloatLoader

from watchtower.store import sql_store
from watchtower.store.database import Database, LostConnectionError, Rows, once_more
from watchtower.store.lease import GRACE_S, LEASE_S, Lease, now_s
from watchtower.store.migrations import schema_version, steps_after
from watchtower.store.protocol import StoreError
from watchtower.store.retention import Retention
from watchtower.store.rows import recall_state
from watchtower.store.sql_store import SqlStore
from watchtower.store.values import StartupState

log = logging.getLogger("watchtower.store")

PATIENCE_S = 3.0
"""Seconds that calls wait for a lost connection. A request waits 4 s for the store, and should then
know why. After that each call fails at once, and one in `AGAIN_S` tries to connect."""

AGAIN_S = 0.5
"""Seconds between two tries to connect."""

IDLE_S = 5
"""Seconds between two statements of a transaction, after which the server ends it: a stopped tower
must not keep the lease locked."""

LINK: dict[str, Any] = {
    "application_name": "watchtower",
    "connect_timeout": 2,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Parameters of libpq: a server that is cut off is known to be after 10 s."""

SESSION = f"""
SET client_encoding = 'UTF8';
SET statement_timeout = '60s';
SET lock_timeout = '{3 * IDLE_S}s';
SET idle_in_transaction_session_timeout = '{IDLE_S}s';
"""

MIGRATING = 5_779_031_146
"""The advisory lock of a migration: any number that other programs do not use."""

VERSION = """
CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL);
"""

NOW = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"

PRESENT_S = 2.0
"""Seconds between two notes of a tower that it is there."""

TAKE = f"""
INSERT INTO leases (partition, owner, epoch, until) VALUES (?, ?, 1, {NOW} + ?)
ON CONFLICT (partition) DO UPDATE SET owner = excluded.owner, epoch = leases.epoch + 1,
    until = excluded.until WHERE leases.until < {NOW}
RETURNING epoch
"""
"""Makes this store the owner, if there is no other one or its lease is over."""

HOLD = f"UPDATE leases SET until = {NOW} + ? WHERE partition = ? AND epoch = ?"
"""Changes a row only if this store is still the owner. The row is locked until the commit."""

LEAVE = "UPDATE leases SET until = 0 WHERE partition = ? AND epoch = ?"

FIND = f"""
SELECT owner, until > {NOW}, until > 0, COALESCE(url, '') FROM leases
LEFT JOIN towers ON name = owner WHERE partition = ?
"""
"""The owner, whether its lease goes on, whether it was not given up, and the owner's address."""

PRESENT = f"""
INSERT INTO towers (name, url, seen_at) VALUES (?, ?, {NOW})
ON CONFLICT (name) DO UPDATE SET url = excluded.url, seen_at = excluded.seen_at
"""

ABSENT = f"DELETE FROM towers WHERE name = ? OR seen_at < {NOW} - 86400"

OTHERS = f"SELECT count(*) FROM towers WHERE name <> ? AND seen_at > {NOW} - ?"


class FencedError(Exception):
    """Another tower is the owner now: nothing of this one is stored any more."""


@lru_cache(maxsize=256)
def _as_postgres(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


class PostgresDatabase:
    """A connection as sqlite3 has it."""

    def __init__(self, link: psycopg.Connection[Any]) -> None:
        self._link = link

    @property
    def is_open(self) -> bool:
        return not self._link.closed

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Rows:
        with self._watched():
            return self._link.execute(_as_postgres(sql), [_without_nul(value) for value in values])

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> None:
        with self._watched():
            values = [[_without_nul(value) for value in row] for row in rows]
            self._link.cursor().executemany(_as_postgres(sql), values)

    def script(self, sql: str) -> None:
        """Execute several statements."""
        with self._watched():
            self._link.execute(sql)

    def commit(self) -> None:
        """Commit. Raises LostConnectionError if it is not known whether it is done."""
        with self._watched(may_be_done=True):
            done = self._link.execute("COMMIT").statusmessage
        if done != "COMMIT":  # the answer to COMMIT after a failed statement is ROLLBACK
            raise psycopg.DatabaseError(f"the transaction was not committed: {done}")

    def close(self) -> None:
        self._link.close()

    @contextlib.contextmanager
    def _watched(self, *, may_be_done: bool = False) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if self._link.closed:
                reason = f"the connection to PostgreSQL was lost: {_first_line(error)}"
                raise LostConnectionError(reason, may_be_done=may_be_done) from error
            raise


def _without_nul(value: Any) -> Any:
    """Return a value that PostgreSQL can store: its texts have no NUL."""
    return value.replace("\0", "�") if isinstance(value, str) and "\0" in value else value


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def find_server(url: str, password: str = "") -> tuple[str, str]:
    """Return the parameters of a connection, and its name for people. Raises StoreError."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise StoreError(f"`database` is not an address of PostgreSQL: {error}") from None
    secret = {"password": password} if password else {}
    place = (given.get(key, "") for key in ("host", "port", "dbname"))
    name = f"PostgreSQL ({' '.join(str(part) for part in place if part)})"
    return make_conninfo(**{**LINK, **given, **secret}), name


def connect(parameters: str) -> PostgresDatabase:
    """Connect once. Raises psycopg.OperationalError."""
    link = psycopg.connect(parameters, autocommit=True)
    try:
        link.adapters.register_loader("numeric", FloatLoader)  # the sum of BIGINT
        link.execute(SESSION)
    except psycopg.Error:
        link.close()
        raise
    return PostgresDatabase(link)


def open_for_reading(url: str, password: str) -> PostgresDatabase:
    """Connect to a store that a tower may be using. Raises StoreError."""
    parameters, name = find_server(url, password)
    try:
        db = connect(parameters)
        db.execute("SET default_transaction_read_only = on")
    except psycopg.Error as error:
        raise StoreError(f"cannot reach {name}: {_first_line(error)}") from error
    return db


class PostgresStore(SqlStore):
    """The store in a database of PostgreSQL."""

    advice = "check that PostgreSQL runs and that this machine reaches it"

    def __init__(
        self,
        url: str,
        keep: Retention | None = None,
        *,
        password: str = "",
        partition: int = 0,
        inline: bool = False,
        standby: bool = False,
    ) -> None:
        """Connect, bring the tables up to date, and become the owner. Raises StoreError.

        `standby`: if another tower is the owner, `claim` waits for its lease.
        """
        super().__init__(keep, inline=inline)
        self._open: PostgresDatabase | None = None
        self._partition = partition
        self._lost_at: float | None = None
        self._tried_at, self._failure = 0.0, ""
        name = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        self.lease: Lease = Lease(tower=name)
        self._over_since, self._present_at = float("inf"), float("-inf")
        try:
            self._parameters, self._name = find_server(url, password)
        except StoreError:
            self._thread.stop(0)
            raise
        try:
            self._thread.submit(lambda: self._begin(standby)).result()
        except (psycopg.Error, LostConnectionError, OSError) as error:
            self.close()
            raise StoreError(f"cannot use {self._name}: {error}") from error
        except StoreError:
            self.close()
            raise

    def recall(self) -> StartupState:
        try:
            return self.read(recall_state).result()
        except (psycopg.Error, LostConnectionError, OSError, msgspec.MsgspecError) as error:
            raise StoreError(f"cannot read the store in {self._name}: {error}") from error

    def probe(self) -> Future[None]:
        return self.check()

    def check(self) -> Future[None]:
        def check() -> None:
            with self._transaction() as db:
                self._note_presence(db)

        def renew() -> None:
            try:
                once_more(check)
            except FencedError:
                raise
            except Exception:
                self.lease.failed_at = now_s()
                raise

        return self._thread.submit(renew)

    def claim(self) -> Future[bool]:
        """Become the owner if the lease of the last one is over. Return whether this is the owner.

        The owner was asked for at most `GRACE_S` seconds to renew its lease.
        """

        def claim() -> bool:
            try:
                return self._claim()
            except Exception:
                self._over_since = float("inf")
                self.lease.failed_at = now_s()
                raise

        return self._thread.submit(claim)

    def shared_key(self, name: str, new: str) -> str:
        """Return the secret of this name. Without one, `new` is stored and returned.

        Raises StoreError.
        """

        def read(db: Database) -> str:
            keep = "INSERT INTO keys (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
            db.execute(keep, (name, new))
            found = db.execute("SELECT value FROM keys WHERE name = ?", (name,)).fetchone()
            return str(found[0])

        try:
            return self.read(read).result()
        except (psycopg.Error, LostConnectionError, OSError) as error:
            raise StoreError(f"cannot read {self._name}: {error}") from error

    def close(self) -> None:
        """Execute the queued calls, give up the lease and close, within `CLOSE_S` seconds."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._thread.submit(self._close)
        self._thread.stop(sql_store.CLOSE_S)

    def _close(self) -> None:
        if self._open is None:
            return
        with contextlib.suppress(psycopg.Error, LostConnectionError):
            self._open.execute(LEAVE, (self._partition, self.lease.epoch))
            self._open.execute(ABSENT, (self.lease.tower,))
        self._open.close()

    @property
    def _db(self) -> PostgresDatabase:
        if self._open is None or not self._open.is_open:
            self._open = self._connect()
        return self._open

    def _connect(self) -> PostgresDatabase:
        """Connect, after some tries. Raises ConnectionError."""
        while True:
            if self._is_given_up() and time.monotonic() - self._tried_at < AGAIN_S:
                raise ConnectionError(self._failure)
            self._tried_at = time.monotonic()
            try:
                found = connect(self._parameters)
            except psycopg.OperationalError as error:
                self._failure = f"cannot reach {self._name}: {_first_line(error)}"
                self._lost_at = self._lost_at or time.monotonic()
                if self._is_given_up():
                    raise ConnectionError(self._failure) from None
                time.sleep(AGAIN_S)
            else:
                self._lost_at = None
                return found

    def _is_given_up(self) -> bool:
        return self._lost_at is not None and time.monotonic() - self._lost_at >= PATIENCE_S

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[PostgresDatabase]:
        began, lease = now_s(), self.lease
        with _transaction(self._db) as db:
            if not db.execute(HOLD, (LEASE_S, self._partition, lease.epoch)).rowcount:
                found = db.execute(FIND, (self._partition,)).fetchone()
                lease.lost = (
                    f"another tower took over ({found[0]})"
                    if found
                    else f"the tables of {self._name} were replaced"
                )
                raise FencedError(f"{lease.lost}: nothing of this one is stored any more")
            yield db
        lease.renewed_at = began

    def _begin(self, standby: bool) -> None:
        with _transaction(self._db) as db:
            migrate(db, self._name)
        until = now_s() + LEASE_S + GRACE_S + AGAIN_S
        while not self._claim() and not standby:
            if now_s() >= until:
                raise StoreError(
                    f"another tower uses {self._name}: {self.lease.owner}; use a different "
                    "database for each"
                )
            time.sleep(AGAIN_S)

    def _claim(self) -> bool:
        lease, db, began = self.lease, self._db, now_s()
        self._note_presence(db)
        found = db.execute(FIND, (self._partition,)).fetchone()
        if found is not None:
            lease.owner, goes_on, is_kept, lease.owner_url = found
            self._over_since = float("inf") if goes_on else min(self._over_since, began)
            if goes_on or (is_kept and began - self._over_since < GRACE_S):
                return False
        taken = db.execute(TAKE, (self._partition, lease.tower, LEASE_S)).fetchone()
        if taken is None:
            return False
        lease.epoch, lease.renewed_at, lease.is_held = int(taken[0]), began, True
        lease.owner = lease.owner_url = ""
        return True

    def _note_presence(self, db: PostgresDatabase) -> None:
        """Note that this tower is there, and count the others."""
        if now_s() - self._present_at < PRESENT_S:
            return
        self._present_at = now_s()
        db.execute(PRESENT, (self.lease.tower, self.lease.url))
        self.lease.standbys = int(db.execute(OTHERS, (self.lease.tower, LEASE_S)).fetchone()[0])


@contextlib.contextmanager
def _transaction(db: PostgresDatabase) -> Iterator[PostgresDatabase]:
    db.execute("BEGIN")
    try:
        yield db
    except BaseException:
        with contextlib.suppress(psycopg.Error, LostConnectionError):
            db.execute("ROLLBACK")
        raise
    db.commit()


def migrate(db: PostgresDatabase, where: str) -> None:
    """Bring the tables up to date, in a transaction, one tower at a time. Raises StoreError."""
    db.execute("SELECT pg_advisory_xact_lock(?)", (MIGRATING,))
    db.execute(VERSION)
    found = db.execute("SELECT version FROM schema_version").fetchone()
    steps = steps_after(found[0] if found else 0, where, "use another database")
    if not steps:
        return
    # Texts are ordered and compared by their code points, as SQLite and Python do.
    db.script(steps.replace(" TEXT", ' TEXT COLLATE "C"'))
    db.execute("DELETE FROM schema_version")
    db.execute("INSERT INTO schema_version VALUES (?)", (schema_version(),))
