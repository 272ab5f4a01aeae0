"""The process groups of this process, written to a memfd for an agent as they are made.

torch stores the global ranks of every group in one plain dict. Everything that makes a group
(init_process_group, new_group, split_group, device meshes) adds it there. We replace the dict by
one that also calls us. The dict is private to torch: if it is missing, there is no list.
"""

from __future__ import annotations

import os
import struct
from _thread import RLock

from watchtower_heartbeat import layout
from watchtower_heartbeat.notice import warn_once
from watchtower_heartbeat.writer import LOCK_PATIENCE_S, create_memfd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

RANKS = "_pg_group_ranks"
"""Name of torch's dict: group to {global rank: rank in the group}."""

MAX_NAME = 512
"""Characters of a group's name or description. Torch's own have at most a hundred."""

_WORD = struct.Struct("=q")


class GroupList:
    """The memfd: one line per group, in the order in which they were made."""

    def __init__(self) -> None:
        """Make an empty list. Raises OSError."""
        self.descriptor = create_memfd(layout.GROUPS_MEMFD_NAME)
        if self.descriptor < 3:
            # Descriptors 0 to 2 are standard streams: the program would print into the list.
            os.close(self.descriptor)
            raise OSError("a standard stream is closed")
        self._file = _identify(self.descriptor)
        self._lock = RLock()
        self._length = 0
        self._whole = True
        head = layout.GROUPS_MAGIC + _WORD.pack(layout.GROUPS_VERSION)
        os.pwrite(self.descriptor, head.ljust(layout.GROUPS_TEXT_AT, b"\0"), 0)

    def add(self, name: str, description: str, members: Iterable[int]) -> None:
        """Append a line. If one does not fit, none follows, because their order has a meaning."""
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
            # After the text, so that a reader of the length finds all of it.
            os.pwrite(self.descriptor, _WORD.pack(self._length), layout.GROUPS_LENGTH_AT)
            self._whole = True
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the memfd. Raises OSError if the program has closed it already."""
        if self._is_open():
            os.close(self.descriptor)

    def _is_open(self) -> bool:
        """Return whether the descriptor is still ours. A program may close all descriptors and open
        others.
        """
        return _identify(self.descriptor) == self._file


def _identify(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _clean(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text[:MAX_NAME])


def format_members(members: Iterable[int]) -> str:
    """Return global ranks in ascending order: "0-3,8", and even strides as "0-56/8"."""
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
    """Return how many ranks from `at` on have equal distances. Two ranks with a gap do not
    count.
    """
    if at + 1 == len(ranks):
        return 1
    stride, end = ranks[at + 1] - ranks[at], at + 2
    while end < len(ranks) and ranks[end] - ranks[end - 1] == stride:
        end += 1
    return 1 if end == at + 2 and stride > 1 else end - at


_note: Callable[[str, str, list[int], int], None] | None = None


class NotedGroups(dict):  # type: ignore[type-arg]  # as plain as torch's own
    """Torch's dict of groups, which reports each new one after it was added."""

    def __setitem__(self, group: object, ranks: object) -> None:
        """Add the group, then report it. Exceptions of the report are caught."""
        is_new = group not in self
        super().__setitem__(group, ranks)
        if is_new:
            _report(group, ranks)


def _report(group: object, ranks: object) -> None:
    try:
        name = getattr(group, "group_name", None)
        # For a rank outside of a new group, the key is a marker instead of the group.
        if _note is None or not isinstance(name, str) or not isinstance(ranks, dict):
            return
        description = getattr(group, "group_desc", "")
        own_rank = getattr(group, "rank", int)
        _note(name, str(description), [int(rank) for rank in ranks], int(own_rank()))
    except Exception as error:
        warn_once("groups", f"a process group could not be recorded: {error}")


def watch(module: ModuleType, note: Callable[[str, str, list[int], int], None]) -> bool:
    """Call `note` with name, description, members and this process's rank of each group, existing
    ones first.

    Returns False if this torch stores its groups elsewhere.
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
        _report(group, ranks)
    return True
