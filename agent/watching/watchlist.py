"""The watched ranks: living ones, and those that ended recently.

An agent that was restarted did not see how the ranks ended that ended while it was away. It can
still see that a process does not exist, if the tower misses it in the reports.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from agent.collectors.listeners import Ended
from agent.collectors.process import TickBudget
from agent.collectors.traffic import TcpBytes
from agent.procfs import Proc, parse_stat
from agent.ranks.found_rank import FoundRank, RankBeat
from agent.ranks.unwatched import MAX_ENDED
from agent.watching.rank import WatchedRank
from watchtower.service.sharing import by_turns
from watchtower.wire.bounds import MAX_RANKS_PER_NODE
from watchtower.wire.report import CHECKPOINT, Launch, ProcessId, RankVitals

log = logging.getLogger(__name__)

ENDED_KEPT_S = 3600.0
"""Seconds that an ended rank stays in the reports, so that a tower that starts later receives
it.
"""

NS_PER_S = 1e9

Key = tuple[int, int]
_T = TypeVar("_T")


class Watchlist:
    """Watches the ranks that discovery found. One failing process never stops the check of the
    others.
    """

    def __init__(self, proc: Proc, interval_s: float) -> None:
        self._proc, self._interval_s = proc, interval_s
        self._ranks: dict[Key, WatchedRank] = {}
        self._troubles: dict[tuple[Key, str], str] = {}
        self._budget = TickBudget()
        self._tcp = TcpBytes()

    def update(self, found: Iterable[FoundRank], now: float) -> None:
        """Watch new ranks, and forget processes that are not ranks any more or ended long ago."""
        current = {(each.process.pid, each.process.start_time): each for each in found}
        for key, each in current.items():
            self._guard(key, "found", partial(self._take_over, key, each, now))
        self.notice_ends(now)
        for key, rank in list(self._ranks.items()):
            if rank.ended_at is None and key not in current:
                log.info("%s is not a rank any more", rank)
                del self._ranks[key]
        self._forget_old(now)

    def notice_ends(self, now: float) -> bool:
        """Check which processes ended. Return True if one has just ended."""
        any_ended = False
        for key, rank in self._ranks.items():
            if self._guard(key, "watched", partial(rank.notice_end, now)):
                log.info("%s ended", rank)
                any_ended = True
        return any_ended

    def living(self) -> list[WatchedRank]:
        """Return the ranks that have not ended."""
        return [rank for rank in self._ranks.values() if rank.ended_at is None]

    def ended(self) -> list[WatchedRank]:
        """Return the ranks that have ended and are not forgotten yet."""
        return [rank for rank in self._ranks.values() if rank.ended_at is not None]

    def found(self) -> list[FoundRank]:
        """Return how the ranks were found, also those that have ended."""
        return [rank.found for rank in self._ranks.values()]

    def ends(self) -> Iterator[Ended]:
        """Yield the ranks that have ended, as the collector of listening sockets needs them."""
        now = time.monotonic()
        for rank in self.ended():
            found = rank.found
            if (ending := rank.ending(now)) is not None:
                yield Ended(
                    pid=found.pid,
                    start_time=found.process.start_time,
                    job=found.job.name,
                    ending=ending,
                    rendezvous=found.launch.rendezvous,
                    serves=found.claim.rank == 0 and not rank.has_stepped,
                    network=found.network,
                )

    def find_job(self, pid: int) -> str:
        """Return the job of a process: of a rank, of one that a rank or that ranks started; empty
        if it is not known."""
        for rank in self._ranks.values():
            top = rank.found.process
            related = (top, *top.descendants(), *top.lineage())
            if any(each.pid == pid and each.alive for each in related):
                return rank.found.job.name
        return ""

    def find_saving(self) -> Iterator[int]:
        """Yield the pids of the living ranks whose phase is a checkpoint. Owners take turns."""
        saving = (
            (rank.found.job.owner, rank.found.process.pid)
            for rank in self.living()
            if (file := rank.heartbeat) is not None
            and (view := file.view) is not None
            and CHECKPOINT in view.phase.lower()
        )
        return by_turns(saving)

    def launches(self) -> tuple[Launch, ...]:
        """Return the launches of all watched ranks, each once."""
        launches = {rank.found.launch.id: rank.found.launch for rank in self._ranks.values()}
        return tuple(launches.values())[:MAX_RANKS_PER_NODE]

    def keys(self) -> set[Key]:
        """Return (pid, start time) of all watched ranks."""
        return set(self._ranks)

    def vitals(self, now: float) -> tuple[RankVitals, ...]:
        """Return the state of all ranks. A rank that cannot be checked is skipped and logged."""
        self._budget.refill()
        living_first = sorted(self._ranks.items(), key=lambda item: item[1].ended_at is not None)
        every = [
            self._guard(key, "reported", partial(rank.vitals, now, self._budget))
            for key, rank in living_first
        ]
        return tuple(each for each in every if each is not None)[:MAX_RANKS_PER_NODE]

    def beats(self) -> list[RankBeat]:
        """Return the last known heartbeat of every living rank with a page."""
        return [
            RankBeat(
                key=rank.key,
                job=rank.found.job,
                rank=rank.found.claim.rank,
                phase=rank.heartbeat.view.phase,
                beat_at=rank.heartbeat.beat_ns() / NS_PER_S,
            )
            for rank in self.living()
            if rank.heartbeat is not None and rank.heartbeat.view is not None
        ]

    def read_page(self, key: Key) -> None:
        """Read one rank's page again."""
        self._ranks[key].read_page()

    def _take_over(self, key: Key, found: FoundRank, now: float) -> None:
        if key in self._ranks:
            self._ranks[key].update(found)
            return
        rank = self._ranks[key] = WatchedRank(self._proc, found, now, self._tcp, self._interval_s)
        heartbeat = "with" if rank.heartbeat is not None else "without"
        log.info("found %s, %s a heartbeat file", rank, heartbeat)

    def _forget_old(self, now: float) -> None:
        ended = [
            (rank.ended_at, key, rank.found.job)
            for key, rank in self._ranks.items()
            if rank.ended_at is not None
        ]
        ended.sort(reverse=True)
        # The newest of each job first: a job that restarts in a loop does not displace other jobs.
        # An owner with many jobs does not displace other owners.
        turns = by_turns((each[2], each) for each in ended)
        turns = by_turns((each[2].owner, each) for each in turns)
        for count, (ended_at, key, _) in enumerate(turns):
            if count >= MAX_ENDED or now - ended_at > ENDED_KEPT_S:
                del self._ranks[key]
        self._troubles = {at: text for at, text in self._troubles.items() if at[0] in self._ranks}

    def _guard(self, key: Key, what: str, check: Callable[[], _T]) -> _T | None:
        """Run one check of one process. Its exceptions are logged when they change, and go no
        further.
        """
        try:
            result = check()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if self._troubles.get((key, what)) != text:
                self._troubles[key, what] = text
                log.warning("pid %d cannot be %s: %s", key[0], what, text, exc_info=True)
            return None
        self._troubles.pop((key, what), None)
        return result


_DEAD = ("Z", "X", "x")


def find_gone(
    proc: Proc, missing: Iterable[ProcessId], watched: set[tuple[int, int]]
) -> tuple[ProcessId, ...]:
    """Return the processes of `missing` that have ended and are not in `watched`."""
    return tuple(
        each
        for each in missing
        if (each.pid, each.start_time) not in watched and has_ended(proc, each)
    )


def has_ended(proc: Proc, process: ProcessId) -> bool:
    """Return whether a process has ended. If that is not certain, the result is False."""
    try:
        os.kill(process.pid, 0)  # /proc may hide a process that exists (mount option hidepid)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass
    try:
        stat = parse_stat(proc.read(process.pid, "stat", 4096))
    except OSError:
        return False
    if stat is None:
        return False
    return stat.start_time != process.start_time or stat.state in _DEAD
