"""One watched rank: its heartbeats, vitals and end, from its discovery until it is forgotten."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from watchtower_heartbeat.page import PageError, PageView

from agent.collectors.endings import UNKNOWN_STATUS, EndWatch, ExitStatus
from agent.collectors.process import (
    BlockMeter,
    MovementMeter,
    OpenFiles,
    TickBudget,
    read_state,
)
from agent.collectors.traffic import TcpBytes, TrafficMeter
from agent.procfs import CLOCK_TICKS_PER_S, Proc
from agent.ranks.found_rank import FoundRank
from agent.ranks.pages import PageFile
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT
from watchtower.wire.report import (
    EXIT_PHASE,
    LINE_END,
    Beat,
    Ending,
    EndingKind,
    Movement,
    ProcessState,
    RankVitals,
)


class Heartbeat:
    """Stores the last view of the page: the page of a dead process still shows how it ended.

    The process can write any time on the page. Times before its start count as its start.
    """

    def __init__(self, page: PageFile, started_ns: int) -> None:
        """`started_ns`: when the process started (CLOCK_MONOTONIC)."""
        self.page = page
        self.view: PageView | None = None
        self.problem = ""
        self._started_ns = started_ns
        self._made_ns = time.monotonic_ns() - page.age_ns()
        self._reported_step, self._reported_ns, self._reported_at_ns = -1, 0, 0
        if (view := self.read()) is not None:
            self._note_reported(view, time.monotonic_ns())

    def read(self) -> PageView | None:
        """Read the page again. If it cannot be read, the last view stays."""
        try:
            self.view = self.page.read()
            self.problem = ""
        except PageError as error:
            self.problem = error.reason
        return self.view

    def view_now(self) -> PageView | None:
        """Return the page without changing any state. For a dump in another thread."""
        try:
            return self.page.read()
        except PageError:
            return None

    def beat(self, now_ns: int) -> Beat | None:
        """Return the heartbeat for a report at `now_ns`, with the steps since the previous
        report.
        """
        view = self.view
        if view is None:
            return None
        advanced, interval_s = self._advance(view, now_ns)
        # A later heartbeat means that the process survived the exception.
        is_over = view.ended_ns >= view.beat_ns
        phase, phase_since_ns = view.phase[:MAX_NAME], view.phase_since_ns
        if is_over and view.ended in ("finished", "exit"):
            phase, phase_since_ns = EXIT_PHASE, view.ended_ns
        return Beat(
            step=max(view.step, -1),
            age_s=_age_s(now_ns, self.beat_ns()),
            phase=phase,
            phase_age_s=_age_s(now_ns, self._moment(phase_since_ns)) if phase else 0.0,
            advanced=advanced,
            interval_s=interval_s,
            loss_is_bad=_loss_is_bad(view),
            exception_type=view.exception_type[:MAX_NAME] if is_over else "",
            exception_text=join_lines(view.exception_message) if is_over else "",
        )

    def beat_ns(self) -> int:
        """Return when the last heartbeat was; without one, when the page was made."""
        view = self.view
        if view is None or view.step < 0:
            return self._made_ns
        return self._moment(view.beat_ns)

    def _moment(self, written_ns: int) -> int:
        """Return a time on the page, but not before the start of the process."""
        return max(written_ns, self._started_ns)

    def _note_reported(self, view: PageView, now_ns: int) -> None:
        self._reported_step, self._reported_ns = view.step, view.beat_ns
        self._reported_at_ns = min(self._moment(view.beat_ns), now_ns)

    def _advance(self, view: PageView, now_ns: int) -> tuple[int, float]:
        before, before_ns = self._reported_step, self._reported_ns
        before_at_ns = self._reported_at_ns
        self._note_reported(view, now_ns)
        if view.step < 0 or view.beat_ns <= max(0, before_ns):
            return 0, 0.0
        if before < 0:  # the first heartbeat; a resumed job may begin at any step
            return 1, 0.0
        # A loop that counts from zero in each epoch goes back. At least one heartbeat was made
        # then.
        advanced = view.step - before if view.step > before else 1
        return advanced, _age_s(self._reported_at_ns, before_at_ns) / advanced


def join_lines(message: str) -> str:
    """Return the lines of an exception's message as one line of text."""
    return message.replace("\n", LINE_END)[:MAX_TEXT]


def _age_s(now_ns: int, then_ns: int) -> float:
    return max(0.0, (now_ns - then_ns) / NS_PER_S)


def _loss_is_bad(view: PageView) -> bool:
    return view.nonfinite_losses > 0 and view.last_nonfinite_step >= view.step


NS_PER_S = 10**9

MAX_EXIT_CODE = 255
"""A parent gets eight bits. A larger code on a page cannot be true."""

MAX_TEARDOWN_S = 3600.0
"""Seconds from an exception to the end of its process that are believed: an exit handler, or a
device that is released."""


class WatchedRank:
    """The open files of one rank: its page, its /proc files, its pidfd."""

    def __init__(
        self, proc: Proc, found: FoundRank, now: float, tcp: TcpBytes, interval_s: float
    ) -> None:
        self.found = found
        self.found_at = now
        self.ended_at: float | None = None
        self.heartbeat: Heartbeat | None = None
        self.configuration = ""
        """Digest of its configuration; empty until it is read."""
        self._status: ExitStatus = UNKNOWN_STATUS
        self._files = OpenFiles(proc, found.process.pid)
        self.end_watch = EndWatch(found.process.pid, found.process.start_time, self._files)
        self._meter = MovementMeter(proc, found.process, self._files)
        self._block = BlockMeter(self._files)
        self._traffic = TrafficMeter(
            proc=proc, process=found.process, tcp=tcp, interval_s=interval_s
        )
        self.update(found)

    @property
    def key(self) -> tuple[int, int]:
        """Pid and start time, which together identify a process for ever."""
        return self.found.process.pid, self.found.process.start_time

    def __str__(self) -> str:
        return f"rank {self.found.claim.rank} of {self.found.job} (pid {self.found.process.pid})"

    def update(self, found: FoundRank) -> None:
        """Replace what discovery found: a page or a job name may be new."""
        self.found = found
        known = self.heartbeat.page if self.heartbeat is not None else None
        if found.page is not None and found.page is not known:
            self.heartbeat = Heartbeat(found.page, started_ns(found.process.start_time))

    def read_page(self) -> PageView | None:
        """Read the heartbeat page again."""
        return self.heartbeat.read() if self.heartbeat is not None else None

    @property
    def has_stepped(self) -> bool:
        """Whether its heartbeats show a step."""
        view = self.heartbeat.view if self.heartbeat is not None else None
        return view is not None and view.step >= 0

    def notice_end(self, now: float) -> bool:
        """Check whether the process ended, and how. Return True only if it has just ended."""
        just_ended = self.ended_at is None and self.end_watch.has_ended()
        if just_ended:
            self.ended_at = now
            self.read_page()
        if self.ended_at is not None and self._status.kind is EndingKind.UNKNOWN:
            self._status = self.end_watch.status()
        return just_ended

    def vitals(self, now: float, budget: TickBudget) -> RankVitals:
        """Return the state of the rank for a report at `now`."""
        process, claim = self.found.process, self.found.claim
        state, wchan, movement, blocked_s = ProcessState.GONE, "", Movement(), 0.0
        if self.ended_at is None:
            stat = self._files.stat()
            state, wchan = read_state(self._files, stat)
            movement, budget.left = self._meter.sample(stat, budget.left)
        elif self.end_watch.is_zombie():
            state = ProcessState.ZOMBIE
        beat = None
        if self.heartbeat is not None:
            self.heartbeat.read()
            beat = self.heartbeat.beat(time.monotonic_ns())
        if self.ended_at is None:
            # Lateness of a rank without a page is unknown, so its traffic is always measured.
            moved = self._traffic.measure(math.inf if beat is None else beat.age_s)
            if moved:
                movement = replace(movement, socket_bytes_per_s=moved)
            if beat is None or beat.step < 0:
                blocked_s = self._block.measure(now)
        return RankVitals(
            job=self.found.job.name,
            owner=self.found.job.owner,
            launch=self.found.job.launch,
            launched=self.found.launched,
            rank=claim.rank,
            pid=process.pid,
            start_time=process.start_time,
            world_size=claim.world_size,
            local_rank=claim.local_rank,
            role=claim.role,
            restart_count=claim.restart_count,
            found_age_s=max(0.0, now - self.found_at),
            beat=beat,
            state=state,
            wchan=wchan,
            movement=movement,
            blocked_s=blocked_s,
            ended=self.ending(now),
            configuration=self.configuration,
        )

    def ending(self, now: float) -> Ending | None:
        """Return how it ended, with its age at `now`; None while it lives."""
        if self.ended_at is None:
            return None
        view = self.heartbeat.view if self.heartbeat is not None else None
        age_s = max(0.0, now - self.ended_at)
        return make_ending(self._status, view, age_s=age_s, ended_at_s=self.ended_at)


def started_ns(start_time: int) -> int:
    """Return when a process started, in CLOCK_MONOTONIC nanoseconds, as on heartbeat pages.

    The kernel counts `start_time` in ticks since boot and includes suspend.
    """
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - start_time * NS_PER_S // CLOCK_TICKS_PER_S
    return time.monotonic_ns() - age_ns


def make_ending(
    status: ExitStatus, view: PageView | None, *, age_s: float, ended_at_s: float = 0.0
) -> Ending:
    """Combine the kernel's status with the last exception on the page. The kernel has priority.

    `ended_at_s`: when the process ended, in seconds of CLOCK_MONOTONIC.
    """
    kind, code = status.kind, status.code
    if view is None or view.ended_ns < view.beat_ns:  # it survived that exception
        return Ending(kind=kind, code=code, age_s=age_s)
    if kind is EndingKind.UNKNOWN and view.ended in ("finished", "exception", "exit"):
        kind = EndingKind.EXIT
        code = _code_on_page(view)
    return Ending(
        kind=kind,
        code=code,
        age_s=age_s,
        exception_type=view.exception_type[:MAX_NAME],
        exception_text=join_lines(view.exception_message),
        raised_before_s=_raised_before_s(view, ended_at_s) if view.ended == "exception" else 0.0,
    )


def _raised_before_s(view: PageView, ended_at_s: float) -> float:
    """Return how long before its end a process raised; 0 if its page has no believable time."""
    before_s = ended_at_s - view.ended_ns / NS_PER_S
    return before_s if 0 <= before_s <= MAX_TEARDOWN_S else 0.0


def _code_on_page(view: PageView) -> int | None:
    """Return the exit code on the page. A normal shutdown also has one after `sys.exit(3)`."""
    if view.ended == "exit" and 0 <= view.exit_code <= MAX_EXIT_CODE:
        return view.exit_code
    return 1 if view.ended == "exception" else None
