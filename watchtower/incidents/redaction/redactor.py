"""The placeholders of one export: of nodes, jobs, owners, stacks and logs; and where they stand.

Everything is replaced by a number in the order of the originals, with leading zeros, so that
sorted things stay in their order: a diagnosis may choose the first of several equal ones.

Every text loses its words that are not public, so that none is forgotten. `RULES` has those fields
that need something else: the name of a node or job, a sentence that is removed, a reference. So a
new form of evidence needs no rule. Numbers, times, states and causes stay.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar, cast

from watchtower.evidence.case import Case, NodeEvidence, PlaceHolder, RankEvidence
from watchtower.incidents.redaction.words import PACKAGES, Words
from watchtower.wire.collectives import (
    GroupLog,
    ProcessGroup,
    RankCollectives,
    change_group_log,
    name_group,
)
from watchtower.wire.dumps import (
    DumpBatch,
    DumpFailure,
    ThreadDump,
)
from watchtower.wire.observations import Observation
from watchtower.wire.report import AgentGaps
from watchtower.wire.stacks import Frame, Stack, make_stack
from watchtower.wire.verdict import (
    Aftermath,
    Doubt,
    Evidence,
    Suspect,
    Verdict,
    VerdictEntry,
)

REMOVED = "(removed)"
"""Instead of a text of a verdict or a person. `watchtower replay` writes the verdict anew."""

WIDTH = 5
"""Digits of a placeholder: more nodes than a job has."""


def is_public_file(file: str) -> bool:
    """Return whether a library file belongs to the standard library or to a known package."""
    if file.startswith("<frozen "):
        return True
    first = file.lstrip("/").partition("/")[0]
    return first in PACKAGES or first.removesuffix(".py") in sys.stdlib_module_names


class Redactor:
    """Replaces the names of one export."""

    def __init__(self, names: Mapping[str, Iterable[str]]) -> None:
        """`names` are the names in the export, by kind: "node", "job", "user", ..."""
        self.words = Words()
        self._names: dict[str, dict[str, str]] = {}
        for kind, values in names.items():
            found = sorted(set(values) - {""})
            self._names[kind] = {
                name: f"{kind}-{number:0{WIDTH}}" for number, name in enumerate(found, 1)
            }
        self._stacks: dict[str, Stack] = {}
        self._groups: dict[str, str] = {}
        self._logs: dict[str, GroupLog] = {}

    def name(self, kind: str, value: str) -> str:
        """Return the placeholder of a name; empty for an empty one."""
        return self._names[kind].get(value, REMOVED) if value else ""

    def text(self, value: str) -> str:
        """Return a text with the known names and all words replaced that are not public."""
        for names in self._names.values():
            if value in names:
                return names[value]
        return self.words.redact(value)

    def removed(self, value: str) -> str:
        """Return a note instead of a text."""
        return REMOVED if value else ""

    def frame(self, frame: Frame) -> Frame:
        """Return a frame. Those of the standard library and of known packages stay."""
        if frame.library and is_public_file(frame.file):
            return frame
        return replace(
            frame, function=self.words.redact(frame.function), file=self.words.redact(frame.file)
        )

    def stack(self, stack: Stack) -> Stack:
        """Return a stack with the digest of its new frames."""
        known = self._stacks.get(stack.digest)
        if known is None:
            known = make_stack(tuple(map(self.frame, stack.frames)))
            self._stacks[stack.digest] = known
        return known

    def digest(self, value: str) -> str:
        """Return the digest of a stack that was redacted before; unknown digests are replaced."""
        known = self._stacks.get(value)
        return known.digest if known else self.words.redact(value)

    def group(self, group: ProcessGroup) -> ProcessGroup:
        """Return a process group. Its id is a hash of its ranks and stays, if it is one."""
        library, members = self.words.redact(group.library), self.ranks(group.members)
        is_hash = group.id == name_group(group.members, group.order, group.library)
        ident = name_group(members, group.order, library) if is_hash else None
        self._groups[group.id] = ident or f"group-{len(self._groups) + 1:0{WIDTH}}"
        return replace(
            group,
            id=self._groups[group.id],
            members=members,
            name=self.words.redact(group.name),
            library=library,
        )

    def group_id(self, value: str) -> str:
        """Return the id of a group that was redacted before."""
        return self._groups.get(value) or self.words.redact(value)

    def log(self, log: GroupLog) -> GroupLog:
        """Return a log with the digest of its new fields."""
        known = self._logs.get(log.digest)
        if known is None:
            known = change_group_log(
                log,
                group=self.group_id(log.group),
                records=tuple(
                    replace(
                        each,
                        operation=self.words.redact(each.operation),
                        signature=self.words.redact(each.signature),
                    )
                    for each in log.records
                ),
            )
            self._logs[log.digest] = known
        return known

    def log_digest(self, value: str) -> str:
        """Return the digest of a log that was redacted before."""
        known = self._logs.get(value)
        return known.digest if known else self.words.redact(value)

    def ranks(self, value: str) -> str:
        """Return a set of ranks; other texts are redacted."""
        is_set = all(character in "0123456789-,/" for character in value)
        return value if is_set else self.words.redact(value)


_T = TypeVar("_T")
Rule = Callable[[Redactor, Any], Any]

MAX_CODE = 6
"""Digits of a number that is too long for the code of an error."""

_SUBJECT = re.compile(r"node|(gpu|pid):\d{1,10}|pci:[0-9a-f]{4,8}(:[0-9a-f]{2}){2}(\.\d)?")
_REASON = "deadline"
_STAMP = re.compile(r"[\d:.TZ+-]{0,40}")
_IDENT = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


def _keep(_: Redactor, value: Any) -> Any:
    return value


def _named(kind: str) -> Rule:
    return lambda redactor, value: redactor.name(kind, value)


def _removed(redactor: Redactor, value: str) -> str:
    return redactor.removed(value)


def _only(pattern: re.Pattern[str]) -> Rule:
    """Return a rule that keeps texts of a form, and redacts others."""
    return lambda redactor, value: (
        value if value is None or pattern.fullmatch(value) else redactor.text(value)
    )


def _all_removed(redactor: Redactor, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(redactor.removed, value))


def _observed(redactor: Redactor, value: str) -> str:
    """Return the name of an observation. The number of an error, as in "xid.154", stays."""
    family, dot, detail = value.partition(".")
    is_number = detail.isdecimal() and len(detail) < MAX_CODE
    return f"{redactor.text(family)}{dot}{detail if is_number else redactor.text(detail)}"


def _rivals(redactor: Redactor, value: tuple[str, ...]) -> tuple[str, ...]:
    pairs = (each.rpartition(" ") for each in value)
    return tuple(f"{redactor.text(node)} {redactor.text(pid)}" for node, _, pid in pairs)


def _logs(redactor: Redactor, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(redactor.log_digest, value))


def _unknown(*_: object) -> None:
    return None


def _ranks(redactor: Redactor, value: str) -> str:
    return redactor.ranks(value)


RULES: dict[tuple[type, str], Rule] = {
    (Case, "job"): _named("job"),
    (RankEvidence, "node"): _named("node"),
    (RankEvidence, "rivals"): _rivals,
    (NodeEvidence, "node"): _named("node"),
    (PlaceHolder, "job"): _named("job"),
    (PlaceHolder, "nodes"): lambda redactor, value: tuple(redactor.name("node", n) for n in value),
    (NodeEvidence, "unwatched"): _all_removed,
    **{(AgentGaps, each.name): _removed for each in fields(AgentGaps)},
    (Observation, "subject"): _only(_SUBJECT),
    (Observation, "name"): _observed,
    (DumpFailure, "help_text"): _removed,
    (ThreadDump, "digest"): lambda redactor, value: redactor.digest(value),
    (RankCollectives, "logs"): _logs,
    (RankCollectives, "oldest_open"): lambda redactor, value: value and redactor.log_digest(value),
    (RankCollectives, "failure"): _removed,
    (DumpBatch, "id"): _named("batch"),
    (DumpBatch, "node"): _named("node"),
    (DumpBatch, "job"): _named("job"),
    (DumpBatch, "owner"): _named("owner"),
    (DumpBatch, "launch"): _named("launch"),
    (DumpBatch, "reason"): lambda _, value: value if value == _REASON else "order",
    (Verdict, "job"): _named("job"),
    (Verdict, "incident"): _only(_IDENT),
    (Verdict, "summary"): _removed,
    (Verdict, "waiting"): _ranks,
    (Verdict, "missing_evidence"): _all_removed,
    (Verdict, "next_steps"): _all_removed,
    (Verdict, "lasting_steps"): _all_removed,
    (Verdict, "opened_at"): _only(_STAMP),
    (Verdict, "diagnosed_at"): _only(_STAMP),
    (Verdict, "progress_text"): _removed,
    (Verdict, "hung_because"): _removed,
    (Suspect, "node"): _named("node"),
    (Suspect, "why"): _removed,
    (Suspect, "where"): _unknown,
    (Evidence, "text"): _removed,
    (Evidence, "ranks"): _ranks,
    (Doubt, "text"): _removed,
    (Aftermath, "at"): _only(_STAMP),
    (Aftermath, "ranks"): _ranks,
    (VerdictEntry, "at"): _only(_STAMP),
    (VerdictEntry, "suspects"): _ranks,
    (VerdictEntry, "summary"): _removed,
}
"""The rules of texts that are not redacted word by word, by class and field. `WHOLE` has classes
that are replaced as a whole."""

WHOLE: dict[type, Rule] = {
    Stack: lambda redactor, value: redactor.stack(value),
    ProcessGroup: lambda redactor, value: redactor.group(value),
    GroupLog: lambda redactor, value: redactor.log(value),
}

FIRST = ("stacks", "groups", "group_logs")
"""Fields that others refer to. They are redacted before the others, in this order."""


@cache
def _names_of(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass, in the order in which they are redacted."""
    return tuple(sorted((each.name for each in fields(kind)), key=lambda name: name not in FIRST))


def redact_value(redactor: Redactor, value: _T, rules: dict[tuple[type, str], Rule] = RULES) -> _T:
    """Return a value without its names."""
    kind: Any = type(value)
    if kind in WHOLE:
        return cast(_T, WHOLE[kind](redactor, value))
    if kind is str:
        return cast(_T, redactor.text(cast(str, value)))
    if kind is tuple or kind is list:
        return cast(_T, kind(redact_value(redactor, each, rules) for each in cast(Any, value)))
    if kind is dict:
        pairs = cast(dict[Any, Any], value).items()
        return cast(
            _T,
            {redact_value(redactor, k, rules): redact_value(redactor, v, rules) for k, v in pairs},
        )
    if not hasattr(kind, "__dataclass_fields__"):
        return value
    changed = {}
    for name in _names_of(kind):
        old = getattr(value, name)
        rule = rules.get((kind, name))
        changed[name] = rule(redactor, old) if rule else redact_value(redactor, old, rules)
    # `dataclasses.replace` takes twice as long, and a job has thousands of ranks.
    return cast(_T, kind(**changed))
