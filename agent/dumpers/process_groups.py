"""Reads which process groups a training process made, from the memfd that its client writes.

The file only grows, and its head contains the length of the valid text. Another process wrote it,
so its content is not trusted.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator

from watchtower_heartbeat.layout import (
    GROUPS_MAGIC,
    GROUPS_MAX_SIZE,
    GROUPS_MEMFD_NAME,
    GROUPS_TEXT_AT,
    GROUPS_VERSION,
)

from agent.procfs import Proc
from agent.ranks.pages import leads_to_memfd
from watchtower.readers.collective_calls import Membership, number_groups
from watchtower.readers.torch_records import NO_DESCRIPTIONS
from watchtower.wire.bounds import (
    MAX_MEMBERS_TEXT,
    MAX_NAME,
    MAX_RANK,
    MAX_WORLD_SIZE,
)
from watchtower.wire.collectives import format_members, parse_members
from watchtower.writing.printable import printable

LINK = f"/memfd:{GROUPS_MEMFD_NAME} (deleted)"
"""The link of its descriptor under /proc/PID/fd."""

MAX_LISTED_RANKS = 1 << 20
"""Members of all groups of a process together, equal groups counted once. Reading so many needs
half a second; the list is cut there. A rank of the largest job has one or two groups with so many
members.
"""

_NUMBERS = struct.Struct("=2q")
"""Layout version and bytes of text, in the machine's own byte order."""

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class BadGroups(Exception):
    """The list of groups cannot be read by this version; the message contains the reason."""


def read_groups(proc: Proc, pid: int, descriptor: int) -> tuple[Membership, ...]:
    """Return the groups of a process. Raises BadGroups."""
    name = f"fd/{descriptor}"
    if descriptor <= 0 or not leads_to_memfd(proc, pid, str(descriptor), LINK):
        raise BadGroups(f"descriptor {descriptor} is not the list of its groups")
    try:
        own = os.open(proc.file(pid, name), _READ)
    except OSError as error:
        raise BadGroups(f"the list of its groups cannot be opened: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(own).st_mode):
            raise BadGroups(f"descriptor {descriptor} is not the list of its groups")
        return parse_groups(os.pread(own, GROUPS_MAX_SIZE, 0))
    except OSError as error:
        raise BadGroups(f"the list of its groups cannot be read: {error.strerror}") from error
    finally:
        os.close(own)


def parse_groups(raw: bytes) -> tuple[Membership, ...]:
    """Parse the whole file. One bad line makes it invalid, because later groups may have another
    order.
    """
    if raw[: len(GROUPS_MAGIC)] != GROUPS_MAGIC:
        raise BadGroups("the list of its groups does not begin with the magic bytes")
    if len(raw) < GROUPS_TEXT_AT:
        raise BadGroups("the list of its groups is cut short")
    version, length = _NUMBERS.unpack_from(raw, len(GROUPS_MAGIC))
    if version != GROUPS_VERSION:
        raise BadGroups(f"the list of its groups has layout version {version}")
    text = raw[GROUPS_TEXT_AT : GROUPS_TEXT_AT + max(0, length)].decode("utf-8", "replace")
    return number_groups(_parse_lines(text.split("\n")[:-1]))


def _parse_lines(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    checked: set[str] = set()
    ranks = 0
    for line in lines:
        try:
            name, description, members = line.split("\t")
        except ValueError as error:
            raise BadGroups(
                "a line in the list of its groups does not have three fields"
            ) from error
        if members not in checked:
            ranks += _check_members(members)
            checked.add(members)
        if ranks > MAX_LISTED_RANKS:
            return
        title = name if description in NO_DESCRIPTIONS else description
        yield name, printable(title, MAX_NAME), members


def _check_members(members: str) -> int:
    """Return the number of members. Raises BadGroups if the text is not in the client's format."""
    try:
        if len(members) > MAX_MEMBERS_TEXT:
            raise ValueError("too many members")
        ranks = parse_members(members, MAX_WORLD_SIZE)
    except ValueError as error:
        raise BadGroups(f"a line in the list of its groups is not understood: {error}") from error
    if not ranks or ranks[-1] > MAX_RANK or format_members(ranks) != members:
        raise BadGroups("a line in the list of its groups has invalid members")
    return len(ranks)
