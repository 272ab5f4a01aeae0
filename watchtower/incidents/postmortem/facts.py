"""The facts that a post-mortem is written from."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.incidents.kill_text import KillFacts
from watchtower.wire.stacks import Frame
from watchtower.wire.verdict import Verdict, VerdictEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Ranks whose main threads had the same stack."""

    ranks: str
    """Rank set."""
    frames: tuple[Frame, ...]
    """Innermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The acknowledgement by a person."""

    at: float
    by: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The first message about the incident to one destination."""

    at: float
    destination: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPicture:
    """Which ranks waited for which, as a drawing and in words."""

    svg: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PostmortemFacts:
    """An incident and what was known of its job. Times are UNIX seconds. None: not known."""

    verdict: Verdict
    kind: str
    """"hung", "never_started" or "ended"."""
    opened_at: float
    closed_at: float | None
    now: float
    as_of: float
    """Time of `verdict.stalled_for_s`."""
    kill: KillFacts
    """What a kill of the job loses, or the end of the job has lost."""
    suspect_at: float | None = None
    owner: str = ""
    link: str = ""
    verdicts: tuple[VerdictEntry, ...] = ()
    ack: Acknowledged | None = None
    alerts: tuple[Sent, ...] = ()
    ranks: int | None = None
    """World size."""
    step_s: float | None = None
    """Seconds that a step usually took."""
    stacks: tuple[StackGroup, ...] | None = None
    """Rarest first; None if the evidence was deleted."""
    waits: WaitPicture | None = None
    """None if it is not known which ranks waited for which."""

    @property
    def is_open(self) -> bool:
        """Whether the incident is not over."""
        return self.closed_at is None

    @property
    def lost_s(self) -> float:
        """Seconds without a step, until the end of the incident or until `as_of`."""
        return max(0.0, self.verdict.stalled_for_s)

    @property
    def stopped_at(self) -> float:
        """Time of the last step, or of the start if there was none."""
        return self.as_of - self.lost_s
