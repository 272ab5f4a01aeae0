"""Queries the tower. A missing answer is not an error, because parts of a drill start and stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from watchtower.commands import client

TIMEOUT_S = 5.0

Json = dict[str, object]

_Answer = TypeVar("_Answer")


class PatientClient:
    """The tower's API. None means that there is no answer yet."""

    def __init__(self, url: str) -> None:
        self._client = client.TowerClient(url, TIMEOUT_S)

    def verdict(self, job: str) -> Json | None:
        """Return the tower's current verdict on the job."""
        return _answer(lambda: self._client.verdict(job))

    def jobs(self) -> list[Json] | None:
        """Return every live job."""
        return _answer(self._client.jobs)

    def job(self, job: str) -> Json | None:
        """Return ranks, nodes and dumps of the job."""
        return _answer(lambda: self._client.job(job))

    def incidents(self, job: str | None = None) -> list[Json] | None:
        """Return every incident, or those of one job, newest first."""
        return _answer(lambda: self._client.incidents(job))

    def incident(self, incident: str) -> Json | None:
        """Return one incident with its verdict and stacks."""
        return _answer(lambda: self._client.incident(incident))

    def outages(self) -> list[Json] | None:
        """Return every outage, newest first."""
        answer = _answer(self._client.list_outages)
        return None if answer is None else json_list(answer["items"])

    def metrics(self) -> str | None:
        """Return the tower's metrics."""
        return _answer(self._client.metrics)


def json_list(value: object) -> list[Json]:
    """Return the objects of a list; empty if the value is not a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _answer(ask: Callable[[], _Answer]) -> _Answer | None:
    try:
        return ask()
    except client.ClientError:
        # Unknown (404), starting, or busy: the next poll asks again.
        return None
