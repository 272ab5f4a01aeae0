"""`watchtower diagnose`: the verdict on snapshots, or on any files of a job, without a tower."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace

import msgspec

from watchtower.commands.client import DONE, TROUBLE, UNUSABLE, ClientError
from watchtower.commands.evidence_files import find_files, part_snapshots, read_files
from watchtower.commands.evidence_texts import (
    Shown,
    diagnose_found,
    list_files,
    list_ranks,
    redact_case,
    redact_found,
    write_page,
    write_tables,
)
from watchtower.commands.printing import as_json, clean, clean_lines, paint_verdict, wants_colour
from watchtower.commands.snapshot_files import (
    FILES_CPU_S,
    FileSnapshot,
    bounded_run,
    read_snapshots,
)
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.fleet.found_case import PASTED, UnusableTextError, make_case, read_pasted
from watchtower.fleet.found_files import Found, sort_findings
from watchtower.fleet.snapshots import JobSnapshot, join_snapshots
from watchtower.jobs.verdicts import diagnosed_verdict, plain_verdict
from watchtower.readers.findings import NO_OWNER, FileFound
from watchtower.views.verdict import view_verdict
from watchtower.wire.verdict import Status, Verdict
from watchtower.writing.text import format_duration
from watchtower.writing.times import format_moment, rfc3339
from watchtower.writing.verdict_text import render_markdown, render_text

OLD_S = 900.0
"""Seconds after which a snapshot may be one of an earlier hang: its file has the same name."""

NO_EVIDENCE = "is not a snapshot of watchtower-agent, and no other evidence was found in it"

NOTHING = "no evidence of a hang was found: no file is a snapshot, a log or a record of a rank"

MAX_JOBS = 8
"""Jobs named in a message."""


def show_diagnosis(args: argparse.Namespace) -> int:
    """Print the verdict of every job in the files.

    Returns 2 if a file cannot be used, else 1 with --exit-code if a job is hung.
    """
    with bounded_run("these files", FILES_CPU_S):
        snapshots, others = part_snapshots(find_files(args.files))
        terminal = sys.stderr if sys.stderr.isatty() else None
        evidence = list(read_files(others, terminal=terminal))
    with bounded_run("these files"):
        files = read_snapshots(snapshots)
        files.unusable.extend(_name_unusable(args, evidence))
        found = sort_findings(evidence)
        if not files.found and not found.ranks:
            raise ClientError("\nwatchtower: ".join(files.unusable) or _write_nothing_found(args))
        for sentence in files.unusable:
            print(f"watchtower: {sentence}. The other files are diagnosed", file=sys.stderr)
        verdicts = _diagnose(args, files.found) if files.found else []
        shown = _diagnose_evidence(args, found) if found.ranks else None
        if shown is not None:
            verdicts.append(_make_verdict(shown))
    if args.json:
        for verdict in verdicts:
            page = msgspec.to_builtins(view_verdict(verdict))
            more = {} if shown is None else _list_shown(shown)
            print(as_json({**page, **more}))
    else:
        _print(args, verdicts, shown)
    if files.unusable:
        return UNUSABLE
    is_trouble = any(verdict.status in (Status.SUSPECT, Status.HUNG) for verdict in verdicts)
    return TROUBLE if args.exit_code and is_trouble else DONE


def _name_unusable(args: argparse.Namespace, files: Sequence[FileFound]) -> Iterator[str]:
    """Yield a sentence for each file without evidence that was given by its name. A folder may have
    files of any kind."""
    given = {clean(str(path)) for path in args.files}
    for each in files:
        if each.name in given and not each.findings and each.owner is NO_OWNER:
            yield f"{each.name} {NO_EVIDENCE}"


def _write_nothing_found(args: argparse.Namespace) -> str:
    return f"{clean(', '.join(map(str, args.files[:MAX_JOBS])))}: {NOTHING}"


def _diagnose_evidence(args: argparse.Namespace, found: Found) -> Shown:
    """Return the diagnosis of what readers found in files."""
    case = make_case(args.job or args.files[0].resolve().name, found)
    if args.redact:
        case, found = redact_found(case, found)
    return diagnose_found(case, found)


def _make_verdict(shown: Shown) -> Verdict:
    status = Status.HUNG if shown.found.has_timed_out else Status.SUSPECT
    return diagnosed_verdict(shown.case.job, 1, status, shown.diagnosis, time.time())


def _list_shown(shown: Shown) -> dict[str, object]:
    """Return what JSON has besides the verdict."""
    return {"ranks": list_ranks(shown), "files": list_files(shown.found.files)}


def diagnose_text(text: str) -> str:
    """Return the verdict on a text that a person pasted, as Markdown with its tables.

    Raises ClientError, which says why there is none.
    """
    try:
        shown = diagnose_found(*read_pasted(text))
    except UnusableTextError as error:
        raise ClientError(f"{PASTED}: {error}") from None
    tables = clean_lines(write_tables(shown)).replace("`", "'")
    verdict = clean_lines(render_markdown(_make_verdict(shown))).rstrip()
    return f"{verdict}\n\n```\n{tables}\n```"


def _print(args: argparse.Namespace, verdicts: Sequence[Verdict], shown: Shown | None) -> None:
    """Print verdicts as text, Markdown or HTML, with the tables of the files that were read."""
    if args.html:
        if shown is None:
            raise ClientError("--html is for logs and records: a snapshot has no table of files")
        print(write_page(verdicts[-1], time.time(), shown), end="")
        return
    tables = clean_lines(write_tables(shown)) if shown else ""
    if args.markdown:
        print(clean_lines("\n".join(map(render_markdown, verdicts))).rstrip())
        print("\n```\n" + tables.replace("`", "'") + "\n```" if tables else "")
        return
    text = clean_lines("\n".join(map(_write, verdicts))).rstrip()
    print(paint_verdict(text) if wants_colour(sys.stdout, os.environ) else text)
    if tables:
        print(f"\n{tables}")


def _write(verdict: Verdict) -> str:
    """Return the text of a verdict with all of its missing evidence: there is no page with it."""
    more = (f"  also not known: {each}\n" for each in verdict.missing_evidence[1:])
    return render_text(verdict, time.time()) + "".join(more)


def _diagnose(args: argparse.Namespace, files: Sequence[FileSnapshot]) -> list[Verdict]:
    jobs = join_snapshots([file.snapshot for file in files])
    _warn_of_lost_jobs({(job.job, job.owner) for job in jobs}, files, args.job)
    names = sorted({job.job for job in jobs})
    if args.job is not None:
        jobs = [job for job in jobs if job.job == args.job]
    if not jobs:
        of = "" if args.job is None else f" of job {args.job!r}"
        others = f", only of {_list_jobs(names)}" if names else ""
        raise ClientError(f"there are no ranks{of} in these files{others}")
    for job in jobs:
        _check_times(job, files, args.within)
        _warn(job, files)
        _warn_of_age(job)
    return [make_verdict(_redact(job) if args.redact else job) for job in jobs]


def _redact(job: JobSnapshot) -> JobSnapshot:
    """Return a job of snapshots without names."""
    case, redactor = redact_case(job.case)
    return replace(
        job,
        job=case.job,
        case=case,
        reason=redactor.text(job.reason),
        gaps=tuple(map(redactor.text, job.gaps)),
    )


def _list_jobs(names: Sequence[str]) -> str:
    more = len(names) - MAX_JOBS
    shown = [repr(clean(name)) for name in names[:MAX_JOBS]]
    return ", ".join([*shown, *([f"{more} more jobs"] if more > 0 else [])])


def make_verdict(job: JobSnapshot) -> Verdict:
    """Return the verdict on one job."""
    if job.status in (Status.HEALTHY, Status.ENDED):
        verdict = plain_verdict(job.job, 1, job.status, job.reason, job.step)
    else:
        verdict = diagnosed_verdict(job.job, 1, job.status, diagnose(job.case), job.taken_at)
    # First: the text of a verdict has one line for all missing evidence.
    first = (*filter(None, [job.caveat]), *job.gaps)
    return replace(verdict, missing_evidence=(*first, *verdict.missing_evidence))


def _check_times(job: JobSnapshot, files: Sequence[FileSnapshot], within_s: float) -> None:
    """Raise ClientError if the snapshots of a job are from different times."""
    if job.apart_s <= within_s:
        return
    used = [
        file
        for number, file in enumerate(files)
        if number not in job.replaced
        and any((r.job, r.owner) == (job.job, job.owner) for r in file.snapshot.reports[-1].ranks)
    ]
    first = min(used, key=lambda file: file.snapshot.taken_at)
    last = max(used, key=lambda file: file.snapshot.taken_at)
    raise ClientError(
        f"the snapshots of job {clean(job.job)!r} are {format_duration(job.apart_s)} apart: "
        f"{first.name} is of {format_moment(rfc3339(first.snapshot.taken_at))}, {last.name} of "
        f"{format_moment(rfc3339(last.snapshot.taken_at))}. Take all of them again. If only the "
        "clocks of the nodes differ, use --within"
    )


def _warn(job: JobSnapshot, files: Sequence[FileSnapshot]) -> None:
    for number in job.replaced:
        file = files[number]
        print(
            f"watchtower: {file.name} is not used for job {clean(job.job)!r}: another file is a "
            f"later snapshot of node {clean(file.snapshot.node)}",
            file=sys.stderr,
        )


def _warn_of_age(job: JobSnapshot) -> None:
    age_s = time.time() - job.taken_at
    if age_s > OLD_S:
        print(
            f"watchtower: the verdict on job {clean(job.job)!r} is of "
            f"{format_moment(rfc3339(job.taken_at))}, {format_duration(age_s)} ago, when its "
            "latest snapshot was taken",
            file=sys.stderr,
        )


def _warn_of_lost_jobs(
    found: Set[tuple[str, str]], files: Iterable[FileSnapshot], wanted: str | None
) -> None:
    """Name the jobs without any rank in these files, although their nodes had some."""
    lost = [
        (file, gap)
        for file in files
        for gap in file.snapshot.gaps
        if (gap.job, gap.owner) not in found and wanted in (None, gap.job)
    ]
    for file, gap in lost[:MAX_JOBS]:
        print(
            f"watchtower: {file.name} has no rank of job {clean(gap.job)!r}: {clean(gap.text)}",
            file=sys.stderr,
        )
    if len(lost) > MAX_JOBS:
        print(f"watchtower: {len(lost) - MAX_JOBS} more such jobs", file=sys.stderr)
