"""Finds the owner of a process. Owners have shares, and separate jobs with the same name.

The owner of a pod's process is the pod's namespace. Two facts must hold for this: only root can
have made its cgroup, and kubelet's folder of logs names the namespace. The owner of every other
process is its user. In user namespaces this is the user who made the outermost one. A container's
own uids (rootless container, or pod with `hostUsers: false`) differ from node to node, and each of
them would get a share.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Iterator
from itertools import islice

from agent.cgroups import CGROUP_MOUNT, read_memberships
from agent.procfs import Proc, parse_fields

MAX_POD_FOLDERS = 4096
"""Folders checked in /var/log/pods. A node runs 110 pods by default, and old folders remain."""

MAX_KNOWN_PODS = 4096
"""Pods whose namespace is known: as many as `MAX_POD_FOLDERS` can contain."""

POD_WAIT_S = 1.0
"""Seconds between two reads of that folder, however many pods are not in it."""

POD_LOGS = ("var/log", "pods")

PODS = ("kubepods", "kubepods.slice")
"""Kubelet's names for the folder of all pods, directly below the root of the hierarchy."""

MAX_POD_DEPTH = 4
"""Depth of a pod's folder: kubepods, its quality of service, the pod."""

NS_GET_PARENT, NS_GET_OWNER_UID = 0xB702, 0xB704
MAX_NESTED = 33
"""Nested user namespaces. The kernel allows 32 below the first one."""

UNKNOWN_POD = (
    "cannot read the namespace of a pod, so its owner is a user id: the agent needs the "
    "host's cgroup namespace with /sys/fs/cgroup, and /var/log/pods"
)

_POD = re.compile(
    r"(?:kubepods-(?:[a-z]{1,16}-)?)?pod"
    r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
"""The folder of one pod, by both drivers. A static pod (from a file) has a UID of 32 digits."""

_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


def is_folder_of_root(path: str) -> bool:
    """Return whether a path is a folder (not a link to one) that root owns."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == 0


class Owners:
    """Finds the owner of a process. It stores the namespaces of the pods that it has read."""

    def __init__(
        self,
        proc: Proc,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_of_root: Callable[[str], bool] = is_folder_of_root,
    ) -> None:
        """`is_of_root` returns whether a path is a folder that only root can have made."""
        self._proc, self._clock, self._is_of_root = proc, clock, is_of_root
        self._root = os.path.dirname(proc.path)
        self._namespaces: dict[str, str] = {}
        """Namespace by UID of the pod."""
        self._read_at = float("-inf")
        self._troubled: set[int] = set()
        """Processes in pods with unknown namespaces."""

    def find(self, pid: int) -> str:
        """Return "namespace:NAME" or "uid:NUMBER"; empty if the process has ended.

        If the namespace of its pod is not known, `trouble` reports it until the process is
        forgotten.
        """
        owner, is_known = self._find(pid)
        self.forget(pid)
        if not is_known:
            self._troubled.add(pid)
        return owner

    def find_quietly(self, pid: int) -> str:
        """Return the same for a process that may not be a rank. `trouble` does not change."""
        return self._find(pid)[0]

    def forget(self, pid: int) -> None:
        """Forget a process that has ended."""
        self._troubled.discard(pid)

    def trouble(self) -> str:
        """Return why a pod is not owned by its namespace, or "" if every namespace is known."""
        return UNKNOWN_POD if self._troubled else ""

    def _find(self, pid: int) -> tuple[str, bool]:
        """Return the owner, and False if the process is in a pod with an unknown namespace."""
        user = find_user(self._proc, pid)
        if user is None:
            return "", True
        pod = self._pod_of(pid)
        namespace = self._namespace_of(pod) if pod else ""
        if namespace:
            return f"namespace:{namespace}", True
        return f"uid:{user}", pod == ""

    def _pod_of(self, pid: int) -> str | None:
        """Return the UID of the process's pod, "" outside of pods, None if that cannot be read."""
        is_hidden = False
        for each in read_memberships(self._proc, pid):
            is_hidden |= each.is_hidden and _names_pod(each.path)
            folders, pod = find_pod(each.path)
            if pod and any(self._is_made_by_root(mount, folders) for mount in each.mounts):
                return pod
        return None if is_hidden else ""

    def _is_made_by_root(self, mount: str, folders: tuple[str, ...]) -> bool:
        """Return whether root owns each of these folders, one inside the other."""
        path = os.path.join(self._root, CGROUP_MOUNT, mount)
        for folder in folders:
            path = os.path.join(path, folder)
            if not self._is_of_root(path):
                return False
        return True

    def _namespace_of(self, pod: str) -> str:
        now = self._clock()
        if pod not in self._namespaces and now - self._read_at >= POD_WAIT_S:
            self._read_at = now
            self._namespaces = dict(islice(self._read_namespaces(), MAX_KNOWN_PODS))
        return self._namespaces.get(pod, "")

    def _read_namespaces(self) -> Iterator[tuple[str, str]]:
        """Yield UID and namespace of each pod in /var/log/pods (folders NAMESPACE_NAME_UID by
        kubelet).
        """
        base = os.path.join(self._root, *POD_LOGS)
        if not self._is_of_root(base):
            return
        try:
            with os.scandir(base) as entries:
                names = [entry.name for entry in islice(entries, MAX_POD_FOLDERS)]
        except OSError:
            return
        for name in names:
            parts = name.split("_")
            if len(parts) != 3 or not _NAMESPACE.fullmatch(parts[0]):
                continue
            if self._is_of_root(os.path.join(base, name)):
                yield parts[2], parts[0]


def find_pod(path: str) -> tuple[tuple[str, ...], str]:
    """Return the folders of a cgroup down to that of its pod, and the pod's UID; empty without one.

    Only a path that begins with kubelet's own folder counts. A container or a user could make
    folders with such names further down.
    """
    folders = tuple(path.split("/", MAX_POD_DEPTH + 1)[1 : MAX_POD_DEPTH + 1])
    if not folders or folders[0] not in PODS:
        return (), ""
    for depth, folder in enumerate(folders[1:], start=2):
        if found := _POD.fullmatch(folder):
            return folders[:depth], found[1].replace("_", "-")
    return (), ""


def find_user(proc: Proc, pid: int) -> int | None:
    """Return the user of a process as the host sees it; None if the process has ended.

    For a process in a user namespace this is the user who made the outermost one.
    """
    words = parse_fields(proc.try_read(pid, "status", 8192)).get("Uid", "").split()
    if not words or not words[0].isdigit():
        return None
    try:
        ours = os.stat(f"{proc.path}/self/ns/user").st_ino
        space = os.open(proc.file(pid, "ns/user"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return int(words[0])
    maker = None
    try:
        for _ in range(MAX_NESTED):
            if os.fstat(space).st_ino == ours:
                break
            maker = struct.unpack("I", fcntl.ioctl(space, NS_GET_OWNER_UID, bytes(4)))[0]
            parent = fcntl.ioctl(space, NS_GET_PARENT)
            os.close(space)
            space = parent
    except OSError:  # the next namespace is above our own
        pass
    finally:
        os.close(space)
    return int(words[0]) if maker is None else int(maker)


def _names_pod(path: str) -> bool:
    return any(_POD.fullmatch(part) for part in path.split("/", 16))
