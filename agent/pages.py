"""Finding a process's heartbeat page among its descriptors, and knowing that it is its own."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from watchtower_heartbeat.page import MEMFD_LINK, MEMFD_NAME, PageError, PageView, read_page

from agent.config import MAX_DESCRIPTORS_PER_PROCESS
from agent.procfs import Proc

DIRECTORY_VARIABLE = "WATCHTOWER_HEARTBEAT_DIR"


class PageFile:
    """An open page; it closes when nobody holds it any more, so that no reader loses it midway."""

    def __init__(self, descriptor: int, name: str) -> None:
        """Take over a descriptor of ours; `name` is the one that the process has."""
        self.descriptor = descriptor
        self._name = name

    def __del__(self) -> None:
        os.close(self.descriptor)

    def read(self) -> PageView:
        """Read the page; PageError says why not."""
        return read_page(self.descriptor)

    def age_ns(self) -> int:
        """Return how long ago the page was made: stores through a mapping change no time stamp."""
        return max(0, time.time_ns() - os.fstat(self.descriptor).st_ctime_ns)

    def is_open_in(self, proc: Proc, pid: int) -> bool:
        """Say whether the process still has this very page."""
        try:
            theirs = os.stat(proc.file(pid, f"fd/{self._name}"))
        except OSError:
            return False
        return os.path.samestat(theirs, os.fstat(self.descriptor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a look at a process's descriptors gave, and how many links it read."""

    page: PageFile | None
    looked_at: int


def find_page(proc: Proc, pid: int, start_time: int) -> Search:
    """Find the page that `pid` itself writes; a page inherited over fork is not its own.

    Only descriptors are looked at: a page in a directory is held open by its writer's mapping too,
    so its link is there as well and no directory has to be known.
    """
    try:
        names = os.listdir(proc.file(pid, "fd"))[:MAX_DESCRIPTORS_PER_PROCESS]
    except OSError:
        return Search(page=None, looked_at=1)
    for count, name in enumerate(names, 1):
        link = proc.link(pid, f"fd/{name}")
        if is_page_link(link) and (page := _open_own(proc, pid, start_time, name)):
            return Search(page=page, looked_at=count + 1)
    return Search(page=None, looked_at=len(names) + 1)


def is_page_link(link: str) -> bool:
    """Say whether a descriptor's link looks like a page's: a memfd or a file of that name."""
    return link == MEMFD_LINK or os.path.basename(link).startswith(f"{MEMFD_NAME}.")


def _open_own(proc: Proc, pid: int, start_time: int, name: str) -> PageFile | None:
    try:
        page = PageFile(os.open(proc.file(pid, f"fd/{name}"), os.O_RDONLY | os.O_CLOEXEC), name)
        view = page.read()
    except (OSError, PageError):
        return None
    own = view.pid == proc.namespaced_pid(pid) and view.start_time_ticks in (start_time, -1)
    return page if own else None
