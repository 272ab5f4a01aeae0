"""The file system on which an open file is, read from the kernel's list of mounts.

Nothing here touches the file system itself, which may hang. Standard library only.
"""

from __future__ import annotations

import re

from agent.procfs import Proc, printable
from watchtower.wire.bounds import MAX_MOUNTS, MAX_NAME
from watchtower.wire.dumps import Mount

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
"""Their files are questions to the kernel: to read one may take what it holds from its reader."""

NO_STORAGE = PSEUDO_FILE_SYSTEMS | {"overlay", "ramfs", "squashfs", "tmpfs"}
"""No file of these waits for storage of their own."""

_ESCAPED = re.compile(r"\\([0-7]{3})")
_CREDENTIALS = re.compile(r"(?<=://)[^/]*@|\?.*", re.DOTALL)
"""Parts of a URL that may have a password in them."""


MAX_LINES = 1024
"""Mounts of one namespace that are parsed. A user can make 100,000 in a namespace of their own."""

MAX_LINE_BYTES = 8192
"""Used of one line: paths have up to 4096, and what is longer are the options at its end."""


class MountTables:
    """The mounts that processes see, read once for each mount namespace."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._tables: dict[str, bytes] = {}
        self._storage: dict[str, tuple[Mount, ...]] = {}

    def find(self, pid: int, descriptor: int) -> tuple[Mount, ...]:
        """Return the mount of a descriptor of a process. For -1, return each file system with
        storage that the process sees; none if there are more than a message has room for."""
        namespace = self._proc.link(pid, "ns/mnt") or str(pid)
        if namespace not in self._tables:
            self._tables[namespace] = self._proc.try_read(pid, "mountinfo")
        table = self._tables[namespace]
        if descriptor >= 0:
            number = mount_of(self._proc.try_read(pid, f"fdinfo/{descriptor}", 4096))
            found = parse_mount(_find_line(table, number.encode()))
            return (found,) if found else ()
        if namespace not in self._storage:
            self._storage[namespace] = find_storage(table)
        return self._storage[namespace]


def find_storage(mountinfo: bytes) -> tuple[Mount, ...]:
    """Return one mount of each file system with storage; none if there are too many to name all."""
    lines = mountinfo.split(b"\n", MAX_LINES)
    if len(lines) > MAX_LINES and lines[-1]:
        return ()
    mounts = [mount for line in lines if (mount := parse_mount(line))]
    distinct = {(each.kind, each.source): each for each in reversed(mounts)}
    storage = tuple(each for each in distinct.values() if each.kind not in NO_STORAGE)
    return storage[::-1] if len(storage) <= MAX_MOUNTS else ()


def parse_mount(line: bytes) -> Mount | None:
    """Return the mount in a line of a /proc/PID/mountinfo; null if there is none in it.

    A line is "36 35 98:0 / /mnt rw master:1 - ext4 /dev/sda rw".
    """
    fields = line.split(b" ")
    if b"-" not in fields[:-2]:
        return None
    kind, source = fields[fields.index(b"-") + 1 :][:2]
    source_text = _read_name(source)
    if "://" in source_text:
        source_text = _CREDENTIALS.sub("", source_text)
    return Mount(kind=_read_name(kind), source=source_text, point=_read_name(fields[4]))


def _find_line(mountinfo: bytes, number: bytes) -> bytes:
    """Return the line of a mount, empty if it is not there."""
    table = b"\n" + mountinfo
    at = table.find(b"\n" + number + b" ") + 1 if number else 0
    return table[at : at + MAX_LINE_BYTES].partition(b"\n")[0] if at else b""


def _read_name(field: bytes) -> str:
    """Return a field as text. The kernel escapes white space and backslashes in octal."""
    text = _ESCAPED.sub(lambda found: chr(int(found[1], 8) & 0xFF), field.decode("latin-1"))
    return printable(text.encode("latin-1").decode("utf-8", "replace"), MAX_NAME)


def mount_of(fdinfo: bytes) -> str:
    """Return the id of the mount in a /proc/PID/fdinfo/N, empty when it is not there."""
    for line in fdinfo.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"mnt_id":
            return value.strip().decode("ascii", "replace")
    return ""


def type_of(mounts: bytes, mount: str) -> str:
    """Return the type of a mount by the /proc/PID/mountinfo of a process that sees it, else "".

    A line is "36 35 98:0 / /mnt rw master:1 - ext4 /dev/sda rw".
    """
    for line in mounts.split(b"\n"):
        fields = line.split()
        if fields and fields[0] == mount.encode() and b"-" in fields[:-1]:
            return fields[fields.index(b"-") + 1].decode("ascii", "replace")
    return ""
