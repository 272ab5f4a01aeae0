"""Writes the post-mortem of an incident, in the past tense.

The sentences of the verdict are in the present tense, because they were written while the job hung.
They are quoted with the time at which they were true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from watchtower.incidents.incident import Delivery, Incident, IncidentKind, StackGroup
from watchtower.incidents.kill_text import find_kill_loss, gather_kill_facts, write_steps_lost
from watchtower.incidents.postmortem.runbooks import SIMILAR_DRILLS, explain_fix, explain_prevention
from watchtower.wire.stacks import Frame
from watchtower.wire.verdict import Cause, Status, Verdict, VerdictEntry
from watchtower.writing.cause_names import format_cause, write_candidate
from watchtower.writing.documents import (
    Code,
    Document,
    Drawing,
    Heading,
    Link,
    Listing,
    Paragraph,
    Part,
    Table,
)
from watchtower.writing.ranksets import name_ranks, name_set, parse_ranks
from watchtower.writing.text import (
    capitalise,
    clean,
    clean_sentence,
    count_ranks,
    format_duration,
    format_percent,
)
from watchtower.writing.times import find_time, format_moment, format_wall
from watchtower.writing.verdict_text import name_source

MAX_SENTENCE = 600
"""Characters of one sentence of the verdict."""

MAX_GROUPS = 8
"""Groups of stacks. The rarest are shown: they contain the suspects."""

MAX_ITEMS = 16
"""Items of one list, such as evidence."""

MAX_FRAMES = 24
"""Frames of one stack: the innermost ones. A training stack rarely has more frames of its own."""

MAX_ALERTS = 8
"""Destinations of alerts in one timeline."""

DELETED = "The evidence was deleted after the time that `[retention]` keeps it."


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPicture:
    """Which ranks waited for which, as a drawing and in words."""

    svg: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PostmortemFacts:
    """An incident, and what is known of it besides. Times are UNIX seconds."""

    incident: Incident
    """With its current verdict."""
    now: float
    as_of: float
    """Time of `verdict.stalled_for_s`."""
    owner: str = ""
    link: str = ""
    alerts: tuple[Delivery, ...] = ()
    """The first message to each destination."""
    stacks: tuple[StackGroup, ...] | None = None
    """Rarest first; None if the evidence was deleted."""
    waits: WaitPicture | None = None
    """None if it is not known which ranks waited for which."""

    @property
    def verdict(self) -> Verdict:
        """The current verdict."""
        return self.incident.verdict

    @property
    def kind(self) -> IncidentKind:
        """The kind of the incident."""
        return self.incident.identity.kind

    @property
    def lost_s(self) -> float:
        """Seconds without a step, until the end of the incident or until `as_of`."""
        return max(0.0, self.verdict.stalled_for_s)

    @property
    def stopped_at(self) -> float:
        """Time of the last step, or of the start if there was none."""
        return self.as_of - self.lost_s


_WHAT = {
    IncidentKind.HUNG: "hung",
    IncidentKind.NEVER_STARTED: "did not start",
    IncidentKind.ENDED: "ended",
}


def write_postmortem(facts: PostmortemFacts) -> Document:
    """Return the document."""
    job = clean(facts.verdict.job, 128)
    what = _WHAT[facts.kind]
    return Document(
        title=f"Post-mortem: job {job} {what} on {format_wall(facts.stopped_at)[:10]}",
        parts=tuple(_write_parts(facts)),
    )


def _write_parts(facts: PostmortemFacts) -> Iterator[Part]:
    yield from _summary(facts)
    yield from _impact(facts)
    yield from _timeline(facts)
    yield from _baseline(facts)
    yield from _waits(facts)
    yield from _stacks(facts)
    yield from _evidence(facts)
    yield from _cause(facts)
    yield from _advice(facts)


def _summary(facts: PostmortemFacts) -> Iterator[Part]:
    verdict = facts.verdict
    yield Heading("Summary")
    yield Paragraph(" ".join(filter(None, (_write_what(facts), _write_how_it_ended(facts)))))
    parts = [
        f"Incident: {clean(verdict.incident or 'not known', 64)}",
        f"Attempt: {verdict.generation}",
        f"Owner: {clean(facts.owner, 120) or 'not known'}",
    ]
    yield Listing(tuple(parts))
    if facts.link:
        yield Link(facts.link)


def _write_what(facts: PostmortemFacts) -> str:
    verdict = facts.verdict
    job, named = clean(verdict.job, 128), _name_suspects(verdict)
    if facts.kind is IncidentKind.ENDED:
        start = f"Job {job} ended at {format_wall(facts.incident.opened_at)}."
    elif facts.kind is IncidentKind.NEVER_STARTED:
        start = f"Job {job} did not start: not all of its ranks were seen."
    else:
        start = f"Job {job} made no step after {format_wall(facts.stopped_at)}."
    if verdict.cause in (None, Cause.UNKNOWN):
        return f"{start} The cause was not found."
    if not verdict.suspects:
        return f"{start} No single rank caused it: {format_cause(verdict.cause)}."
    verb = "was" if len(verdict.suspects) == 1 else "were"
    sure = f"{format_cause(verdict.cause)} ({format_percent(verdict.confidence)})"
    return f"{start} {named} {verb} the cause: {sure}."


def _name_suspects(verdict: Verdict) -> str:
    ranks = name_ranks(item.rank for item in verdict.suspects)
    nodes = sorted({clean(item.node, 64) for item in verdict.suspects if item.node})
    where = f" on {nodes[0]}" if len(nodes) == 1 else f" on {len(nodes)} nodes" if nodes else ""
    return f"{ranks[:1].upper()}{ranks[1:]}{where}"


def _write_how_it_ended(facts: PostmortemFacts) -> str:
    if facts.incident.closed_at is None:
        return f"At {format_wall(facts.now)} the incident was still open."
    if facts.kind is IncidentKind.ENDED:
        return ""
    how = {
        Status.RECOVERED: "The job recovered",
        Status.ENDED: "The job ended",
        Status.MONITORING_LOST: "The job was no longer reported",
    }.get(facts.verdict.status, "The incident was closed")
    return f"{how} at {format_wall(facts.incident.closed_at)}."


def _impact(facts: PostmortemFacts) -> Iterator[Part]:
    lost, ranks = facts.lost_s, facts.incident.facts.ranks
    yield Heading("Impact")
    items = [f"Time without a step: {format_duration(lost)}."]
    if ranks:
        items.append(
            f"{ranks} ranks x {lost:.0f} s = {ranks * lost / 3600:.1f} rank-hours "
            "(GPU-hours if each rank used one GPU)."
        )
    else:
        items.append("The number of ranks is not known.")
    items.append(_write_lost_steps(facts))
    if waiting := facts.verdict.waiting:
        count = count_ranks(len(parse_ranks(waiting)))
        whom = " for the suspects" if facts.verdict.suspects else ""
        items.append(f"{count} waited{whom}: {clean(waiting, 200)}.")
    yield Listing(tuple(items))


def _write_lost_steps(facts: PostmortemFacts) -> str:
    """Return what was lost, or what a kill loses now."""
    kill = gather_kill_facts(facts.incident)
    if facts.incident.closed_at is None:
        loss = facts.verdict.kill or find_kill_loss(kill, facts.now)
        return " ".join(loss.sentences)
    if facts.verdict.status is Status.RECOVERED:
        return "No step was lost: the job went on."
    return write_steps_lost(kill)


def _timeline(facts: PostmortemFacts) -> Iterator[Part]:
    events = list_events(facts)
    days = {format_wall(event.at)[:10] for event in events}
    say = _format_clock if len(days) == 1 else format_wall
    yield Heading("Timeline")
    if len(days) == 1:
        yield Paragraph(f"All times are in UTC, on {days.copy().pop()}.")
    yield Table(("time", "event"), tuple((say(event.at), event.text) for event in events))


_OVER = {
    Status.RECOVERED: "the job made steps again",
    Status.ENDED: "the job ended",
    Status.MONITORING_LOST: "no agent reported the job any more",
}


class Event(NamedTuple):
    """One row. Events of the same second stay in the order of their list."""

    at: float
    text: str


def list_events(facts: PostmortemFacts) -> list[Event]:
    """Return what happened, earliest first."""
    events = [*_beginning(facts), *_verdicts(facts), *_opening(facts), *_afterwards(facts)]
    return sorted(events, key=lambda event: event.at)


def _beginning(facts: PostmortemFacts) -> Iterator[Event]:
    step = facts.verdict.step
    if facts.kind is IncidentKind.NEVER_STARTED:
        yield Event(facts.stopped_at, "the first ranks of the job were seen")
    elif step is not None:
        yield Event(facts.stopped_at, f"the last step of all ranks: step {step}")
    elif facts.kind is IncidentKind.HUNG:
        yield Event(facts.stopped_at, "the last sign of progress")
    if facts.incident.identity.suspect_at is not None:
        text = "the job was suspect, and dumps of its ranks were due"
        yield Event(facts.incident.identity.suspect_at, text)


def _verdicts(facts: PostmortemFacts) -> Iterator[Event]:
    for number, entry in enumerate(facts.incident.verdicts):
        at = find_time(entry.at)
        if at is not None:
            yield Event(at, f"{'verdict' if number == 0 else 'new verdict'}: {_describe(entry)}")


def _describe(entry: VerdictEntry) -> str:
    if entry.cause is Cause.UNKNOWN:
        return "the cause was unknown"
    ranks = f"{name_set(clean(entry.suspects, 120))}, " if entry.suspects else ""
    return f"{format_cause(entry.cause)} ({ranks}{format_percent(entry.confidence)})"


def _opening(facts: PostmortemFacts) -> Iterator[Event]:
    wanted, arrived = facts.incident.facts.dumps_wanted, facts.incident.facts.dumps_in
    dumps = ""
    if wanted and arrived is not None:
        dumps = f"; dumps of {min(arrived, wanted)} of {wanted} ranks were there"
    if facts.kind is IncidentKind.ENDED:
        yield Event(facts.incident.opened_at, f"the end of the job was recorded{dumps}")
    elif facts.kind is IncidentKind.NEVER_STARTED:
        yield Event(
            facts.incident.opened_at, f"the job had not started: the incident opened{dumps}"
        )
    else:
        yield Event(facts.incident.opened_at, f"the job was hung: the incident opened{dumps}")


def _afterwards(facts: PostmortemFacts) -> Iterator[Event]:
    for sent in facts.alerts[:MAX_ALERTS]:
        yield Event(sent.at, f"alert sent to {clean(sent.destination, 64)}")
    if facts.incident.ack is not None:
        by = f" by {clean(facts.incident.ack.by, 64)}" if facts.incident.ack.by else ""
        note = f": {clean(facts.incident.ack.note)}" if facts.incident.ack.note else ""
        yield Event(facts.incident.ack.at, f"acknowledged{by}{note}")
    for item in facts.verdict.aftermath:
        at = find_time(item.at)
        if at is not None:
            ranks = f"{name_set(clean(item.ranks, 120))}: " if item.ranks else ""
            yield Event(at, f"{ranks}{clean(item.text)}")
    if facts.incident.closed_at is not None and facts.kind is not IncidentKind.ENDED:
        how = _OVER.get(facts.verdict.status, "the incident ended")
        yield Event(
            facts.incident.closed_at, f"{how}; {format_duration(facts.lost_s)} without a step"
        )


def _format_clock(wall: float) -> str:
    """Return "16:03:12", for a table of one day."""
    return f"{datetime.fromtimestamp(wall, timezone.utc):%H:%M:%S}"


def _baseline(facts: PostmortemFacts) -> Iterator[Part]:
    yield Heading("Healthy baseline")
    step_s = facts.incident.facts.step_s
    if not step_s:
        yield Paragraph("The usual length of a step was not known.")
        return
    usual = f"{step_s:.2g} s" if step_s < 10 else format_duration(step_s)
    times = f" The stall was {facts.lost_s / step_s:.0f} times as long." if facts.lost_s else ""
    yield Paragraph(f"A step usually took {usual} or less (95 of 100 steps).{times}")


def _waits(facts: PostmortemFacts) -> Iterator[Part]:
    if facts.waits is not None:
        yield Heading("Which ranks waited for which")
        yield Drawing(facts.waits.svg, f"Seen while it hung: {_sentence(facts.waits.sentence)}")


def _stacks(facts: PostmortemFacts) -> Iterator[Part]:
    yield Heading("Stacks and point of divergence")
    if facts.stacks is None:
        yield Paragraph(f"{DELETED} No stack is left.")
        return
    if not facts.stacks:
        yield Paragraph("No stack was collected.")
        return
    suspects = frozenset(item.rank for item in facts.verdict.suspects)
    yield Paragraph(find_divergence(facts.stacks, suspects))
    for group in facts.stacks[:MAX_GROUPS]:
        count = len(parse_ranks(group.ranks))
        ranks = f"Rank {group.ranks}" if count == 1 else f"Ranks {clean(group.ranks, 200)}"
        yield Paragraph(f"{ranks} ({count}), innermost frame first:")
        yield Code(show_frames(group.frames))
    if len(facts.stacks) > MAX_GROUPS:
        yield Paragraph(f"{len(facts.stacks) - MAX_GROUPS} larger groups are not shown.")


def show_frames(frames: Sequence[Frame]) -> tuple[str, ...]:
    """Return one line for each frame, innermost first."""
    shown = [name_frame(frame) for frame in frames[:MAX_FRAMES]]
    more = len(frames) - MAX_FRAMES
    return (*shown, f"... {more} outer frames") if more > 0 else tuple(shown)


def name_frame(frame: Frame) -> str:
    """Return "__next__ (data.py:88)"."""
    return f"{clean(frame.function)} ({clean(frame.file)}:{frame.line})"


def find_divergence(groups: Sequence[StackGroup], suspects: Set[int]) -> str:
    """Return a sentence on the first frame in which the suspects and most other ranks differ."""
    accused = [group for group in groups if parse_ranks(group.ranks) & suspects]
    others = [group for group in groups if not parse_ranks(group.ranks) & suspects]
    if not suspects:
        return "No single rank was named, so there is no point of divergence."
    if not accused:
        return "The suspects have no stack, so the point of divergence is not known."
    if not others:
        return "The suspects and the other ranks had the same stack."
    largest = max(others, key=lambda group: len(parse_ranks(group.ranks)))
    return _compare(accused[0], largest)


def _compare(suspect: StackGroup, peers: StackGroup) -> str:
    ours, theirs = suspect.frames[::-1], peers.frames[::-1]
    shared = 0
    for mine, other in zip(ours, theirs, strict=False):
        if name_frame(mine) != name_frame(other):
            break
        shared += 1
    count = count_ranks(len(parse_ranks(peers.ranks)))
    suspect_at = name_frame(ours[shared]) if shared < len(ours) else "no other frame"
    peers_at = name_frame(theirs[shared]) if shared < len(theirs) else "no other frame"
    of = name_set(clean(suspect.ranks, 120))
    begun = f"The stacks were equal up to {name_frame(ours[shared - 1])}. Then" if shared else ""
    apart = f"{of} continued with {suspect_at}, and {count} with {peers_at}."
    return f"{begun} {apart}" if begun else capitalise(apart)


def _evidence(facts: PostmortemFacts) -> Iterator[Part]:
    verdict = facts.verdict
    yield Heading("Evidence")
    at = f" at {format_moment(clean(verdict.diagnosed_at, 40))}" if verdict.diagnosed_at else ""
    evidence = tuple(
        f"{name_source(item.source)} ({item.weight:.2f}): {_sentence(item.text)}"
        for item in verdict.evidence[:MAX_ITEMS]
        if item.text
    )
    if evidence:
        yield Paragraph(f"What the verdict was based on{at}, with its weight:")
        yield Listing(evidence)
    else:
        yield Paragraph("The verdict names no evidence.")
    if verdict.missing_evidence:
        yield Paragraph("Not known:")
        yield Listing(tuple(map(_sentence, verdict.missing_evidence[:MAX_ITEMS])))


def _cause(facts: PostmortemFacts) -> Iterator[Part]:
    verdict = facts.verdict
    yield Heading("Cause")
    cause = verdict.cause or Cause.UNKNOWN
    if verdict.status is Status.RECOVERED and verdict.suspects:
        text = "; ".join(f"rank {item.rank}: {item.why}" for item in verdict.suspects[:3])
        words = f"Seen while it hung: {_sentence(text)}"
    else:
        words = f"The verdict: {_sentence(verdict.summary)}"
    yield Paragraph(
        f"`{cause.value}`, with a confidence of {format_percent(verdict.confidence)}. {words}"
    )
    if verdict.doubts:
        yield Paragraph("Not certain because:")
        yield Listing(tuple(_sentence(doubt.text) for doubt in verdict.doubts))
    if verdict.alternatives and cause is not Cause.UNKNOWN:  # else the summary names them
        is_awaited = bool(verdict.waiting)
        others = [
            write_candidate(other, is_awaited=is_awaited)
            for other in verdict.alternatives[:MAX_ITEMS]
        ]
        yield Paragraph(f"Also possible: {', '.join(others)}.")


def _advice(facts: PostmortemFacts) -> Iterator[Part]:
    verdict = facts.verdict
    cause = verdict.cause or Cause.UNKNOWN
    yield Heading("Fix")
    steps = verdict.lasting_steps or verdict.next_steps
    if steps:
        yield Paragraph("The advice of the verdict:")
        yield Listing(tuple(map(_sentence, steps[:MAX_ITEMS])))
    nodes = {item.node for item in verdict.suspects}
    names = {"JOB": verdict.job, "NODE": nodes.pop() if len(nodes) == 1 else ""}
    yield from explain_fix(cause, names)
    yield Heading("Prevention")
    yield from explain_prevention(cause, names)
    drill = SIMILAR_DRILLS.get(cause)
    yield Heading("Reproduce")
    if drill is None:
        yield Paragraph("No drill reproduces this cause.")
    else:
        yield Paragraph("This drill hangs a small job in a similar way:")
        yield Code((f"$ watchtower drill {drill}",))


def _sentence(text: str) -> str:
    return clean_sentence(text, MAX_SENTENCE)
