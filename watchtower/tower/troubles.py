"""Trouble with one job: logged when it begins, counted, and kept from all other jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from watchtower.core.fleet.fleet import MAX_JOBS

log = logging.getLogger("watchtower.tower")


class Troubles:
    """Remembers what failed of which job, so that it is logged once and not every second."""

    def __init__(self) -> None:
        self.jobs: dict[str, set[str]] = {}
        """What fails now, by job: `MAX_JOBS` at most, the oldest make room."""

    def guard(self, job: str, what: str, work: Callable[[], object], sharer: str = "") -> bool:
        """Do some work for one job; False when it failed, which stays its own."""
        try:
            work()
        except Exception as error:
            self.note(job, what, error, sharer)
            return False
        self.end(job, what)
        return True

    def note(self, job: str, what: str, error: Exception, sharer: str = "") -> None:
        """Log that `what` failed for a job, unless it failed the last time too."""
        failing = self.jobs.setdefault(job, set())
        if what not in failing:
            failing.add(what)
            extra = {"sharer": sharer or job}
            text = "job %s: %s failed; the other jobs go on"
            log.error(text, job, what, exc_info=error, extra=extra)
        if len(self.jobs) > MAX_JOBS:
            del self.jobs[next(iter(self.jobs))]

    def end(self, job: str, what: str) -> None:
        """Note that `what` worked."""
        failing = self.jobs.get(job)
        if failing is not None:
            failing.discard(what)
            if not failing:
                del self.jobs[job]
