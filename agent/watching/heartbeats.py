"""One rank's heartbeat page over time: ages, steps since the last report, last exception."""

from __future__ import annotations

import time

from watchtower_heartbeat.page import PageError, PageView

from agent.discovery.pages import PageFile
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT
from watchtower.wire.report import EXIT_PHASE, LINE_END, Beat

NS_PER_S = 1e9


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
