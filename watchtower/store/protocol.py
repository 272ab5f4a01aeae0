"""The store, as those that write to it and read from it know it.

Calls are carried out in order. The future of a call is done when the data is safe, or read, and has
the error of a call that failed. After `close` a call raises RuntimeError.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from watchtower.incidents.incident import Ack, Delivery, Feedback, Incident, Silence
from watchtower.incidents.incident_filter import ALL_INCIDENTS, IncidentFilter
from watchtower.store.lease import Lease
from watchtower.store.values import (
    AlertRow,
    AttemptRow,
    DumpRow,
    PauseRow,
    SeriesRow,
    StartupState,
)
from watchtower.wire.dumps import SentBatch


class StoreError(Exception):
    """The store cannot be opened. The message contains the reason and what to do."""


class Store(Protocol):
    """Data that outlives the tower."""

    failure: Exception | None
    """The error if the store could not be opened at the start, else None."""
    set_aside: Path | None
    """New path of the last run's file if it was damaged, else None."""
    advice: str
    """What an operator can do while it fails."""
    lease: Lease | None
    """Who owns the jobs, if several towers may use it, else None."""

    def recall(self) -> StartupState:
        """Read the state of the last run that a starting tower needs. Raises StoreError."""

    def close(self) -> None:
        """Finish the begun calls, and close it."""

    def save_incident(self, incident: Incident) -> Future[None]:
        """Insert or update an incident. An update without a case does not remove a stored case."""

    def incident(self, incident_id: str, *, with_case: bool = True) -> Future[Incident | None]:
        """Read one incident, with its case if wanted; None if the id is unknown."""

    def incidents(
        self, chosen: IncidentFilter = ALL_INCIDENTS, limit: int = 100
    ) -> Future[list[Incident]]:
        """Read incidents, newest first, without their cases."""

    def incident_ids(self, prefix: str, limit: int) -> Future[list[tuple[str, str]]]:
        """Read id and job of incidents whose id begins with `prefix`, in the order of ids."""

    def summary(self, incident_id: str) -> Future[bytes | None]:
        """Read the summary of an incident's case; None without one."""

    def save_dumps(
        self, job: str, sent: SentBatch, received_at: float, sharer: str = ""
    ) -> Future[None]:
        """Insert a batch of a job. A batch that is stored already does not change.

        `job` is the tower's label of the job. The agent's name for it is not unique: another owner
        may have a job of that name. `sharer` is the owner whose share of the store it uses.
        """

    def dumps(
        self, job: str, since: float, until: float | None = None, after: DumpRow | None = None
    ) -> Future[list[DumpRow]]:
        """Read one page of the dumps of a job between `since` and `until`, newest first.

        `after` is the last batch of the page before.
        """

    def save_series(self, row: SeriesRow) -> Future[None]:
        """Store the series of one launch for an incident, in place of earlier ones."""

    def series(self, incident: str) -> Future[list[SeriesRow]]:
        """Read the series of an incident, by node."""

    def save_rows(self, learned: Sequence[AttemptRow | PauseRow]) -> Future[None]:
        """Store last attempts and longest pauses of jobs: all of them, or none."""

    def fade_pauses(self, share: float) -> Future[None]:
        """Multiply the length of every pause by `share`."""

    def save_ack(self, incident_id: str, ack: Ack) -> Future[bool]:
        """Store the acknowledgement of an incident. The result is False if the id is unknown."""

    def save_feedback(self, given: Feedback) -> Future[None]:
        """Store an answer about an incident, in place of an earlier one."""

    def save_silence(self, silence: Silence) -> Future[None]:
        """Store a silence, in place of an earlier one of the same job, node or user."""

    def remove_silence(self, ident: str) -> Future[None]:
        """Remove a silence."""

    def save_alert(self, row: AlertRow) -> Future[None]:
        """Store what a destination must show about an incident, and what it has received."""

    def remove_alert(
        self, destination: str, incident: str, delivered_at: float | None = None
    ) -> Future[None]:
        """Remove an alert: its end was delivered at this time, or it is given up."""

    def deliveries(self, incident: str) -> Future[tuple[Delivery, ...]]:
        """Read the first message to each destination about an incident, earliest first."""

    def prune(self, wall: float) -> Future[None]:
        """Delete data over the limits, in small parts between other calls."""

    def probe(self) -> Future[None]:
        """Write something that changes nothing, to check that writes succeed."""

    def check(self) -> Future[None]:
        """Check that what is written will be found again. Renews the lease, if there is one."""

    def claim(self) -> Future[bool]:
        """Try to become the owner. Return whether this tower is the owner of the jobs."""

    def shared_key(self, name: str, new: str) -> str:
        """Return the secret of this name that all towers share; `new`, which is stored, without
        one. "" if only one tower can open the store. Raises StoreError."""
