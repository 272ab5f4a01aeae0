"""Writes the message of an incident: at most three lines, for a person who is on call.

The first line names the job and the rank. The second one answers whom to call and what to do. The
third one contains links. A fact that is not known is left out, or the line calls it not known.

Names, file names and advice contain text of the job's processes and nodes. A file name can imitate
our sentences, but only in the message of its own job. Each line begins with our own words, and our
own claims are never cut or left out for such text. The message is plain text: a destination with
markup must escape it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from watchtower.incidents.kill_text import NEVER_STARTED, KillFacts, find_kill_loss
from watchtower.wire.verdict import KillLoss
from watchtower.writing.amounts import find_count, find_seconds, find_step, format_short
from watchtower.writing.text import capitalise, clean, clean_sentence, format_count, format_duration

MAX_LINE = 300
"""Most characters of one line: a chat window shows them without folding the message."""

MAX_NAME, MAX_SHORT_NAME = 56, 20
"""Most characters of a job, and of a user, scheduler, id or acknowledging person. The names of the
first line fit in it together, so that a long name does not displace the rank."""

MAX_NODE = 40
"""Characters of a node, so that the first line keeps a place for the rank."""

LEAST_WORDS = 16
"""Fewer characters of a sentence are not worth a place in a line."""

MAX_PERCENT = 99
"""No verdict is certain."""

NO_RANK = "no rank is blamed"
"""Instead of the rank. The Prometheus rules use the same words."""

DRILL_TEXT = "This is a drill: do nothing. Its tower ends with it."


class AlertState(Enum):
    """The state of the incident when the message is written."""

    OPEN = "open"
    ACKED = "acked"
    RECOVERED = "recovered"
    """The job makes steps again."""
    CLOSED = "closed"
    """The incident is over, and it is not known that the job makes steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFacts(KillFacts):
    """The known facts of an incident. An empty text or None: not known."""

    job: str = ""
    scheduler: str = ""
    """"slurm"."""
    scheduler_id: str = ""
    user: str = ""
    gpus: int | None = None
    """GPUs of the job, only if they were measured."""
    stalled_s: float | None = None
    node: str = ""
    what: str = ""
    """The suspect's sentence without its rank, such as `Suspect.why`: "Is stopped (state T).".
    Without a suspect: the sentence of the verdict."""
    waiting: int | None = None
    """Number of ranks that wait for the suspects."""
    confidence: float | None = None
    """Confidence of the verdict: 0 to 1."""
    advice: str = ""
    """The first of the next steps of the verdict."""
    url: str = ""
    runbook_url: str = ""
    dashboard_url: str = ""
    incident: str = ""
    state: AlertState = AlertState.OPEN
    acked_by: str = ""
    is_drill: bool = False
    aftermath: str = ""
    """The fate of the ranks after the incident opened: "ranks 0-511 ended by SIGTERM"."""

    @property
    def links(self) -> dict[str, str]:
        """The address of each page about the alert, by its name. Pages without one are left out."""
        urls = {
            "Details": self.url,
            "Runbook": self.runbook_url,
            "Dashboard": self.dashboard_url,
        }
        return {name: url for name, url in urls.items() if url}


_TEAMS = {
    "data": "the team that provides the data",
    "storage": "the storage team",
    "network": "the network team",
    "node": "the team that runs the nodes",
    "gpu": "the team that runs the nodes (GPU)",
    "scheduler": "the team that runs the scheduler",
    "operator": "the operators of the cluster",
}
"""Whom to call, by domain. The owner of a job answers for its code."""

_STUCK = frozenset({"hung", NEVER_STARTED})
"""Statuses of a job that makes no steps. To end any other job loses its work since the last
checkpoint."""

_INCIDENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_URL = re.compile(r"https?://[!-~]{1,200}")
"""Printable ASCII without spaces. A URL that is cut would lead elsewhere."""


def write_message(facts: AlertFacts) -> tuple[str, ...]:
    """Return one to three lines of at most `MAX_LINE` printable characters."""
    write_body = _write_over if _is_over(facts) else _write_open
    lines = tuple(line for line in (*write_body(facts), _join_links(facts)) if line)
    return mark_drill(lines) if facts.is_drill else lines


def mark_drill(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the message of a drill. Its last line replaces the links: its tower will not exist."""
    return (f"[DRILL] {lines[0]}"[:MAX_LINE].rstrip(), *lines[1:2], DRILL_TEXT)


def find_loss(facts: AlertFacts, now: float | None) -> KillLoss | None:
    """Return what a kill of the job loses now; None if the job is not stuck. `now`: as in
    `find_kill_loss`."""
    is_stuck = facts.status in _STUCK and not _is_over(facts)
    return find_kill_loss(facts, now) if is_stuck else None


def _is_over(facts: AlertFacts) -> bool:
    return facts.state in (AlertState.RECOVERED, AlertState.CLOSED)


def _write_open(facts: AlertFacts) -> tuple[str, str]:
    status = " ".join(clean(facts.status, MAX_SHORT_NAME).replace("_", " ").upper().split())
    stalled = ": ranks missing for " if facts.status == NEVER_STARTED else ": no step for "
    stall = _write_stall(facts, stalled) if facts.status in _STUCK else ""
    if stall and (usual_s := find_seconds(facts.step_s)):
        stall += f", usually one in {format_short(usual_s)}"
    tag = f"{status or 'STATUS NOT KNOWN'}{stall}"
    if facts.state is AlertState.ACKED:
        person = clean(facts.acked_by, MAX_SHORT_NAME)
        tag += f", acknowledged by {person}" if person else ", acknowledged"
    start = f"[{tag}] {_name_job(facts)}: "
    return start + _write_verdict(facts, MAX_LINE - len(start)), _write_actions(facts)


def _write_actions(facts: AlertFacts) -> str:
    """Return whom to call and what to do. Our own claims have precedence in the room."""
    call, loss = write_whom_to_call(facts.domain, facts.user), find_loss(facts, now=None)
    own = [
        _write_stop(facts),
        *((loss.evidence_text, loss.steps_text, loss.process_text) if loss else ()),
    ]
    claims = _join_fitting(filter(None, own), MAX_LINE - len(call) - 1, " ")
    room = MAX_LINE - len(f"{call} {claims}")
    advice = _fit_advice(facts.advice, room)
    timeout = f" {loss.timeout_text}" if loss and loss.timeout_text else ""
    if len(timeout) > room - len(advice):
        timeout = ""
    since = _fit_sentence(" Since then: ", facts.aftermath, room - len(advice) - len(timeout))
    return f"{call}{advice} {claims}".rstrip() + timeout + since


def _write_over(facts: AlertFacts) -> tuple[str, str]:
    recovered = facts.state is AlertState.RECOVERED
    outcome = "the job makes steps again" if recovered else "the incident is closed"
    first = f"[{facts.state.name}] {_name_job(facts)}: {outcome}"
    again = f" {again}" if (again := write_whom_to_call_again(facts.domain)) else ""
    start = "Nothing to do now." if recovered else ""
    if not recovered and facts.aftermath:
        start = _fit_sentence("", capitalise(facts.aftermath), MAX_LINE // 3)
    if stall := _write_stall(facts, "It was hung for ") if facts.status in _STUCK else "":
        start = f"{start} {stall}.".lstrip()
    start = f"{start} The verdict was: ".lstrip()
    verdict = _write_verdict(facts, MAX_LINE - len(start) - len(again) - 1)
    return first, f"{start}{verdict}.{again}"


def _name_job(facts: AlertFacts) -> str:
    scheduler = clean(facts.scheduler, MAX_SHORT_NAME)
    number = clean(facts.scheduler_id, MAX_SHORT_NAME)
    size, unit = (facts.gpus, "GPU") if find_count(facts.gpus) else (facts.ranks, "rank")
    about = (
        f"{scheduler} {number}".strip() if number else "",
        clean(facts.user, MAX_SHORT_NAME),
        _write_count(size, unit),
    )
    known = ", ".join(item for item in about if item)
    name = clean(facts.job, MAX_NAME) or "unnamed job"
    return f"{name} ({known})" if known else name


def _write_verdict(facts: AlertFacts, room: int) -> str:
    """Return the rank, what it does and how sure that is, in at most `room` characters."""
    rank = find_count(facts.rank)
    named = NO_RANK if rank is None else f"rank {rank}"
    node = clean(facts.node, MAX_NODE)
    if rank is not None and node:
        named += f" on {node}"
    if known := ", ".join(item for item in (_write_others(facts), _write_sure(facts)) if item):
        named += f" ({known})"
    if rank is None:
        named += _write_unseen(facts)
    link = " " if rank is not None else ". "
    words = _fit_words(facts.what, room - len(named) - len(link))
    if words and rank is not None:
        words = words[:1].lower() + words[1:]
    return f"{named}{link}{words}" if words else named


def _write_others(facts: AlertFacts) -> str:
    suspects = find_count(facts.suspects) or 0
    return (
        f"one of {suspects} suspects" if suspects > 1 and find_count(facts.rank) is not None else ""
    )


def _write_sure(facts: AlertFacts) -> str:
    confidence = facts.confidence
    if confidence is None or not 0.01 <= confidence <= 1:
        return ""
    percent = min(math.floor(confidence * 100), MAX_PERCENT)
    what = "of the cause" if find_count(facts.rank) is None else "that it is this rank"
    return f"{percent} % sure {what}"


def _write_unseen(facts: AlertFacts) -> str:
    """Return how many ranks no agent reports, which is what such a verdict lacks."""
    size, seen = find_count(facts.ranks), find_count(facts.dumps_wanted)
    if size is None or seen is None or seen >= size:
        return ""
    return f". Agents report {seen} of {_write_count(size, 'rank')}"


def write_whom_to_call(domain: str, user: str = "") -> str:
    """Return the sentence with the team, or with the owner of the job, who is `user` if known."""
    user = clean(user, MAX_SHORT_NAME)
    owner = f"{user}, the owner of the job" if user else "the owner of the job"
    if domain == "user_code":
        return f"Call {owner} (user code)."
    if team := _TEAMS.get(domain):
        return f"Call {team}."
    return f"Whom to call is not known{f': begin with {owner}' if user else ''}."


def write_whom_to_call_again(domain: str) -> str:
    """Return the sentence for an incident that is over; empty if the team is not known."""
    team = _TEAMS.get(domain, "the owner of the job" if domain == "user_code" else "")
    return f"If it happens again: call {team}." if team else ""


def _write_stop(facts: AlertFacts) -> str:
    step = find_step(facts.step)
    place = "" if step is None else f" at step {step}"
    if waiting := find_count(facts.waiting):
        return f"{_write_count(waiting, 'rank')} {'waits' if waiting == 1 else 'wait'}{place}."
    if facts.status == "slow":
        return "The job still makes steps."
    return f"Stopped{place}." if place and facts.status in _STUCK else ""


def _fit_advice(text: str, room: int) -> str:
    """Return the advice, whole or not at all: half of a command is another command."""
    advice = clean_sentence(text, MAX_LINE).removesuffix(".")
    sentence = f" Before you call: {advice}{'' if advice.endswith('?') else '.'}"
    return sentence if advice and len(text) <= MAX_LINE and len(sentence) <= room else ""


def _write_stall(facts: AlertFacts, before: str) -> str:
    seconds = find_seconds(facts.stalled_s)
    return "" if seconds is None else f"{before}{format_duration(seconds)}"


def _join_links(facts: AlertFacts) -> str:
    """Return the links that fit, each whole."""
    is_named = _INCIDENT_ID.fullmatch(facts.incident) is not None
    links: list[str] = []
    if is_named and facts.state is AlertState.OPEN:
        links.append(f"Acknowledge: watchtower ack {facts.incident}")
    pages = {name: url for name, url in facts.links.items() if _URL.fullmatch(url)}
    if is_named and "Details" not in pages:
        links.append(f"Details: watchtower incident {facts.incident}")
    links += (f"{name}: {url}" for name, url in pages.items())
    return _join_fitting(links, MAX_LINE, " | ")


def _join_fitting(texts: Iterable[str], room: int, link: str) -> str:
    """Return the texts that fit, each whole."""
    line = ""
    for text in texts:
        longer = f"{line}{link}{text}" if line else text
        line = longer if len(longer) <= room else line
    return line


def _fit_sentence(start: str, text: str, room: int) -> str:
    words = _fit_words(text, room - len(start) - 1)
    return f"{start}{words}." if words else ""


def _fit_words(text: str, room: int) -> str:
    """Return a sentence without its full stop, cut at `room` characters; empty if there is none."""
    return clean_sentence(text, room).removesuffix(".").rstrip() if room >= LEAST_WORDS else ""


def _write_count(count: int | None, unit: str) -> str:
    """Return "3 ranks"; empty for 0 and for what is not known."""
    known = find_count(count)
    return format_count(known, unit) if known else ""
