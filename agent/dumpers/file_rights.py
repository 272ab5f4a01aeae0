"""Checks whether a process may read a file, by the mode of the file.

The agent is root or has CAP_DAC_READ_SEARCH, so the kernel lets it read every file. For a process,
it must read only files that the process itself may read. To become the user of the process, the
agent would need a further capability. Therefore the mode is checked here. Access control lists
count only through their mask, which is in the mode. Standard library only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

READ, SEARCH = 4, 1
"""Bits of a mode, as for "other". `SEARCH` is the right to open a name in a folder."""

_OVERRIDE = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH. Root has the first one in most containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRights:
    """The rights of one process."""

    user: int
    """The real user id, so that a set-user-ID program gets no additional rights here."""
    groups: frozenset[int]
    is_root: bool = False
    """True for root with a capability that overrides modes, as seen from the agent's user
    namespace.
    """

    def has(self, status: os.stat_result, wanted: int) -> bool:
        """Return whether the process has this right on a file or folder."""
        if self.is_root:
            return True
        if status.st_uid == self.user:
            return bool(status.st_mode >> 6 & wanted)
        if status.st_gid in self.groups:
            return bool(status.st_mode >> 3 & wanted)
        return bool(status.st_mode & wanted)


def parse_rights(status: bytes) -> FileRights:
    """Parse /proc/PID/status. Raises ValueError if a user or a group is missing."""
    fields: dict[bytes, bytes] = {}
    for line in status.split(b"\n"):
        name, _, value = line.partition(b":")
        fields.setdefault(name, value)
    user = _first(fields, b"Uid")
    groups = [_first(fields, b"Gid"), *map(int, fields.get(b"Groups", b"").split())]
    capabilities = int(fields.get(b"CapEff", b"0").strip() or b"0", 16)
    return FileRights(
        user=user,
        groups=frozenset(groups),
        is_root=user == 0 and bool(capabilities & _OVERRIDE),
    )


def _first(fields: dict[bytes, bytes], name: bytes) -> int:
    values = fields.get(name, b"").split()
    if not values:
        raise ValueError(f"the status of a process has no {name.decode()}")
    return int(values[0])
