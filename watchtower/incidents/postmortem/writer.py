"""Writes the post-mortem of an incident, in the past tense.

The sentences of the verdict are in the present tense, because they were written while the job hung.
They are quoted with the time at which they were true.
"""

from __future__ import annotations

from collections.abc import Iterator

from watchtower.incidents.kill_text import find_kill_loss, write_steps_lost
from watchtower.incidents.postmortem.divergence import find_divergence, show_frames
from watchtower.incidents.postmortem.facts import PostmortemFacts
from watchtower.incidents.postmortem.runbooks import SIMILAR_DRILLS, explain_fix, explain_prevention
from watchtower.incidents.postmortem.timeline import format_at, format_clock, list_events
from watchtower.wire.verdict import Cause, Status, Verdict
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
from watchtower.writing.ranksets import name_ranks, parse_ranks
from watchtower.writing.text import (
    clean,
    clean_sentence,
    count_ranks,
    format_duration,
    format_percent,
)
from watchtower.writing.times import format_moment
from watchtower.writing.verdict_text import SOURCES

MAX_SENTENCE = 600
"""Characters of one sentence of the verdict."""

MAX_GROUPS = 8
"""Groups of stacks. The rarest are shown: they contain the suspects."""

MAX_ITEMS = 16
"""Items of one list, such as evidence."""

DELETED = "The evidence was deleted after the time that `[retention]` keeps it."


def write_postmortem(facts: PostmortemFacts) -> Document:
    """Return the document."""
    job = clean(facts.verdict.job, 128)
    what = {"never_started": "did not start", "ended": "ended"}.get(facts.kind, "hung")
    return Document(
        title=f"Post-mortem: job {job} {what} on {format_at(facts.stopped_at)[:10]}",
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
    if facts.kind == "ended":
        start = f"Job {job} ended at {format_at(facts.opened_at)}."
    elif facts.kind == "never_started":
        start = f"Job {job} did not start: not all of its ranks were seen."
    else:
        start = f"Job {job} made no step after {format_at(facts.stopped_at)}."
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
    if facts.closed_at is None:
        return f"At {format_at(facts.now)} the incident was still open."
    if facts.kind == "ended":
        return ""
    how = {
        Status.RECOVERED: "The job recovered",
        Status.ENDED: "The job ended",
        Status.MONITORING_LOST: "The job was no longer reported",
    }.get(facts.verdict.status, "The incident was closed")
    return f"{how} at {format_at(facts.closed_at)}."


def _impact(facts: PostmortemFacts) -> Iterator[Part]:
    lost, ranks = facts.lost_s, facts.ranks
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
    if facts.is_open:
        loss = facts.verdict.kill or find_kill_loss(facts.kill, facts.now)
        return " ".join(loss.sentences)
    if facts.verdict.status is Status.RECOVERED:
        return "No step was lost: the job went on."
    return write_steps_lost(facts.kill)


def _timeline(facts: PostmortemFacts) -> Iterator[Part]:
    events = list_events(facts)
    days = {format_at(event.at)[:10] for event in events}
    say = format_clock if len(days) == 1 else format_at
    yield Heading("Timeline")
    if len(days) == 1:
        yield Paragraph(f"All times are in UTC, on {days.copy().pop()}.")
    yield Table(("time", "event"), tuple((say(event.at), event.text) for event in events))


def _baseline(facts: PostmortemFacts) -> Iterator[Part]:
    yield Heading("Healthy baseline")
    step_s = facts.step_s
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


def _evidence(facts: PostmortemFacts) -> Iterator[Part]:
    verdict = facts.verdict
    yield Heading("Evidence")
    at = f" at {format_moment(clean(verdict.diagnosed_at, 40))}" if verdict.diagnosed_at else ""
    evidence = tuple(
        f"{SOURCES.get(item.source) or clean(item.source, 24)} ({item.weight:.2f}): "
        f"{_sentence(item.text)}"
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
        others = [write_candidate(other) for other in verdict.alternatives[:MAX_ITEMS]]
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
