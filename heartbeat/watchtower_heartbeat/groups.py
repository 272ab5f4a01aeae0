"""The process groups of this process: noted as they are made, listed in a memfd for an agent.

torch keeps the global ranks of every group in one plain dict, and whatever makes a group
(init_process_group, new_group, split_group, device meshes) puts it there. In its place we put a
dict that also tells us. That is private to torch: where it is gone, there is no list.
"""

from __future__ import annotations

import os
import struct
from _thread import RLock

from watchtower_heartbeat import layout
from watchtower_heartbeat.memfd import create_memfd
from watchtower_heartbeat.notice import say_once
from watchtower_heartbeat.writer import LOCK_PATIENCE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

RANKS = "_pg_group_ranks"
"""Name of torch's dict: group to {global rank: rank in the group}."""

MAX_NAME = 512
"""Characters of a group's name or description; torch's own have at most a hundred."""

_WORD = struct.Struct("=q")


class GroupList:
    """The memfd: one line per group, in the order in which they were made."""

    def __init__(self) -> None:
        """Make it, with no group in it. Raises OSError."""
        self.descriptor = create_memfd(layout.GROUPS_MEMFD_NAME)
        if self.descriptor < 3:
            # The next thing this program prints would land in the list.
            os.close(self.descriptor)
            raise OSError("a standard stream is closed")
        self._file = _identify(self.descriptor)
        self._lock = RLock()
        self._length = 0
        self._whole = True
        head = layout.GROUPS_MAGIC + _WORD.pack(layout.GROUPS_VERSION)
        os.pwrite(self.descriptor, head.ljust(layout.GROUPS_TEXT_AT, b"\0"), 0)

    def add(self, name: str, description: str, members: Iterable[int]) -> None:
        """Append a line. When one does not fit, none follows: their order has a meaning."""
        line = f"{_clean(name)}\t{_clean(description)}\t{format_members(members)}\n"
        raw = line.encode("utf-8", "replace")
        if not self._lock.acquire(True, LOCK_PATIENCE_S):
            self._whole = False
            return
        try:
            end = layout.GROUPS_TEXT_AT + self._length
            if not self._whole or end + len(raw) > layout.GROUPS_MAX_SIZE or not self._is_open():
                self._whole = False
                return
            self._whole = False
            if os.pwrite(self.descriptor, raw, end) != len(raw):
                return
            self._length += len(raw)
            # After the text: who reads the length finds all of it.
            os.pwrite(self.descriptor, _WORD.pack(self._length), layout.GROUPS_LENGTH_AT)
            self._whole = True
        finally:
            self._lock.release()

    def close(self) -> None:
        """Let go of the memory; raises OSError when somebody has closed it already."""
        if self._is_open():
            os.close(self.descriptor)

    def _is_open(self) -> bool:
        """Say whether the number is still ours: a program may close all it finds, and open more."""
        return _identify(self.descriptor) == self._file


def _identify(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _clean(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text[:MAX_NAME])


def format_members(members: Iterable[int]) -> str:
    """Write global ranks in ascending order: "0-3,8", and even strides as "0-56/8"."""
    ranks = sorted(set(members))
    spans: list[str] = []
    at = 0
    while at < len(ranks):
        length = _length_of_stride(ranks, at)
        first, last = ranks[at], ranks[at + length - 1]
        if length == 1:
            spans.append(f"{first}")
        else:
            stride = ranks[at + 1] - first
            spans.append(f"{first}-{last}" + (f"/{stride}" if stride > 1 else ""))
        at += length
    return ",".join(spans)


def _length_of_stride(ranks: list[int], at: int) -> int:
    """Return how many ranks, from there on, are equally far apart; two far ones are not."""
    if at + 1 == len(ranks):
        return 1
    stride, end = ranks[at + 1] - ranks[at], at + 2
    while end < len(ranks) and ranks[end] - ranks[end - 1] == stride:
        end += 1
    return 1 if end == at + 2 and stride > 1 else end - at


_note: Callable[[str, str, list[int]], None] | None = None


class NotedGroups(dict):  # type: ignore[type-arg]  # as plain as torch's own
    """Torch's dict of groups, which tells of each new one after it is in."""

    def __setitem__(self, group: object, ranks: object) -> None:
        """Put it in, then tell; what goes wrong with the telling stays here."""
        is_new = group not in self
        super().__setitem__(group, ranks)
        if is_new:
            _tell(group, ranks)


def _tell(group: object, ranks: object) -> None:
    try:
        name = getattr(group, "group_name", None)
        # A rank outside of a new group finds a marker there instead of the group.
        if _note is None or not isinstance(name, str) or not isinstance(ranks, dict):
            return
        description = getattr(group, "group_desc", "")
        _note(name, str(description), [int(rank) for rank in ranks])
    except Exception as error:
        say_once("groups", f"a process group could not be noted: {error}")


def watch(module: ModuleType, note: Callable[[str, str, list[int]], None]) -> bool:
    """Call `note` with name, description and members of each group, those there are first.

    False when this torch keeps its groups elsewhere.
    """
    global _note
    _note = note
    known = getattr(module, RANKS, None)
    if type(known) is dict:
        known = NotedGroups(known)
        setattr(module, RANKS, known)
    if not isinstance(known, NotedGroups):
        return False
    for group, ranks in list(known.items()):
        _tell(group, ranks)
    return True
