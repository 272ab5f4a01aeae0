"""The type of the file system on which an open file is, told by the kernel's list of mounts.

Nothing here touches the file system itself, which may hang. Standard library only.
"""

from __future__ import annotations

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
