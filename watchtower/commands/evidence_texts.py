"""What `watchtower diagnose` shows of files beside the verdict: a row for each rank, where the
ranks part, which rank waits for which, what each file is, and what would settle the question.

The parts are those of a document, so that text, Markdown and HTML have the same content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from watchtower.commands.printing import clean, clean_lines, table
from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.diagnosis.diagnosis import diagnose_picture
from watchtower.diagnosis.picture import take_picture
from watchtower.evidence.case import Case, logs_of
from watchtower.fleet.found_files import Found, RankFound
from watchtower.incidents.redaction.redactor import Redactor, redact_value
from watchtower.readers.findings import (
    FileFound,
    ObservedFound,
    Place,
    RecordsFound,
    SetUpFound,
    StacksFound,
)
from watchtower.views.case_summary import WaitBoxes
from watchtower.views.graph_svg import draw_graph, list_waits
from watchtower.views.summary import summarize
from watchtower.wire.collectives import GroupLog
from watchtower.wire.verdict import Verdict
from watchtower.writing.documents import (
    Code,
    Document,
    Drawing,
    Heading,
    Listing,
    Paragraph,
    Part,
    Table,
    write_html,
)
from watchtower.writing.ranksets import format_ranks, name_ranks
from watchtower.writing.text import capitalise
from watchtower.writing.verdict_text import render_text

MAX_ROWS = 32
"""Rows of the table by rank. Ranks with equal rows are one row, so that most jobs have a few."""

MAX_GROUPS = 8
"""Groups of which it is shown where their ranks part."""

MAX_LAST_LINE = 72
"""Characters of a rank's last line."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A job in files, diagnosed."""

    case: Case
    found: Found
    diagnosis: Diagnosis
    waits: WaitBoxes


def diagnose_found(case: Case, found: Found) -> Shown:
    """Return the diagnosis of a case that was made of files."""
    picture = take_picture(case)
    diagnosis = diagnose_picture(picture)
    return Shown(case, found, diagnosis, summarize(picture, diagnosis).waits)


def list_parts(shown: Shown) -> Iterator[Part]:
    """Yield what the files show besides the verdict."""
    found, case = shown.found, shown.case
    yield Paragraph(_write_coverage(found))
    yield _tabulate_ranks(found, case)
    if parted := list(_list_divergence(case)):
        yield Heading("where the ranks part")
        yield Listing(tuple(parted[:MAX_GROUPS]))
    if shown.waits.arrows:
        lines = tuple(_list_waits(shown.waits))
        yield Heading("which rank waits for which")
        yield Drawing(draw_graph(shown.waits, is_file=True), "\n".join(lines))
    if observed := list(_list_observed(shown.found)):
        yield Heading("what else the files show")
        yield Listing(tuple(observed))
    yield Heading("files")
    yield Listing(tuple(_list_files(found.files)))
    if settling := ", ".join(_list_settling(shown)):
        yield Paragraph(f"to be sure: {settling}")
    if lines := list_settings(found.files):
        yield Heading("for the next run")
        yield Code(lines)


def write_tables(shown: Shown) -> str:
    """Return these parts as text for a terminal."""
    return "\n".join(map(_write_part, list_parts(shown))).strip("\n")


def write_page(verdict: Verdict, now: float, shown: Shown) -> str:
    """Return the verdict with these parts as a page of HTML that needs nothing else."""
    title, *lines = clean_lines(render_text(verdict, now)).rstrip("\n").split("\n")
    parts = (Listing(tuple(line.strip() for line in lines)), *list_parts(shown))
    return write_html(Document(title=title, parts=parts))


def _write_part(part: Part) -> str:
    match part:
        case Heading(text):
            return f"\n{text}:"
        case Table(head, rows):
            return f"\n{table([head, *rows])}"
        case Listing(items) | Code(items):
            return "\n".join(f"  {clean(item)}" for item in items)
        case Drawing(_, text):
            return "\n".join(f"  {clean(line)}" for line in text.split("\n"))
        case Paragraph(text):
            return f"\n{clean(text)}"
        case _:
            return ""


# --- without names --------------------------------------------------------------------------------


def redact_case(case: Case) -> tuple[Case, Redactor]:
    """Return a case without names, and what replaces them."""
    nodes = [item.node for item in case.ranks] + [item.node for item in case.nodes]
    redactor = Redactor({"node": nodes, "job": [case.job]})
    return redact_value(redactor, case), redactor


def redact_found(case: Case, found: Found) -> tuple[Case, Found]:
    """Return a case, and the files that it was made of, without names."""
    case, redactor = redact_case(case)
    return case, replace(
        found,
        files=[_redact_file(redactor, file) for file in found.files],
        ranks={
            rank: replace(
                own,
                files=[_redact_file(redactor, file) for file in own.files],
                observed=[_redact_observed(redactor, each) for each in own.observed],
                stacks=[
                    replace(
                        each,
                        threads=replace(
                            each.threads, stacks=tuple(map(redactor.stack, each.threads.stacks))
                        ),
                    )
                    for each in own.stacks
                ],
            )
            for rank, own in found.ranks.items()
        },
    )


def _redact_observed(redactor: Redactor, found: ObservedFound) -> ObservedFound:
    redact = redactor.words.redact
    seen = replace(found.observation, text=redact(found.observation.text))
    return replace(found, place=Place(redact(found.place.file), found.place.line), observation=seen)


def _redact_file(redactor: Redactor, file: FileFound) -> FileFound:
    return replace(
        file,
        name=redactor.words.redact(file.name),
        last_line=redactor.words.redact(file.last_line),
        trouble=redactor.words.redact(file.trouble),
        findings=tuple(
            _redact_observed(redactor, each) if isinstance(each, ObservedFound) else each
            for each in file.findings
        ),
    )


# --- by rank --------------------------------------------------------------------------------------

HEAD = (
    "RANKS", "STEP", "GROUP", "WAITS IN", "CALLED", "STARTED", "COMPLETED",
    "LAST LINE OR PLACE", "FILES",
)  # fmt: skip


def _tabulate_ranks(found: Found, case: Case) -> Table:
    """Return a table: what each rank last did. Ranks that did the same share a row."""
    rows: dict[tuple[str, ...], list[int]] = {}
    for rank, row in _rows_by_rank(found, case):
        rows.setdefault(row, []).append(rank)
    shown = [
        (format_ranks(ranks), _steps_of(found, ranks), *row, _name_files(found, ranks))
        for row, ranks in list(rows.items())[:MAX_ROWS]
    ]
    if (more := len(rows) - MAX_ROWS) > 0:
        shown.append((f"and {more} more rows", *("",) * (len(HEAD) - 1)))
    return Table(HEAD, tuple(shown))


def _rows_by_rank(found: Found, case: Case) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield a row for each rank and group."""
    logs = {log.digest: log for log in case.group_logs}
    names = {group.id: group.name for group in case.groups}
    for item in case.ranks:
        own = found.ranks.get(item.rank) or RankFound(item.rank)
        listed = [each for dump in item.dumps[-1:] for each in logs_of(dump)]
        for digest in listed or [""]:
            log = logs.get(digest)
            group = ("-",) * 5 if log is None else (names[log.group], *_columns(log))
            yield item.rank, (*group, _end_of(own))


def list_ranks(shown: Shown) -> list[dict[str, object]]:
    """Return the table by rank for JSON, a row for each rank and group."""
    keys = [word.lower().replace(" ", "_") for word in HEAD[2:-1]]
    return [
        {
            "rank": rank,
            "step": own.step if (own := shown.found.ranks.get(rank)) and own.step >= 0 else None,
            **dict(zip(keys, row, strict=True)),
        }
        for rank, row in _rows_by_rank(shown.found, shown.case)
    ]


def _steps_of(found: Found, ranks: Sequence[int]) -> str:
    """Return "807", or "806-807" of ranks that wrote different ones last."""
    steps = [own.step for rank in ranks if (own := found.ranks.get(rank)) and own.step >= 0]
    if not steps:
        return "-"
    low, high = min(steps), max(steps)
    return str(low) if low == high else f"{low}-{high}"


def _name_files(found: Found, ranks: Sequence[int]) -> str:
    """Return the first file of these ranks, and how many others they have."""
    owns = [found.ranks[rank] for rank in ranks if rank in found.ranks]
    names = list(dict.fromkeys(file.name for own in owns for file in own.files))
    if not names:
        return "no file"
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _columns(log: GroupLog) -> tuple[str, str, str, str]:
    number = log.completed + 1
    operation = next((each.operation for each in log.records if each.number == number), "")
    waits = f"{operation} {number}".strip() if log.called >= number else "no call"
    started = str(log.entered) if log.entered >= 0 else "-"
    return waits, str(log.called), started, str(max(0, log.completed))


def _end_of(own: RankFound) -> str:
    """Return the last line of a rank that wrote no evidence of a call, or its place."""
    if own.has_waited:
        return ""
    if own.stacks:
        return _place_of(own.stacks[-1])
    return own.last_line[-MAX_LAST_LINE:] or "-"


def _place_of(found: StacksFound) -> str:
    """Return the innermost line of the user's code in the main thread."""
    frames = next((s.frames for s in found.threads.stacks), ())
    shown = next((frame for frame in frames if not frame.library), frames[0] if frames else None)
    return f"in {shown.function} ({shown.file}:{shown.line})" if shown else "-"


# --- waits ----------------------------------------------------------------------------------------


def _list_divergence(case: Case) -> Iterator[str]:
    """Yield for each group whose ranks are not at one place: the last call that all of them have
    made, and what each one did next."""
    logs = {log.digest: log for log in case.group_logs}
    by_group: dict[str, dict[int, GroupLog]] = {}
    for item in case.ranks:
        for digest in (each for dump in item.dumps[-1:] for each in logs_of(dump)):
            if log := logs.get(digest):
                by_group.setdefault(log.group, {})[item.rank] = log
    for group in case.groups:
        at = by_group.get(group.id, {})
        last = min((log.called for log in at.values()), default=0)
        rows = _part_after(at, last)
        if len(rows) < 2 and last:
            # All have made the last call: they part there if it is not the same one.
            last, rows = last - 1, _part_after(at, last - 1)
        if len(rows) > 1:
            both = f"all have made call {last}" if last > 0 else "no call is common to all"
            nexts = "; ".join(f"{name_ranks(ranks)} {what}" for what, ranks in rows.items())
            yield f"{clean(group.name)}: {both}. Then {nexts}"


def _part_after(logs: Mapping[int, GroupLog], number: int) -> dict[str, list[int]]:
    """Return the ranks by what they called after a call."""
    parted: dict[str, list[int]] = {}
    for rank, log in logs.items():
        record = next((each for each in log.records if each.number == number + 1), None)
        what = f"called {record.operation} {record.signature}".strip() if record else ""
        if log.called <= number:
            what = "made no further call"
        parted.setdefault(what or "went on", []).append(rank)
    return parted


def _list_waits(waits: WaitBoxes) -> Iterator[str]:
    """Yield the graph in words: the end of the waiting first."""
    for line in list_waits(waits):
        about = f" ({line.about})" if line.about else ""
        place = f" at {line.place}" if line.place else ""
        ends = "" if line.waits else ": waits for no other rank"
        named = f": {', '.join(line.waits)}" if line.waits else ends
        yield f"{capitalise(line.name)}{about}{place}{named}"


# --- files ----------------------------------------------------------------------------------------


def _write_coverage(found: Found) -> str:
    """Return "6 of 8 ranks are in these files; ranks 3,5 are not"."""
    absent = [rank for rank in range(found.world_size) if rank not in found.ranks]
    some = f"{found.world_size - len(absent)} of {found.world_size} ranks are in these files"
    verb = "is" if len(absent) == 1 else "are"
    claimed = f" (only one rank wrote that there are {found.world_size})"
    claim = claimed if found.proven_size < found.world_size else ""
    return f"{some}; {name_ranks(absent)} {verb} not{claim}" if absent else some


def _list_files(files: Sequence[FileFound]) -> Iterator[str]:
    """Yield what the files were taken for, and what of them was not understood."""
    forms = Counter(file.form or "not known" for file in files)
    words = ", ".join(f"{count} {form}" for form, count in forms.most_common())
    missed = sum(file.not_understood for file in files)
    yield f"{len(files)} files: {words}; {missed} lines that were not understood"
    if older := [file for file in files if file.earlier_runs]:
        yield f"{len(older)} of them have earlier runs of the job, which do not count"
    troubles = [f"{clean(file.name)}: {file.trouble}" for file in files if file.trouble]
    yield from troubles[:MAX_ROWS]
    if len(troubles) > MAX_ROWS:
        yield f"... and {len(troubles) - MAX_ROWS} more files were not read to their end"


def _list_observed(found: Found) -> Iterator[str]:
    """Yield what files show of nodes and services, each kind of a file once, and its ranks."""
    ranks: dict[Place, int] = {}
    for rank, own in found.ranks.items():
        ranks |= {each.place: rank for each in own.observed}
    kinds: dict[tuple[str, str, str], list[ObservedFound]] = {}
    for each in (finding for file in found.files for finding in file.findings):
        if isinstance(each, ObservedFound):
            seen = each.observation
            kinds.setdefault((each.place.file, seen.name, seen.subject), []).append(each)
    for (file, _, _), all_of_it in list(kinds.items())[:MAX_ROWS]:
        last = all_of_it[-1]
        whose = f", rank {ranks[last.place]}" if last.place in ranks else ""
        more = f" ({len(all_of_it)} such lines)" if len(all_of_it) > 1 else ""
        yield f"{clean(file)}:{last.place.line}{whose}: {last.observation.text}{more}"


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


# --- what would settle it -------------------------------------------------------------------------

SURE = 0.9
"""Confidence from which on a verdict needs no more evidence."""


def _list_settling(shown: Shown) -> Iterator[str]:
    """Yield what these files lack of the ranks that the verdict names, or may have named."""
    diagnosis, ranks = shown.diagnosis, shown.found.ranks
    named = {suspect.rank for suspect in diagnosis.suspects}
    named |= {rank for each in diagnosis.alternatives[:1] for rank in each.suspects if not named}
    if not named or (diagnosis.suspects and diagnosis.confidence >= SURE):
        return
    if unread := _without(named, (rank for rank, own in ranks.items() if own.has_output)):
        yield f"the output of {name_ranks(unread)}"
    if hidden := _without(named, (rank for rank, own in ranks.items() if own.stacks)):
        yield f"`py-spy dump --pid PID` of {name_ranks(hidden)}"
    if not any(own.records for own in ranks.values()):
        yield "a dump of each rank's flight recorder"


def _without(ranks: Iterable[int], known: Iterable[int]) -> list[int]:
    return sorted({*ranks} - {*known})


SETTLES = (
    (RecordsFound, "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000"),
    (RecordsFound, "export TORCH_NCCL_DUMP_ON_TIMEOUT=1"),
    (SetUpFound, "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET"),
)
"""What files may lack, and the lines that give it in the next run."""


def list_settings(files: Sequence[FileFound]) -> tuple[str, ...]:
    """Return lines for the environment of the next run, only those that this job lacked."""
    kinds = {type(finding) for file in files for finding in file.findings}
    return tuple(line for kind, line in SETTLES if kind not in kinds)
