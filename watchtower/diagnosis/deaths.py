"""How the ranks of a job ended, in which order, and which of them a launcher or scheduler ended.

The agent of a node sees the end of a process within milliseconds and reports how long ago it was,
so the deaths of one node are in order. Ages of two nodes are apart by what their reports took.

A launcher ends its ranks by SIGTERM, SIGINT or SIGKILL, several at one moment. If a rank died
before, the launcher reacted to that death. If none did, the job was cancelled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from watchtower.diagnosis.position import Position
from watchtower.diagnosis.waits.positions import Positions
from watchtower.evidence.error_texts import (
    ERROR_TEXTS,
    OWN,
    ErrorText,
    read_error,
    shape_of,
    split_lines,
)
from watchtower.evidence.exits import SAME_MOMENT_S, DeathKind, classify_ending, signal_name
from watchtower.evidence.frames import last_component
from watchtower.evidence.observed import Observed
from watchtower.wire.observations import Observation
from watchtower.wire.report import LINE_END, Ending
from watchtower.writing.text import clean, count_ranks, format_duration, join_words

JITTER_S = 0.05
"""Deaths on one node closer than this have no order: an agent in the middle of a report sees both
when the report is made. Launchers check their workers every tenth of a second or less often."""


SENT = frozenset({DeathKind.TERMINATED, DeathKind.KILLED})
"""Deaths that another process brings about."""

NO_CAUSE = frozenset({DeathKind.CONSEQUENTIAL, DeathKind.CLEAN})
"""Deaths that do not make other ranks of the job die."""

KILL_GAP_S = 0.25
"""Ranks killed at one moment end this close to each other, although large ones take longer."""

_COMPATIBLE_WITH_CANCELLING = SENT | {DeathKind.CONSEQUENTIAL, DeathKind.CLEAN}

MAX_MESSAGE = 210
"""Characters of a message of several lines: with the name of the rank it fits into an alert."""

MAX_SECOND, MAX_LAST = 40, 128
"""Characters of the second and the last line. The first one has the rest."""

MAX_FOLDERS = 3
"""Folders of a path that is shown in the first one of several lines."""

BESIDE_S = 60.0
"""What a collector observed longer before an error than this is another fault, which the rank
survived."""

AFTERMATH = {
    DeathKind.CONSEQUENTIAL: "ended after losing {their} connection",
    DeathKind.TERMINATED: "received SIGTERM or a similar signal",
    DeathKind.KILLED: "received SIGKILL",
    DeathKind.ABORTED: "aborted",
    DeathKind.CLEAN: "exited with code 0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One rank's end."""

    position: Position
    kind: DeathKind
    """An own error that another death may explain is a consequence (see `find_deaths`)."""
    age_s: float
    """Seconds since it began: since its exception, if the time of that is known."""
    beside: tuple[Observation, ...] = ()
    """What collectors observed of the same fault on its node or its GPU, the latest first."""

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.position.rank

    @property
    def node(self) -> str:
        """Node it ran on."""
        return self.position.evidence.node

    @property
    def ending(self) -> Ending | None:
        """Words of its node."""
        return self.position.evidence.ended

    @property
    def error(self) -> ErrorText:
        """What its exception shows; that of an own fault without one."""
        return _read_error(self.ending)

    @property
    def named(self) -> frozenset[int]:
        """Ranks that its text says differ from it."""
        ending = self.ending
        if ending is None or not ending.exception_type:
            return frozenset()
        return self.error.find_ranks(ending.exception_text) - {self.rank}

    @property
    def shape(self) -> str:
        """What it has in common with deaths by the same fault on other ranks."""
        ending = self.ending
        if ending is None or not ending.exception_type:
            code = "" if ending is None else ending.code
            return f"{self.kind.value} {code}"
        return shape_of(ending.exception_type, ending.exception_text)

    @property
    def may_follow(self) -> bool:
        """Whether it may be the consequence of another death, by its text.

        Not if its node shows the fault that the text reports.
        """
        return self.kind is DeathKind.CONSEQUENTIAL or (
            self.kind is DeathKind.OWN_EXCEPTION and self.error.may_follow and not self.beside
        )

    def shares_fault(self, other: Death) -> bool:
        """Return whether both raised the same exception, and neither because of the other."""
        has_raised = self.ending is not None and bool(self.ending.exception_type)
        return has_raised and self.shape == other.shape and not self.error.may_follow


def _read_error(ending: Ending | None) -> ErrorText:
    if ending is None or not ending.exception_type:
        return OWN
    return read_error(ending.exception_type, ending.exception_text)


def find_deaths(positions: Positions, observed: Mapping[str, Observed]) -> tuple[Death, ...]:
    """List the ranks that are gone, the earliest first.

    A rank may raise some errors of its own also because another one has ended. So they are
    consequences, unless they came clearly before every death of another kind. `observed`: what
    collectors observed, by node.
    """
    found = [
        Death(
            position=item,
            kind=classify_ending(item.evidence.ended),
            age_s=_begun_s(item.evidence.ended),
            beside=_find_beside(item, observed.get(item.evidence.node)),
        )
        for item in positions.ended
    ]
    deaths = sorted(found, key=lambda death: (-death.age_s, death.rank))
    survived_s = find_survived_s(positions)
    may_explain = _Explanations(death for death in deaths if death.age_s <= survived_s)
    is_any_unknown = is_any_rank_out_of_sight(positions)
    return tuple(
        replace(death, kind=DeathKind.CONSEQUENTIAL)
        if death.may_follow and (is_any_unknown or may_explain.are_before(death))
        else death
        for death in deaths
    )


def _find_beside(position: Position, observed: Observed | None) -> tuple[Observation, ...]:
    """Return what a node shows of the fault that the error of a rank reports, the latest first.

    If the error is not known, it is what was observed of the process itself.
    """
    ending = position.evidence.ended
    row, oldest_s = _read_error(ending), _begun_s(ending)
    if observed is None or ending is None:
        return ()
    pid, is_known = position.evidence.pid, bool(ending.exception_type)
    found = (
        each
        for each in observed.around(pid)
        if each.age_s <= oldest_s + BESIDE_S
        and (row.is_beside(each.name) if is_known else _is_proof(each, pid))
    )
    return tuple(sorted(found, key=lambda each: each.age_s))


def _is_proof(observation: Observation, pid: int | None) -> bool:
    """Return whether an observation about this process shows the fault of a known error."""
    is_own = observation.subject == f"pid:{pid}"
    return is_own and any(row.is_proof(observation.name) for row in ERROR_TEXTS)


def find_survived_s(positions: Positions) -> float:
    """Return the age of deaths that the others stepped over for a while.

    Deaths that are older than this explain no later trouble.
    """
    beats = (item.evidence.beat for item in positions.by_rank.values())
    last_step_s = min((beat.age_s for beat in beats if beat and beat.step >= 0), default=inf)
    return last_step_s + positions.case.settle_s + 2 * positions.case.typical_step_s


def is_any_rank_out_of_sight(positions: Positions) -> bool:
    """Return whether it is not known of a rank that ran how it is now."""
    return any(
        item.evidence.presence.is_out_of_sight and not item.evidence.dumps
        for item in positions.by_rank.values()
    )


def _begun_s(ending: Ending | None) -> float:
    """Return how long ago an end began. A process may need seconds to end after its exception."""
    return ending.age_s + ending.raised_before_s if ending is not None else 0.0


def is_before(one: Death, other: Death) -> bool:
    """Return whether one death certainly came before the other."""
    if one.ending is None or other.ending is None:
        return False  # a zombie whose ending no agent has reported yet
    margin_s = JITTER_S if one.node == other.node else SAME_MOMENT_S
    return one.age_s - other.age_s > margin_s


class Earliest:
    """The first of some deaths on each node: enough to know what came after any of them."""

    def __init__(self, deaths: Iterable[Death]) -> None:
        self._of_node: dict[str, Death] = {}
        for death in sorted(deaths, key=lambda death: -death.age_s):
            if death.ending is not None:
                self._of_node.setdefault(death.node, death)
        self._of_all = next(iter(self._of_node.values()), None)

    def is_before(self, death: Death) -> bool:
        """Return whether one of them certainly came before this death."""
        found = self._of_all, self._of_node.get(death.node)
        return any(one is not None and is_before(one, death) for one in found)

    def is_before_on_node(self, death: Death) -> bool:
        """Return whether one of them certainly came before this death on its own node."""
        one = self._of_node.get(death.node)
        return one is not None and is_before(one, death)

    def is_reported_before(self, death: Death, margin_s: float = 0.0) -> bool:
        """Return whether one of them came before this death by what their nodes report."""
        return self._of_all is not None and self._of_all.age_s - death.age_s > margin_s


class _Explanations:
    """The first deaths that may explain the errors of other ranks.

    Ranks notice that a process is gone before its node does: it closes its connections first, and
    the driver of a GPU may need a while. A launcher's signals do not come before their reason,
    and a rank that only vanished may have raised the same error.
    """

    def __init__(self, deaths: Iterable[Death]) -> None:
        reasons = [death for death in deaths if not death.may_follow]
        alone = SENT | {DeathKind.VANISHED}
        self._ended = Earliest(death for death in reasons if death.kind not in alone)
        self._sent = Earliest(death for death in reasons if death.kind in SENT)
        self._vanished = Earliest(d for d in reasons if d.kind is DeathKind.VANISHED)

    def are_before(self, death: Death) -> bool:
        """Return whether one of them came before this death, or may have."""
        return (
            self._ended.is_reported_before(death, -SAME_MOMENT_S)
            or self._sent.is_reported_before(death, -JITTER_S)
            or self._vanished.is_reported_before(death, JITTER_S)
        )


def as_launchers_see(deaths: Iterable[Death]) -> list[Death]:
    """Return deaths with the times to which a launcher can react: a process that raised because of
    a lost connection goes on until it is gone, and often notices a peer's end before our agent."""
    return [
        replace(death, age_s=death.ending.age_s)
        if death.kind is DeathKind.CONSEQUENTIAL and death.ending is not None
        else death
        for death in deaths
    ]


def find_put_to_death(deaths: Sequence[Death]) -> frozenset[int]:
    """List the ranks that a launcher ended because another rank had died before.

    One signal may have any reason, so the other death must certainly be the earlier one. Several
    at one moment are a launcher's: there, the times that the nodes report are enough. So they are
    for further signals of a launcher that is known to have sent some.
    """
    seen = as_launchers_see(deaths)
    any_death = Earliest(death for death in seen if death.kind is not DeathKind.CLEAN)
    cause = Earliest(death for death in deaths if death.kind not in NO_CAUSE)
    ranks: set[int] = set()
    for kind in SENT:
        sent = [death for death in deaths if death.kind is kind]
        known = {death.rank for death in sent if any_death.is_before(death)}
        for act in _split(sent, KILL_GAP_S):
            if len(act) > 1 and any_death.is_reported_before(act[0], JITTER_S):
                known.update(death.rank for death in act)
        if known:
            known.update(d.rank for d in sent if cause.is_reported_before(d, JITTER_S))
        ranks |= known
    return frozenset(ranks)


def find_sent_together(deaths: Sequence[Death]) -> frozenset[int]:
    """List the ranks that one kind of signal ended at one moment with others."""
    ranks: set[int] = set()
    for kind in SENT:
        for act in _split([death for death in deaths if death.kind is kind], JITTER_S):
            if len(act) > 1:
                ranks.update(death.rank for death in act)
    return frozenset(ranks)


def find_ended_from_outside(
    deaths: Sequence[Death], ranks: int, settle_s: float
) -> tuple[Death, ...]:
    """List the ranks that were ended on purpose, with most of the job and for no earlier death.

    The list is empty if a death with a reason of its own came first, or if the first that ended
    are too few: then that signal went to these ranks, not to the job. Some ranks may live on.
    """
    for kind, gap_s in ((DeathKind.TERMINATED, settle_s), (DeathKind.KILLED, KILL_GAP_S)):
        sent = _find_sent(kind, deaths)
        if sent and _is_of_most(sent, deaths, ranks, gap_s):
            return tuple(death for death in deaths if death.kind in SENT)
    return ()


def _find_sent(kind: DeathKind, deaths: Sequence[Death]) -> list[Death]:
    """List the deaths of a kind, if they begin the end of the job and no own reason is beside."""
    first = next((death for death in deaths if death.kind is not DeathKind.CLEAN), None)
    if first is None or first.kind is not kind:
        return []
    reasons = Earliest(death for death in deaths if death.kind not in SENT | {DeathKind.CLEAN})
    sent = [death for death in deaths if death.kind is kind and not reasons.is_before(death)]
    earliest = Earliest(sent)
    own = (death for death in deaths if death.kind not in _COMPATIBLE_WITH_CANCELLING)
    return sent if all(earliest.is_before(death) for death in own) else []


def _is_of_most(sent: Sequence[Death], deaths: Sequence[Death], ranks: int, gap_s: float) -> bool:
    """Return whether a signal went to the job and not only to some of its ranks.

    Half of the ranks are enough if the others died, too: they lost their connections before the
    signal reached them. One rank, and others that its launcher ended for it, are not half a job.
    """
    if ranks == 1:
        return sent[0].kind is DeathKind.TERMINATED
    put_to_death = find_put_to_death(deaths)
    alone = sum(death.rank not in put_to_death for death in sent)
    is_half = len(deaths) == ranks <= 2 * alone
    first = next(_split(sent, gap_s))
    return 2 * len(first) >= ranks and (2 * len(sent) > ranks or is_half)


def _split(deaths: Sequence[Death], gap_s: float) -> Iterator[list[Death]]:
    """Part deaths, the earliest first, where the next one comes later than the gap."""
    part: list[Death] = []
    for death in deaths:
        if part and part[-1].age_s - death.age_s > gap_s:
            yield part
            part = []
        part.append(death)
    if part:
        yield part


def write_ending(death: Death) -> str:
    """Return "exited with code 3 (after step 41, 2 s ago)". Files do not show how long ago."""
    step = death.position.step
    after = "" if step is None else f"after step {step}"
    ago = f"{format_duration(death.age_s)} ago" if death.age_s > 0 else ""
    when = ", ".join(filter(None, (after, ago)))
    return f"{_write_how(death)} ({when})" if when else _write_how(death)


def _write_how(death: Death) -> str:
    """Return "exited with code 3" or "raised ValueError: bad shard"."""
    ending = death.ending
    if ending is None or death.kind is DeathKind.VANISHED:
        return "exited (exit status unknown)"
    if ending.oom_killed:
        return "was killed by the kernel's OOM killer"
    if ending.exception_type:
        return f"raised {write_exception(ending.exception_type, ending.exception_text)}"
    signal = signal_name(ending)
    return f"was killed by {signal}" if signal else f"exited with code {ending.code}"


def write_exception(exception_type: str, text: str) -> str:
    """Return "ValueError: bad shard", empty without an exception."""
    name, words = clean(last_component(exception_type), 80), _write_message(split_lines(text))
    return f"{name}: {words}" if words else name


def _write_message(lines: Sequence[str]) -> str:
    """Return the first two lines and the last one, which is closest to the cause."""
    if len(lines) < 2:
        return clean("".join(lines))
    first, *between, last = lines
    kept = [clean(line, MAX_SECOND) for line in between if not line.endswith(":")][:1]
    kept.append(clean(last, MAX_LAST))
    room = MAX_MESSAGE - sum(map(len, kept)) - len(LINE_END) * len(kept)
    return LINE_END.join([clean(_shorten_paths(first), room), *kept])


def _shorten_paths(line: str) -> str:
    """Return a line with the last part of long paths only: places in the source of a library."""
    words = (
        word.rpartition("/")[2] if word.count("/") > MAX_FOLDERS else word for word in line.split()
    )
    return " ".join(words)


def write_aftermath(others: Sequence[Death]) -> str:
    """Return how other ranks ended: "6 ranks received SIGKILL", or nothing."""
    counts = Counter(AFTERMATH.get(death.kind, "ended") for death in others)
    return join_words(
        [
            f"{count_ranks(number)} {words.format(their='its' if number == 1 else 'their')}"
            for words, number in counts.items()
        ]
    )


def write_aftermath_in_order(others: Sequence[Death], first: Death) -> str:
    """Return "at the same moment, 2 ranks aborted; afterwards, 3 ranks received SIGKILL"."""
    by_time: dict[str, list[Death]] = {}
    for death in others:
        by_time.setdefault(_write_when(death, first), []).append(death)
    return "; ".join(f"{when} {write_aftermath(deaths)}" for when, deaths in by_time.items())


def _write_when(death: Death, first: Death) -> str:
    if is_before(death, first):
        return "before that,"
    return "at the same moment," if death.age_s > first.age_s else "afterwards,"
