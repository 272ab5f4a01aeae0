"""Errors in the handling of one job: they are logged once and do not affect other jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from watchtower.fleet.fleet import MAX_JOBS

log = logging.getLogger("watchtower.tower")


class Troubles:
    """Stores which work fails for which job, so that an error is not logged every second."""

    def __init__(self) -> None:
        self.jobs: dict[str, set[str]] = {}
        """Work that fails now, by job. At most `MAX_JOBS` jobs; the oldest are dropped first."""

    def guard(self, job: str, what: str, work: Callable[[], object], sharer: str = "") -> bool:
        """Do some work for one job. Return False if it failed. The error is logged, not raised."""
        try:
            work()
        except Exception as error:
            self.note(job, what, error, sharer)
            return False
        self.end(job, what)
        return True

    def note(self, job: str, what: str, error: Exception, sharer: str = "") -> None:
        """Log that `what` failed for a job, unless it also failed the last time."""
        failing = self.jobs.setdefault(job, set())
        if what not in failing:
            failing.add(what)
            extra = {"sharer": sharer or job}
            text = "job %s: %s failed; other jobs are not affected"
            log.error(text, job, what, exc_info=error, extra=extra)
        if len(self.jobs) > MAX_JOBS:
            del self.jobs[next(iter(self.jobs))]

    def end(self, job: str, what: str) -> None:
        """Note that `what` succeeded."""
        failing = self.jobs.get(job)
        if failing is not None:
            failing.discard(what)
            if not failing:
                del self.jobs[job]
