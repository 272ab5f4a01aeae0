"""Errors in the handling of one job: they are logged once and do not affect other jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from watchtower.fleet.fleet import MAX_JOBS
from watchtower.jobs.keeper import Keeper

log = logging.getLogger("watchtower.tower")


class Troubles:
    """Logs what fails for a job, unless it also failed the last time."""

    def __init__(self, keepers: Mapping[str, Keeper]) -> None:
        self._keepers = keepers
        self._unread: set[str] = set()
        """Names of jobs whose first report failed, so that they have no keeper."""

    def guard(self, keeper: Keeper, what: str, work: Callable[[], object]) -> bool:
        """Do some work for one job. Return False if it failed. The error is logged, not raised."""
        try:
            work()
        except Exception as error:
            self.note(keeper.name, what, error)
            return False
        self.end(keeper.name, what)
        return True

    def note(self, job: str, what: str, error: Exception) -> None:
        """Log that `what` failed for a job, unless it also failed the last time."""
        keeper = self._keepers.get(job)
        failing, entry = (keeper.failing, what) if keeper else (self._unread, job)
        if entry not in failing:
            failing.add(entry)
            extra = {"sharer": keeper.sharer if keeper else job}
            text = "job %s: %s failed; other jobs are not affected"
            log.error(text, job, what, exc_info=error, extra=extra)
        if len(self._unread) > MAX_JOBS:
            self._unread.clear()

    def end(self, job: str, what: str) -> None:
        """Note that `what` succeeded."""
        keeper = self._keepers.get(job)
        if keeper is not None and keeper.failing:
            keeper.failing.discard(what)
