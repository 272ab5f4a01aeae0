"""The placeholders of one export: of nodes, jobs, owners, stacks and logs.

Everything is replaced by a number in the order of the originals, with leading zeros, so that
sorted things stay in their order: a diagnosis may choose the first of several equal ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace

from watchtower.incidents.redaction.words import PACKAGES, Words
from watchtower.wire.collectives import GroupLog, ProcessGroup, change_group_log, name_group
from watchtower.wire.stacks import Frame, Stack, make_stack

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
            frame,
            function=self.words.redact(frame.function),
            file=self.words.redact(frame.file),
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
