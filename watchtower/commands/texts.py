"""The text of each object in a terminal: tables of jobs, incidents and outages, the lines
of one incident, and what a list does not contain."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from watchtower.commands.client import (
    TowerClient,
)
from watchtower.commands.printing import (
    clean,
    table,
)
from watchtower.wire.verdict import rank_severity
from watchtower.writing.text import count_ranks, format_count, format_duration, name_some
from watchtower.writing.times import format_time
from watchtower.writing.verdict_text import SHOWN_AFTERMATH

MAX_NAMED = 20
"""Names in one sentence: more would not be read."""

KINDS = ("job", "node", "user")
"""The kinds of subjects that a silence may name."""

SHADOW_TEXT = "in shadow mode: no alert is sent"

MAX_JOBS = 3
"""Jobs of an outage that are named."""

SHOWN_SIMILAR = 3
"""Earlier incidents of one incident. The API has more."""

NONE_YET = (
    'No answers yet. Answer "Was this right?" on the page of an incident, or with '
    "`watchtower feedback ID right`."
)

MAX_NODES = 5
"""Nodes in one sentence: a fleet may have thousands without ranks."""

NO_RANK = 'See "No rank is found" in docs/install.md.'

MAX_UNWATCHED_SHOWN = 5
"""Lines about processes that are not watched, below a list of jobs."""


def write_healthy(jobs: list[dict[str, Any]]) -> str:
    """Return that no job is in trouble, with the names of the jobs."""
    ended = [job for job in jobs if job["status"] == "ended" and job.get("incident")]
    unjudged = [job for job in jobs if job.get("not_judged")]
    lines = [
        f"None of {format_count(len(jobs), 'job')} is in trouble: {_name_jobs(jobs)}. "
        "Describe one of them: watchtower why JOB"
    ]
    if unjudged:
        lines.append(f"Not judged yet: {_name_jobs(unjudged)}.")
    if ended:
        lines.append(f"Ended in an incident: {_name_jobs(ended)}. List them: watchtower incidents")
    return "\n".join(lines)


def _name_jobs(jobs: list[dict[str, Any]]) -> str:
    return name_some([clean(str(job["job"])) for job in jobs[:MAX_NAMED]], len(jobs))


_OF_SCHEDULER = ("partition", "namespace", "scheduler", "scheduler_id")
"""Labels in the wide table of jobs."""


def write_jobs(jobs: list[dict[str, Any]], *, wide: bool = False) -> str:
    """Return the table of jobs. `wide`: with all labels and the incident."""
    more = (*(word.upper().replace("_", " ") for word in _OF_SCHEDULER), "INCIDENT") if wide else ()
    first = ("JOB", "NAME", "USER", "STATUS", "STEP", "RANKS", "ATTEMPT", "SILENCED")
    rows: list[tuple[str, ...]] = [(*first, *more, "DETAIL")]
    for job in sorted(jobs, key=rank_urgency):
        step = "-" if job["step"] is None else str(job["step"])
        until = format_time(job["silenced_until"], time.time()) if job["silenced_until"] else "-"
        labels = job.get("labels") or {}
        called = (labels.get("name") or "-", labels.get("user") or "-")
        status, detail = job["status"], job["detail"]
        if not_judged := job.get("not_judged"):
            status, detail = not_judged["text"], "; ".join(not_judged["missing"])
        sizes = (step, job["world_size"], job["generation"], until)
        known = [labels.get(name) or "-" for name in _OF_SCHEDULER]
        other = (*known, job.get("incident") or "-") if wide else ()
        rows.append((job["job"], *called, status, *map(str, sizes), *other, detail))
    return table(rows)


def write_nodes(answer: dict[str, Any], *, wide: bool = False) -> str:
    """Return the table of nodes, and how many others there are. `wide`: with release and limits."""
    more = ("RELEASE", "LIMITS") if wide else ()
    rows: list[tuple[str, ...]] = [
        ("NODE", "AGENT", "RANKS", "TO BLAME", "NAMED", *more[:1], "JOBS", *more[1:])
    ]
    for one in answer["items"]:
        silent_s, limits = one["silent_for_s"], one["limits"]
        agent = f"silent for {format_duration(silent_s or 0.0)}" if one["is_silent"] else "reports"
        numbers = (one["rank_count"], one["incident_count"], one["named_count"])
        release, jobs = one["release"] or "-", ", ".join(one["job_names"]) or "-"
        last = (release, jobs, "; ".join(limits) or "-") if wide else (jobs,)
        rows.append((one["node"], agent if one["has_agent"] else "none", *map(str, numbers), *last))
    return table(rows)


def write_silences(silences: list[dict[str, Any]], now: float) -> str:
    """Return the table of silences."""
    rows = [("ID", "SILENCED", "NAME", "UNTIL", "BY", "REASON")]
    for one in silences:
        kind, until = kind_of(one), format_time(str(one["until"]), now)
        rows.append((one["id"], kind, one[kind], until, one.get("by") or "-", one["reason"] or "-"))
    return table(rows) if len(rows) > 1 else "No job, node or user is silenced."


def rank_urgency(job: dict[str, Any]) -> float:
    """Return a number that is lower for a job that needs help sooner."""
    return rank_severity(job["status"], not job.get("not_judged"))


def write_incidents(incidents: list[dict[str, Any]], now: float, *, wide: bool = False) -> str:
    """Return the table of incidents. `wide`: with attempt, end and summary."""
    shared = find_shared(incidents)
    more = ("ATTEMPT", "CLOSED", "SUMMARY") if wide else ()
    last = (*(["OUTAGE"] if shared else []), *more)
    first = ("INCIDENT", "OPENED", "JOB", "STATUS", "CAUSE", "ALERT", "ACKNOWLEDGED", "RANKS")
    rows: list[tuple[str, ...]] = [(*first, *last)]
    for one in incidents:
        opened = format_time(one["opened_at"], now)
        cause, ranks = one["cause"] or "-", one["suspect_ranks"] or "-"
        ack = "-" if one["ack"] is None else one["ack"]["by"] or "yes"
        outage = (one["outage"] if one.get("outage") in shared else "-",) if shared else ()
        known = (one["id"], opened, one["job"], one["status"], cause, _write_alert(one), ack, ranks)
        closed = format_time(one["closed_at"], now) if one["closed_at"] else "-"
        other = (str(one["generation"]), closed, one["summary"]) if wide else ()
        rows.append((*known, *outage, *other))
    return table(rows)


def _write_alert(incident: dict[str, Any]) -> str:
    """Return why an incident has no alert, in one word; "-" if it has one."""
    if incident.get("shadow"):
        return "shadow"
    return "silenced" if incident.get("silence") else "-"


def write_ack(ack: dict[str, Any], now: float) -> str:
    """Return who acknowledged an incident, when, and the note."""
    by, note = ack["by"] and f" by {ack['by']}", ack["note"] and f": {ack['note']}"
    return clean(f"acknowledged {format_time(ack['at'], now)}{by}{note}")


def kind_of(silence: dict[str, Any]) -> str:
    """Return whether a silence names a job, a node or a user."""
    return next((kind for kind in KINDS if silence[kind] is not None), "job")


def write_silence(silence: dict[str, Any], now: float) -> str:
    """Return which alerts are silenced, until when, and why."""
    kind = kind_of(silence)
    reason = silence["reason"] and f": {silence['reason']}"
    until = format_time(silence["until"], now)
    return clean(f"alerts of {kind} {silence[kind]} are silenced until {until}{reason}")


def write_history(entries: list[dict[str, Any]], now: float) -> list[str]:
    """List the verdicts of an incident, if there was more than one."""
    if len(entries) < 2:
        return []
    lines = ["verdicts:"]
    for entry in entries:
        ranks = f" of ranks {entry['suspect_ranks']}" if entry["suspect_ranks"] else ""
        at = format_time(entry["at"], now)
        lines.append(f"    {at} {entry['cause']}{ranks} ({entry['confidence']:.0%})")
    return ["\n".join(map(clean, lines))]


def write_aftermath(entries: list[dict[str, Any]], now: float) -> list[str]:
    """List what happened after the opening, if there is more than the verdict's text shows."""
    if len(entries) <= SHOWN_AFTERMATH:
        return []
    lines = [
        f"    {format_time(entry['at'], now)} ranks {entry['ranks'] or '-'}: {entry['text']}"
        for entry in entries
    ]
    return ["\n".join(map(clean, ["afterwards:", *lines]))]


def write_output(output: dict[str, Any], now: float) -> str:
    """Return the last lines that a suspect wrote."""
    written = format_time(output["written_at"], now)
    head = f"last lines of rank {output['rank']} ({output['stream']}, written {written}):"
    return "\n".join([head, *(f"  {line}" for line in output["lines"] or ["(none)"])])


def write_stack(stack: dict[str, Any]) -> str:
    """Return one distinct stack and its ranks."""
    lines = [f"ranks {stack['ranks']}, innermost frame first:"]
    lines += (f"    {name_frame(frame)}" for frame in stack["frames"])
    return "\n".join(map(clean, lines))


def name_frame(frame: dict[str, Any]) -> str:
    """Return "__next__ (data.py:88)"."""
    return f"{frame['function']} ({frame['file']}:{frame['line']})"


def write_outages(outages: list[dict[str, Any]], now: float) -> str:
    """Return the table of outages."""
    if not outages:
        return "No outages: no live jobs with one shared cause hung within two minutes."
    rows = [("OUTAGE", "OPENED", "STATUS", "SHARED CAUSE", "CALL", "RANKS", "JOBS")]
    for one in outages:
        cause, incidents = one["shared_cause"], one["incidents"]
        opened = format_time(one["opened_at"], now)
        status = f"{one['open_count']} of {len(incidents)} open" if one["open_count"] else "over"
        shared = f"{cause['kind']} {cause['name']}"
        ranks = str(one["rank_count"])
        jobs = name_some([str(each["job"]) for each in incidents[:MAX_JOBS]], len(incidents))
        rows.append((one["id"], opened, status, shared, one["domain"], ranks, jobs))
    return table(rows)


def write_advisories(answer: dict[str, Any], now: float) -> str:
    """Return the advisories, each with what to do."""
    if not answer["items"]:
        return "No advisories: nothing is known to be wrong with the jobs and their nodes."
    lines = []
    for one in answer["items"]:
        about = " ".join(filter(None, (one["job"] or one["node"], one["subject"])))
        until = one["silenced_until"]
        silenced = f", silenced until {format_time(until, now)}" if until else ""
        since = format_time(one["since"], now)
        lines += [
            f"{one['level'].upper()} {one['advisory']}: {about}: {one['text']}",
            f"  since {since}{silenced}",
            f"  why: {one['why']}",
            f"  do: {one['advice']}",
            f"  silence: {one['how_to_silence']}",
        ]
    if answer["left_out"]:
        lines.append(f"{answer['left_out']} more: name a job or a node")
    return "\n".join(lines)


def find_shared(incidents: list[dict[str, Any]]) -> set[str]:
    """Return the outages that several of these incidents belong to."""
    counts = Counter(str(one["outage"]) for one in incidents if one.get("outage"))
    return {outage for outage, count in counts.items() if count > 1}


def write_earlier(answer: dict[str, Any], now: float) -> list[str]:
    """List earlier incidents with the same node, line or cause, if there are any."""
    lines = [f"    {one['text']}" for one in answer["node_counts"]]
    for one in answer["items"]:
        opened = format_time(str(one["opened_at"]), now)
        lines.append(f"    {one['id']}, {opened}, job {one['job']}: {one['why']}")
    return ["\n".join(map(clean, ["before:", *lines]))] if lines else []


def write_feedback(given: dict[str, Any], now: float) -> str:
    """Return what a person answered about the verdict, and when."""
    by, note = given["by"] and f" by {given['by']}", given["note"] and f": {given['note']}"
    true = [f"rank {given['rank']}"] if given["rank"] is not None else []
    true += [str(given["cause"])] if given["cause"] is not None else []
    text = "right" if given["right"] else "wrong"
    correct = f", correct is {', '.join(true)}" if true else ""
    return clean(f"judged {text} {format_time(given['at'], now)}{by}{correct}{note}")


def write_calibration(answer: dict[str, Any]) -> str:
    """Return the table of confidence, and the table of causes."""
    right, wrong = int(answer["right_count"]), int(answer["wrong_count"])
    if not right + wrong:
        return NONE_YET
    bands: list[tuple[str, ...]] = [("CONFIDENCE", "RIGHT", "WRONG", "MEAN", "WERE RIGHT")]
    for one in answer["items"]:
        limits = f"{one['confidence_from']:.0%}-{one['confidence_to']:.0%}"
        bands.append(
            (limits, *_count_answers(one), _share(one["mean_confidence"]), _share_right(one))
        )
    causes: list[tuple[str, ...]] = [("CAUSE", "RIGHT", "WRONG")]
    causes += [(str(one["cause"]), *_count_answers(one)) for one in answer["causes"]]
    total = f"{right} of {right + wrong} verdicts were right, as people answered."
    return "\n\n".join((total, table(bands), table(causes)))


def _count_answers(one: dict[str, Any]) -> Sequence[str]:
    return str(one["right_count"]), str(one["wrong_count"])


def _share_right(band: dict[str, Any]) -> str:
    return _share(band["right_share"])


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def explain_no_jobs(client: TowerClient) -> str:
    """Return why there is no job: no agent is connected, or agents have found no ranks."""
    return f"No jobs. {_describe_agents(client.nodes())} {NO_RANK}"


def explain_no_incidents(client: TowerClient, chosen: str) -> str:
    """Return what the tower watches although there is no incident. `chosen`: the filters."""
    return f"No incidents{chosen}. {_describe_agents(client.nodes())}"


def _describe_agents(answer: dict[str, Any]) -> str:
    number, silent = int(answer["connected"]), int(answer["silent"])
    lost = f" {format_count(silent, 'agent')} stopped reporting." if silent else ""
    if not number:
        return f"No agent is connected.{lost}"
    names = name_some(list_connected(answer)[:MAX_NODES], number)
    is_one, ranks = number == 1, int(answer["rank_count"])
    if ranks:
        seen = f"{'watches' if is_one else 'watch'} {count_ranks(ranks)}"
    else:
        seen = f"{'it has' if is_one else 'they have'} found no ranks"
    verb = "is" if is_one else "are"
    return f"{format_count(number, 'agent')} {verb} connected ({names}) and {seen}.{lost}"


def list_connected(answer: dict[str, Any]) -> list[str]:
    """Return the nodes whose agents report, of those that the tower lists, by name."""
    items = (one for one in answer["items"] if one["has_agent"] and not one["is_silent"])
    return sorted(str(one["node"]) for one in items)


def list_unwatched(answer: dict[str, Any]) -> list[str]:
    """Return lines about the processes that seem to be ranks and are not watched; none without."""
    items = answer["items"]
    lines = [
        f"not watched on {clean(str(one['node']))}: {clean(str(one['text']))}"
        for one in items[:MAX_UNWATCHED_SHOWN]
    ]
    shown = sum(int(one["count"]) for one in items[:MAX_UNWATCHED_SHOWN])
    more = int(answer["rank_count"]) - shown
    return [*lines, f"not watched elsewhere: {more} more"] if more > 0 else lines
