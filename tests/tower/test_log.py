"""The tower's log: one line per record for any names, and no owner's lines hide another's."""

from __future__ import annotations

import io
import logging

import pytest

from watchtower.service import daemon
from watchtower.service.daemon import (
    BURST,
    CALL_BURST,
    CALL_PER_S,
    MAX_LINE,
    LogLimit,
)

MAX_SHARERS = 500
"""Fewer than a tower knows: each test exceeds it three times."""

FORGED = "a\n2026-01-01 00:00:00,000 INFO job llama: hung -> recovered\r\u202egnp.exe\x1b[2J\udc80"


class Log:
    """A logger with the tower's format, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self._stream = io.StringIO()
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        self.limit = LogLimit(lambda: self.now)
        handler.addFilter(self.limit)
        self.logger = logging.Logger("test")
        self.logger.addHandler(handler)

    def say(self, job: str, sharer: str) -> None:
        self.logger.info("job %s: seen", job, extra={"sharer": sharer})

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()


@pytest.fixture
def log(monkeypatch) -> Log:
    monkeypatch.setattr(daemon, "MAX_SHARERS", MAX_SHARERS)
    return Log()


def test_a_name_makes_no_second_line_and_no_direction_or_terminal_code(log):
    log.say(FORGED, "uid:1")
    (line,) = log.lines
    assert line.startswith("INFO job a 2026-01-01")
    assert line.isprintable()


def test_a_long_text_is_cut(log):
    log.logger.error("%s", "x" * 100_000)
    assert len(log.lines[0]) == len("ERROR ") + MAX_LINE


def test_a_traceback_forges_no_line(log):
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.logger.exception("job %s failed", "bad")
    first, *rest = log.lines
    assert first == "ERROR job bad failed"
    assert rest[0] == "  | Traceback (most recent call last):"
    assert all(line.startswith("  | ") and line.isprintable() for line in rest)


def test_one_owner_s_jobs_hide_no_line_of_another_owner(log):
    for number in range(1000):
        log.say(f"bad{number}", "uid:2000")
    log.say("llama", "uid:1000")
    assert len(log.lines) == BURST + 1
    assert log.lines[-1] == "INFO job llama: seen"
    log.now = 10.0
    log.say("bad", "uid:2000")
    assert log.lines[-1] == f"INFO job bad: seen (and {1000 - BURST} more like it)"


def flood(log: Log, seconds: int, sharers: int) -> None:
    """Log one message again and again, for `sharers` owners in turn."""
    for number in range(3 * MAX_SHARERS):
        log.now = seconds * number / (3 * MAX_SHARERS)
        log.say("bad", f"uid:{number % sharers}")


def test_many_owners_together_do_not_fill_the_log(log):
    flood(log, seconds=100, sharers=MAX_SHARERS // 2)
    assert len(log.lines) <= CALL_BURST + 100 * CALL_PER_S


def test_owners_without_end_do_not_fill_the_log_and_take_no_memory(log):
    flood(log, seconds=100, sharers=10**9)
    assert len(log.lines) <= CALL_BURST + 100 * CALL_PER_S
    assert len(log.limit._sharers) == MAX_SHARERS


def test_a_sentence_that_floods_hides_no_other_sentence(log):
    flood(log, seconds=1, sharers=10**9)
    log.logger.error("the store fails")
    log.logger.info("job %s: hung", "llama", extra={"sharer": "uid:5"})
    assert log.lines[-2] == "ERROR the store fails"


def test_what_was_left_out_of_many_owners_is_counted(log):
    flood(log, seconds=1, sharers=10**9)
    written = len(log.lines)
    log.now = 1000.0
    log.say("llama", "uid:1000")
    assert log.lines[-1] == f"INFO job llama: seen (and {3 * MAX_SHARERS - written} more like it)"


def test_a_sentence_that_is_said_again_and_again_is_counted(log):
    """An agent's lines have no sharer."""
    for second in range(1200):
        log.now = float(second)
        for _ in range(3):
            log.logger.warning("order %s is refused", f"\n{second}\x1b[2J")
    log.logger.info("something else")
    assert len(log.lines) <= BURST + 120 + 1
    assert log.lines[-1] == "INFO something else"
    assert "more like it)" in log.lines[-2]
    assert all(line.isprintable() for line in log.lines)
