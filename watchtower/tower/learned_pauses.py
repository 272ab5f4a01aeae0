"""The pauses that jobs have learned: those of live jobs, and those of jobs that may come back."""

from __future__ import annotations

from collections.abc import Mapping

from watchtower.fleet.fleet import MAX_JOBS, MAX_PAST, Fleet
from watchtower.jobs.pauses import FADE_A_DAY, Pause, Pauses
from watchtower.tower.clock import Clock
from watchtower.tower.live import PAUSES
from watchtower.tower.store_writer import DAY_S, StoreWriter


class LearnedPauses:
    """The pauses of every job, by its name. They are in the memory account of the fleet."""

    def __init__(
        self,
        fleet: Fleet,
        writer: StoreWriter,
        stored: Mapping[str, tuple[Pause, ...]],
        clock: Clock,
    ) -> None:
        """`stored` are the pauses of earlier runs, by job."""
        self._fleet, self._writer, self._clock = fleet, writer, clock
        self.by_job = {job: Pauses(known) for job, known in stored.items()}
        for job, known in self.by_job.items():
            fleet.count_kept(PAUSES, job, known)
        self._faded_on = int(clock.wall() // DAY_S)

    def of(self, job: str) -> Pauses:
        """Return the pauses of a job that begins."""
        return self.by_job.setdefault(job, Pauses())

    def fade(self) -> None:
        """Shorten all pauses once a day."""
        days = int(self._clock.wall() // DAY_S) - self._faded_on
        if days > 0:
            self._faded_on += days
            for pauses in self.by_job.values():
                pauses.fade(FADE_A_DAY**days)
            self._writer.fade_pauses(FADE_A_DAY**days)

    def retain(self, name: str) -> None:
        """Keep the pauses of a job that is over. If there are too many, drop those of jobs that the
        fleet does not know any more."""
        pauses = self.by_job.get(name)
        if pauses:
            self._fleet.count_kept(PAUSES, name, pauses)
        else:
            self.by_job.pop(name, None)
        if len(self.by_job) > 2 * (MAX_PAST + MAX_JOBS):
            for gone in self.by_job.keys() - self._fleet.past.keys() - self._fleet.jobs.keys():
                del self.by_job[gone]
                self._fleet.account.remove((PAUSES, gone))
