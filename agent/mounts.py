"""Finds the file system of an open file in the kernel's list of mounts.

Nothing here accesses the file system itself, which may hang. Standard library only.
"""

from __future__ import annotations

import re

from agent.procfs import Proc
from watchtower.wire.bounds import MAX_MOUNTS, MAX_NAME
from watchtower.wire.dumps import Mount
from watchtower.writing.printable import printable

PSEUDO_FILE_SYSTEMS = frozenset(
    {
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "resctrl",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "smackfs",
        "sysfs",
        "tracefs",
    }
)
"""File systems of the kernel. Reading some of their files removes data that another reader
needs.
"""

NO_STORAGE = PSEUDO_FILE_SYSTEMS | {"overlay", "ramfs", "squashfs", "tmpfs"}
"""File systems whose files never wait for storage of their own."""

_ESCAPED = re.compile(r"\\([0-7]{3})")
_CREDENTIALS = re.compile(r"(?<=://)[^/]*@|\?.*", re.DOTALL)
"""Parts of a URL that may contain a password."""

SEPARATOR = b" - "
"""Separates mount and file system in a line. White space in names is escaped."""

MAX_LINES = 1024
"""Mounts of one namespace that are parsed. A user can make 100,000 in a namespace of their own."""

MAX_LINE_BYTES = 8192
"""Bytes used of one line. Paths have up to 4096; the rest are options at the end of the line."""

MAX_TABLES = 8
"""Namespaces whose table is cached, with up to 1 MB each. A rank and its children follow one
another.
"""


class MountTables:
    """The mounts that processes see. The tables of the last mount namespaces are cached."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._tables: dict[str, bytes] = {}

    def find(self, pid: int, descriptor: int) -> tuple[Mount, ...]:
        """Return the mount of a process's descriptor.

        For -1, return every file system with storage that the process sees, or an empty tuple if
        there are more than fit into a message.
        """
        table = self._table(pid)
        if descriptor < 0:
            return find_storage(table)
        number = mount_of(self._proc.try_read(pid, f"fdinfo/{descriptor}", 4096))
        found = parse_mount(_find_line(table, number.encode()))
        return (found,) if found else ()

    def _table(self, pid: int) -> bytes:
        namespace = self._proc.link(pid, "ns/mnt") or str(pid)
        if namespace not in self._tables:
            if len(self._tables) >= MAX_TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[namespace] = self._proc.try_read(pid, "mountinfo")
        return self._tables[namespace]


def find_storage(mountinfo: bytes) -> tuple[Mount, ...]:
    """Return one mount of each file system with storage.

    Return an empty tuple if there are too many, or if the end of the table is missing.
    """
    lines = mountinfo.split(b"\n", MAX_LINES)
    if lines[-1]:  # more lines than are parsed, or the end of the table is missing
        return ()
    found: dict[tuple[bytes, ...], bytes] = {}
    for line in lines:
        kind, source, *_ = (*line.partition(SEPARATOR)[2].split(b" ", 2), b"", b"")
        if kind and kind.decode("latin-1") not in NO_STORAGE:
            found.setdefault((kind, source), line)
        if len(found) > MAX_MOUNTS:
            return ()
    return tuple(mount for line in found.values() if (mount := parse_mount(line)))


def parse_mount(line: bytes) -> Mount | None:
    """Return the mount in a line of /proc/PID/mountinfo; None if the line is invalid.

    A line is "36 35 98:0 / /mnt rw master:1 - ext4 /dev/sda rw".
    """
    place, _, system = line.partition(SEPARATOR)
    of_place, of_system = place.split(b" "), system.split(b" ", 2)
    if len(of_place) < 6 or len(of_system) < 2:
        return None
    source = _read_name(of_system[1])
    if "://" in source:
        source = _CREDENTIALS.sub("", source)
    return Mount(kind=_read_name(of_system[0]), source=source, point=_read_name(of_place[4]))


def _find_line(mountinfo: bytes, number: bytes) -> bytes:
    """Return the line of a mount, or b"" if the table does not have this mount."""
    table = b"\n" + mountinfo
    at = table.find(b"\n" + number + b" ") + 1 if number else 0
    return table[at : at + MAX_LINE_BYTES].partition(b"\n")[0] if at else b""


def _read_name(field: bytes) -> str:
    """Return a field as text. The kernel escapes white space and backslashes in octal."""
    text = _ESCAPED.sub(lambda found: chr(int(found[1], 8) & 0xFF), field.decode("latin-1"))
    return printable(text.encode("latin-1").decode("utf-8", "replace"), MAX_NAME)


def mount_of(fdinfo: bytes) -> str:
    """Return the mount id in a /proc/PID/fdinfo/N, or "" if the file does not contain one."""
    for line in fdinfo.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"mnt_id":
            return value.strip().decode("ascii", "replace")
    return ""


def type_of(mounts: bytes, mount: str) -> str:
    """Return the type of a mount from the mountinfo of a process that sees it; "" if unknown."""
    found = parse_mount(_find_line(mounts, mount.encode()))
    return found.kind if found else ""
