"""Writes what `watchtower diagnose` found in files: a row for each rank, and each file's form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from watchtower.commands.printing import clean, table
from watchtower.evidence.case import Case, logs_of
from watchtower.fleet.found_files import Found, RankFound
from watchtower.readers.findings import FileFound, RecordsFound, SetUpFound, StacksFound
from watchtower.wire.collectives import GroupLog
from watchtower.writing.ranksets import format_ranks, name_ranks

MAX_ROWS = 32
"""Rows of the table by rank. Ranks with equal rows are one row, so that most jobs have a few."""

MAX_LAST_LINE = 72
"""Characters of a rank's last line."""


def write_tables(found: Found, case: Case, files: Sequence[FileFound]) -> str:
    """Return which ranks the files have, what each rank last did, and what each file is."""
    parts = (_write_coverage(found), _write_ranks(found, case), _write_files(files))
    return "\n\n".join(filter(None, (*parts, _write_settings(files))))


def _write_ranks(found: Found, case: Case) -> str:
    """Return a table: what each rank last did. Ranks that did the same share a row."""
    logs = {log.digest: log for log in case.group_logs}
    names = {group.id: group.name for group in case.groups}
    rows: dict[tuple[str, ...], list[int]] = {}
    for item in case.ranks:
        own = found.ranks.get(item.rank) or RankFound(item.rank)
        listed = [each for dump in item.dumps[-1:] for each in logs_of(dump)]
        for digest in listed or [""]:
            log = logs.get(digest)
            group = ("-",) * 4 if log is None else (names[log.group], *_columns(log))
            rows.setdefault((*group, _end_of(own)), []).append(item.rank)
    head = ("RANKS", "GROUP", "WAITS IN", "CALLED", "COMPLETED", "LAST LINE OR PLACE", "FILES")
    shown = [
        (format_ranks(ranks), *row, _name_files(found, ranks))
        for row, ranks in list(rows.items())[:MAX_ROWS]
    ]
    more = len(rows) - MAX_ROWS
    return table([head, *shown]) + (f"\n... and {more} more rows" if more > 0 else "")


def _name_files(found: Found, ranks: Sequence[int]) -> str:
    """Return the first file of these ranks, and how many others they have."""
    owns = [found.ranks[rank] for rank in ranks if rank in found.ranks]
    names = list(dict.fromkeys(file.name for own in owns for file in own.files))
    if not names:
        return "no file"
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _columns(log: GroupLog) -> tuple[str, str, str]:
    number = log.completed + 1
    operation = next((each.operation for each in log.records if each.number == number), "")
    waits = f"{operation} {number}".strip() if log.called >= number else "no call"
    return waits, str(log.called), str(max(0, log.completed))


def _end_of(own: RankFound) -> str:
    """Return the last line of a rank that wrote no evidence of a call, or its place."""
    if own.calls or own.records or own.set_ups or own.barrier:
        return ""
    if own.stacks:
        return _place_of(own.stacks[-1])
    return own.last_line[-MAX_LAST_LINE:] or "-"


def _place_of(found: StacksFound) -> str:
    """Return the innermost line of the user's code in the main thread."""
    frames = next((s.frames for s in found.threads.stacks), ())
    shown = next((frame for frame in frames if not frame.library), frames[0] if frames else None)
    return f"in {shown.function} ({shown.file}:{shown.line})" if shown else "-"


def _write_files(files: Sequence[FileFound]) -> str:
    """Return what the files were taken for, and what of them was not understood."""
    forms = Counter(file.form or "not known" for file in files)
    words = ", ".join(f"{count} {form}" for form, count in forms.most_common())
    missed = sum(file.not_understood for file in files)
    lines = [f"{len(files)} files: {words}; {missed} lines that were not understood"]
    if older := [file for file in files if file.earlier_runs]:
        lines += [f"  {len(older)} of them have earlier runs of the job, which do not count"]
    troubles = [f"  {clean(file.name)}: {file.trouble}" for file in files if file.trouble]
    lines += troubles[:MAX_ROWS]
    if len(troubles) > MAX_ROWS:
        lines += [f"  ... and {len(troubles) - MAX_ROWS} more files were not read to their end"]
    return "\n".join(lines)


SETTLES = (
    (RecordsFound, "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000"),
    (RecordsFound, "export TORCH_NCCL_DUMP_ON_TIMEOUT=1"),
    (SetUpFound, "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET"),
)
"""What these files lack, and the lines that give it in the next run."""


def _write_settings(files: Sequence[FileFound]) -> str:
    """Return lines for the environment of the next run, only those that this job lacked."""
    kinds = {type(finding) for file in files for finding in file.findings}
    lines = [line for kind, line in SETTLES if kind not in kinds]
    return "\n".join(["for the next run:", *(f"  {line}" for line in lines)]) if lines else ""


def _write_coverage(found: Found) -> str:
    """Return "6 of 8 ranks are in these files; ranks 3,5 are not"."""
    absent = [rank for rank in range(found.world_size) if rank not in found.ranks]
    some = f"{found.world_size - len(absent)} of {found.world_size} ranks are in these files"
    verb = "is" if len(absent) == 1 else "are"
    claimed = f" (only one rank wrote that there are {found.world_size})"
    claim = claimed if found.proven_size < found.world_size else ""
    return f"{some}; {name_ranks(absent)} {verb} not{claim}" if absent else some


def list_files(files: Sequence[FileFound]) -> list[dict[str, object]]:
    """Return the files for JSON: what each was taken for, and whose it is."""
    return [
        {
            "file": file.name,
            "form": file.form,
            "rank": file.owner.rank if file.owner.rank >= 0 else None,
            "rank_known_by": file.owner.known.name.lower(),
            "ranks_in_lines": list(file.ranks[:MAX_ROWS]),
            "findings": len(file.findings),
            "lines": file.lines,
            "earlier_runs": file.earlier_runs,
            "not_understood": file.not_understood,
            "trouble": file.trouble,
        }
        for file in files
    ]
