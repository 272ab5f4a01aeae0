"""Finds the heartbeat page among a process's descriptors, and checks that the process wrote it."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from dataclasses import dataclass
from functools import cache
from itertools import islice

from watchtower_heartbeat.layout import MEMFD_LINK, MEMFD_NAME
from watchtower_heartbeat.page import PageError, PageReader, PageView

from agent.mounts import mount_of, type_of
from agent.procfs import Proc

MAX_DESCRIPTORS_PER_PROCESS = 4096
"""Links read of one process in one check. A page is made early, so its descriptor is low."""

MAX_PAGES_TRIED = 32
"""Pages opened in one check of a process: its own page and the inherited ones."""

LOCAL_FILE_SYSTEMS = (
    "btrfs",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "overlay",
    "ramfs",
    "rootfs",
    "tmpfs",
    "xfs",
    "zfs",
)
"""File systems on which a page in a directory is accepted: reads there never wait for a remote
machine or a user-space program.
"""

NS_GET_USERNS = 0xB701
"""ioctl_ns(2): the user namespace to which a namespace belongs."""

LINKS_PER_OPENED_PAGE = 4
"""The cost of opening a page, in links read."""

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK: without it, opening a FIFO of that name would wait for its writer."""


class PageFile:
    """An open page. It closes when the last reference is gone, so that no reader loses it
    midway.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        """Own the open file `descriptor`. `name` is the descriptor's number in the process."""
        self.descriptor = descriptor
        self._name = name
        self._reader = PageReader(descriptor)
        self.last_view: PageView | None = None
        """What was read last, by anyone."""

    def __del__(self) -> None:
        os.close(self.descriptor)

    def read(self) -> PageView:
        """Return the content of the page. Raises PageError."""
        self.last_view = self._reader.read()
        return self.last_view

    def age_ns(self) -> int:
        """Return the nanoseconds since the page was made.

        Its ctime shows this: writes through a mapping do not change any time stamp.
        """
        return max(0, time.time_ns() - os.fstat(self.descriptor).st_ctime_ns)

    def is_open_in(self, proc: Proc, pid: int) -> bool:
        """Return whether the process still has exactly this page open."""
        if not _may_open(proc, pid, self._name):
            return False
        try:
            theirs = os.stat(proc.file(pid, f"fd/{self._name}"))
        except OSError:
            return False
        return os.path.samestat(theirs, os.fstat(self.descriptor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The result of a search in a process's descriptors, and how many links it read."""

    page: PageFile | None
    links_read: int


def find_page(
    proc: Proc, pid: int, start_time: int, limit: int = MAX_DESCRIPTORS_PER_PROCESS
) -> Search:
    """Find the page that `pid` itself writes. Pages inherited over fork are skipped.

    Only the first `limit` descriptors are checked. The writer of a page in a directory has it open
    too, so its link is found there and the directory need not be known.
    """
    try:
        with os.scandir(proc.file(pid, "fd")) as entries:
            names = [entry.name for entry in islice(entries, limit)]
    except OSError:
        return Search(page=None, links_read=1)
    links_read, tried = 1, 0
    for name in names:
        links_read += 1
        if not is_page_link(proc.link(pid, f"fd/{name}")):
            continue
        if page := _open_own(proc, pid, start_time, name):
            return Search(page=page, links_read=links_read)
        links_read, tried = links_read + LINKS_PER_OPENED_PAGE, tried + 1
        if tried >= MAX_PAGES_TRIED:
            break
    return Search(page=None, links_read=links_read)


def is_page_link(link: str) -> bool:
    """Return whether a descriptor's link has the form of a page: a memfd or a file of that name."""
    return link == MEMFD_LINK or os.path.basename(link).startswith(f"{MEMFD_NAME}.")


def _open_own(proc: Proc, pid: int, start_time: int, name: str) -> PageFile | None:
    if not _may_open(proc, pid, name):
        return None
    try:
        descriptor = os.open(proc.file(pid, f"fd/{name}"), _READ)
    except OSError:
        return None
    page = PageFile(descriptor, name)
    try:
        view = page.read() if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except (OSError, PageError):
        return None
    if view is None:
        return None
    own = view.pid == proc.namespaced_pid(pid) and view.start_time_ticks in (start_time, -1)
    return page if own else None


def _may_open(proc: Proc, pid: int, name: str) -> bool:
    """Return whether a descriptor leads to memory or a local disk, without opening the file.

    Any process can use this file name. Opening a file on a network or user-space file system that
    hangs would block the agent.
    """
    link = proc.link(pid, f"fd/{name}")
    if link == MEMFD_LINK:
        return leads_to_memfd(proc, pid, name, MEMFD_LINK)
    if not is_page_link(link):
        return False
    mount = mount_of(proc.try_read(pid, f"fdinfo/{name}", 4096))
    return is_local_mount(proc, pid, proc.try_read(pid, "mountinfo"), mount)


def leads_to_memfd(proc: Proc, pid: int, name: str, wanted: str) -> bool:
    """Return whether a descriptor is a memfd with the link `wanted`, without opening it."""
    mount = mount_of(proc.try_read(pid, f"fdinfo/{name}", 4096))
    return proc.link(pid, f"fd/{name}") == wanted and _mount_of_memfds() in (mount, "")


def is_local_mount(proc: Proc, pid: int, mounts: bytes, mount: str) -> bool:
    """Return whether a mount that a process sees waits for no remote machine and no program.

    `mounts` is a /proc/PID/mountinfo that contains it.

    Any user can mount an overlay over a FUSE file system in a user namespace. A read of it waits
    for the user's program, and nothing can end this wait. So an overlay counts only if a user
    cannot have mounted it.
    """
    kind = type_of(mounts, mount)
    return kind in LOCAL_FILE_SYSTEMS and (kind != "overlay" or not can_user_mount(proc, pid))


def can_user_mount(proc: Proc, pid: int) -> bool:
    """Return whether the mounts of a process belong to another user namespace than the agent's."""
    try:
        mounts = os.open(proc.file(pid, "ns/mnt"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        owner = fcntl.ioctl(mounts, NS_GET_USERNS)
    except OSError:
        return True
    finally:
        os.close(mounts)
    try:
        return not os.path.samestat(os.fstat(owner), os.stat("/proc/self/ns/user"))
    finally:
        os.close(owner)


@cache
def _mount_of_memfds() -> str:
    """Return the mount of all memfds in the kernel, found with a memfd of our own; "" if
    unknown.
    """
    try:
        descriptor = os.memfd_create("watchtower-agent")
    except (OSError, AttributeError):  # this Python may not support memfd_create
        return ""
    try:
        return mount_of(Proc().try_read(os.getpid(), f"fdinfo/{descriptor}", 4096))
    finally:
        os.close(descriptor)
