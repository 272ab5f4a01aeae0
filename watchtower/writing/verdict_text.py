"""Formats a verdict for people: as text for terminals, as Markdown and Slack markup for chats.

Each format has at most `MAX_LINES` lines. The chat formats show evidence in a code block. Free text
in a verdict comes from processes. It is cleaned again here, because a stored verdict may be older
than today's rules, and then escaped for the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from watchtower.wire.verdict import (
    Aftermath,
    Alternative,
    Cause,
    Domain,
    Evidence,
    Progress,
    Status,
    Suspect,
    Verdict,
)
from watchtower.writing import slack_blocks
from watchtower.writing.ranksets import name_ranks, name_set
from watchtower.writing.text import clean, clean_sentence, format_duration
from watchtower.writing.times import format_moment, format_time

MAX_LINES = 15
"""A chat shows this many lines without folding the message."""

MAX_LINE = 400
"""Most characters of one line: enough for a summary with a long path."""

FENCES = 2
"""Lines around the code block of a chat message."""

SHOWN_SUSPECTS = 3
SHOWN_EVIDENCE = 4
SHOWN_DOUBTS = 2
SHOWN_STEPS = 2
SHOWN_AFTERMATH = 2

_SOURCES = {"records": "collective log", "peers": "other ranks", "source": "source code"}
"""Names that people read for sources whose names in the API are older."""

_LOOKALIKES = {"*": "\u2217", "~": "\u223c", "@": "\uff20", "_": "\u02cd"}
_SLACK_MARKUP = re.compile(r"[*@]|~(?![0-9])|(?<!\w)_|_(?!\w)")
_MARKUP = re.compile(r"[\\*\[\]<>#|~!&@]|(?<!\w)_|_(?!\w)")


class _Details(NamedTuple):
    """The lines below the summary, in their order."""

    facts: list[str]
    evidence: list[str]
    rest: list[str]
    steps: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Data that a reader in a chat needs besides the verdict."""

    owner: str = ""
    """"alice (slurm 48213)"; empty if it is not known."""
    link: str = ""
    """Address of the incident for people; empty without an incident or a public address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outline:
    """The parts of a verdict's text, in their order. All lines are clean and not escaped yet."""

    headline: str
    summary: str
    details: _Details
    about: list[str]
    """The incident, its time and its owner; then its address."""

    @property
    def block(self) -> list[str]:
        """Lines for a code block."""
        return [*self.details.facts, *self.details.evidence]

    @property
    def prose(self) -> list[str]:
        """Lines below the code block."""
        return [*self.details.rest, *(f"Next: {step}" for step in self.details.steps)]


def render_text(verdict: Verdict, now: float | None = None, about: About | None = None) -> str:
    """Return a verdict as plain text. With `now`, in UNIX seconds, times have their age.

    With `about`, the text also names the incident, its time, its owner and its address.
    """
    outline = _outline(verdict, about, MAX_LINES - 2, now)
    details = outline.details
    lines = [*outline.block, *details.rest, *(f"next: {step}" for step in details.steps)]
    indented = (f"  {line}" for line in (*lines, *outline.about))
    return "\n".join([outline.headline, outline.summary, *indented]) + "\n"


def render_markdown(verdict: Verdict, about: About | None = None) -> str:
    """Return a verdict as CommonMark. A message in a chat stays, so that its times have no age."""
    return _render_chat(verdict, about, bold="**", escape=escape_markdown)


def render_slack(verdict: Verdict, about: About | None = None) -> str:
    """Return a verdict as Slack's mrkdwn."""
    return _render_chat(verdict, about, bold="*", escape=escape_slack)


def render_slack_blocks(
    verdict: Verdict, about: About, links: Mapping[str, str]
) -> slack_blocks.Block:
    """Return a verdict as a message of Slack's Block Kit, with a text for notifications.

    `links` are the addresses of its buttons, by their text.
    """
    outline = _outline(verdict, about, MAX_LINES - 2 - FENCES)
    origin = [line for line in outline.about if line != about.link]
    prose = "\n".join(map(escape_slack, outline.prose))
    blocks = [
        slack_blocks.markup(f"*{escape_slack(outline.headline)}*"),
        slack_blocks.markup(escape_slack(outline.summary)),
        *([slack_blocks.code(outline.block)] if outline.block else []),
        *([slack_blocks.markup(prose)] if prose else []),
        *map(slack_blocks.context, origin),
        *slack_blocks.buttons(links),
    ]
    text = slack_blocks.escape(f"{outline.headline}\n{outline.summary}")
    return slack_blocks.message(text, blocks)


def _outline(
    verdict: Verdict, about: About | None, room: int, now: float | None = None
) -> _Outline:
    """Return the parts of a verdict's text, with at most `room` lines below the summary."""
    format_at = format_moment if now is None else partial(format_time, now=now)
    origin = [] if about is None else _origin(verdict, about, format_at)
    return _Outline(
        headline=_headline(verdict),
        summary=_line(verdict.summary),
        details=_details(verdict, room - len(origin), format_at),
        about=origin,
    )


def escape_markdown(text: str) -> str:
    """Return text with CommonMark's markup characters escaped, except in our own code spans."""
    return _map_prose(text, lambda prose: _MARKUP.sub(r"\\\g<0>", prose))


def escape_slack(text: str) -> str:
    """Return text without mentions, links and markup for Slack, except in our own code spans.

    Slack has no escapes for its markup characters, so they are replaced by similar characters.
    """
    return _map_prose(
        slack_blocks.escape(text),
        lambda prose: _SLACK_MARKUP.sub(lambda mark: _LOOKALIKES[mark[0]], prose),
    )


def _map_prose(text: str, change: Callable[[str], str]) -> str:
    pieces = text.split("`")
    pieces[::2] = [change(piece) for piece in pieces[::2]]
    return "`".join(pieces)


def _render_chat(
    verdict: Verdict, about: About | None, *, bold: str, escape: Callable[[str], str]
) -> str:
    in_code = slack_blocks.escape if escape is escape_slack else str
    outline = _outline(verdict, about, MAX_LINES - 2 - FENCES)
    block = [in_code(line.replace("`", "")) for line in outline.block]
    lines = [
        f"{bold}{escape(outline.headline)}{bold}",
        escape(outline.summary),
        *(["```", *block, "```"] if block else []),
        *map(escape, outline.prose),
        *(_escape_about(line, escape) for line in outline.about),
    ]
    return "\n".join(lines) + "\n"


def _escape_about(line: str, escape: Callable[[str], str]) -> str:
    """Escape a line about the incident. Our own address stays a link."""
    return line if line.startswith(("http://", "https://")) else escape(line)


def _origin(verdict: Verdict, about: About, format_at: Callable[[str], str]) -> list[str]:
    """Return the lines about the incident: its id, time and owner, and its address."""
    opened, diagnosed = verdict.opened_at, verdict.diagnosed_at
    parts = [
        f"incident {clean(verdict.incident, 64)}" if verdict.incident else "",
        f"opened {format_at(clean(opened, 40))}" if opened else "",
        f"diagnosed {format_at(clean(diagnosed, 40))}" if diagnosed and not opened else "",
        f"owner: {clean(about.owner, 120)}" if about.owner else "",
    ]
    known = ", ".join(filter(None, parts))
    return [*filter(None, [known, about.link if verdict.incident else ""])]


def _details(verdict: Verdict, room: int, format_at: Callable[[str], str]) -> _Details:
    """Return at most `room` lines. Lines that do not fit are left out, the weakest evidence first.

    `format_at` formats an RFC 3339 time.
    """
    facts, evidence, doubts = _facts(verdict), _evidence(verdict), _doubts(verdict)
    outlook, others = _outlook(verdict, format_at), _alternatives_and_gaps(verdict)
    steps, kill = [_line(step) for step in verdict.next_steps[:SHOWN_STEPS]], _kill(verdict)
    parts = (evidence, doubts, others, steps, outlook, kill, facts)
    excess = sum(map(len, parts)) - room
    for part in parts:
        dropped = min(max(excess, 0), len(part))
        del part[len(part) - dropped :]
        excess -= dropped
    return _Details(facts, evidence, [*outlook, *doubts, *others, *kill], steps)


def _headline(verdict: Verdict) -> str:
    job, status = clean(verdict.job, 128), verdict.status.value
    if verdict.not_judged is not None:
        status = clean(verdict.not_judged.text, 64)
    if verdict.cause is None:
        return f"{job}: {status}"
    # A healthy job has a cause only in an examination, which compares two dumps.
    joint = "; if it hangs:" if verdict.status is Status.HEALTHY else ","
    if verdict.cause is Cause.UNKNOWN:
        return f"{job}: {status}{joint} cause unknown"
    cause = f"{verdict.cause.value} ({verdict.confidence:.0%})"
    return f"{job}: {status}{joint} {cause}"


def _facts(verdict: Verdict) -> list[str]:
    lines = [_describe_suspect(item) for item in verdict.suspects[:SHOWN_SUSPECTS]]
    if len(verdict.suspects) > SHOWN_SUSPECTS:
        lines[-1] += f"; all suspects: {name_ranks(item.rank for item in verdict.suspects)}"
    parts = [
        f"waiting: {clean(verdict.waiting, 120)}" if verdict.waiting else "",
        "" if verdict.step is None else f"step: {verdict.step}",
        f"stalled for: {format_duration(verdict.stalled_for_s)}" if verdict.stalled_for_s else "",
    ]
    known = ", ".join(filter(None, parts))
    return [*_call(verdict), *lines, *filter(None, [known, _shared_line(verdict)])]


def _call(verdict: Verdict) -> list[str]:
    """Return whom to call, if that is known and the incident is not over."""
    if verdict.domain in (None, Domain.UNKNOWN) or verdict.status is Status.RECOVERED:
        return []
    return [f"call: {verdict.domain.value}"]


def _shared_line(verdict: Verdict) -> str:
    """Return "12 other jobs hang on the same mount nfs1:/data", or an empty string."""
    cause, number = verdict.shared_cause, verdict.shared_with
    if cause is None or not number:
        return ""
    others = "1 other job hangs" if number == 1 else f"{number} other jobs hang"
    return _line(f"{others} on the same {clean(cause.kind, 24)} {clean(cause.name)}")


def _describe_suspect(suspect: Suspect) -> str:
    parts = [
        f"suspect: rank {suspect.rank}",
        clean(suspect.node, 64),
        "" if suspect.pid is None else f"pid {suspect.pid}",
        "" if suspect.gpu is None else f"gpu {suspect.gpu}",
        "" if suspect.where is None else clean(suspect.where),
    ]
    return _line(", ".join(filter(None, parts)))


def _evidence(verdict: Verdict) -> list[str]:
    if verdict.status is Status.RECOVERED:
        return []  # the evidence is from the hang, but its sentences are in the present tense
    shown = [item for item in verdict.evidence if item.text][:SHOWN_EVIDENCE]
    return [_line(f"{name_source(item.source)}{_weight(item)}: {item.text}") for item in shown]


def name_source(source: str) -> str:
    """Return the source of evidence as people read it."""
    return _SOURCES.get(source) or clean(source, 24)


def _weight(item: Evidence) -> str:
    return f" ({item.weight:.2f})" if item.weight else ""


def _outlook(verdict: Verdict, format_at: Callable[[str], str]) -> list[str]:
    """Return lines on what the detector waits for, or on what happened after the opening."""
    lines = []
    if verdict.not_judged is not None and verdict.not_judged.until is not None:
        until = format_at(clean(verdict.not_judged.until, 40))
        lines.append(f"if nothing changes, it is suspect at {until} at the latest")
    if verdict.progress is not Progress.STEPPING and not verdict.suspects and verdict.progress_text:
        lines.append(_line(f"progress: {verdict.progress_text}"))
    if verdict.hung_in_s is not None:
        why = clean(verdict.hung_because, 240)
        soon = round(verdict.hung_in_s) < 1
        when = "at the next check" if soon else f"in {format_duration(verdict.hung_in_s)}"
        lines.append(f"hung {when} if nothing changes: {why}")
    shown = verdict.aftermath[:SHOWN_AFTERMATH]
    lines += [_line(f"afterwards: {_describe_aftermath(item, format_at)}") for item in shown]
    if len(verdict.aftermath) > SHOWN_AFTERMATH:
        lines[-1] += f" (and {len(verdict.aftermath) - SHOWN_AFTERMATH} more)"
    return lines


def _describe_aftermath(item: Aftermath, format_at: Callable[[str], str]) -> str:
    ranks = f"{name_set(clean(item.ranks, 120))}: " if item.ranks else ""
    return f"{format_at(clean(item.at, 24))} {ranks}{clean(item.text)}"


def _kill(verdict: Verdict) -> list[str]:
    """Return a line on what a kill loses, while the job is hung."""
    return [] if verdict.kill is None else [_line(" ".join(verdict.kill.sentences))]


def _doubts(verdict: Verdict) -> list[str]:
    """Return one line for each of the strongest reasons why the confidence is not higher."""
    if verdict.status is Status.RECOVERED:
        return []
    shown = verdict.doubts[:SHOWN_DOUBTS]
    return [f"not certain because {_line(doubt.text)}" for doubt in shown]


def _alternatives_and_gaps(verdict: Verdict) -> list[str]:
    """Return a line of other possible causes, and a line of missing evidence."""
    if verdict.status is Status.RECOVERED:
        return []
    lines = []
    if verdict.alternatives and verdict.cause is not Cause.UNKNOWN:  # else the summary names them
        lines.append(f"also possible: {_line(', '.join(map(_describe, verdict.alternatives[:3])))}")
    if verdict.missing_evidence:
        more = len(verdict.missing_evidence) - 1
        rest = f" (and {more} more)" if more else ""
        lines.append(f"not known: {clean(verdict.missing_evidence[0], 240)}{rest}")
    return lines


def _describe(alternative: Alternative) -> str:
    of = f" of {name_ranks(alternative.suspects)}" if alternative.suspects else ""
    return f"{alternative.cause.value}{of} ({alternative.confidence:.0%})"


def _line(text: str) -> str:
    return clean_sentence(text, MAX_LINE)
