"""Freezes a process with a control group, as a suspended container is.

Run by path: python -I freezer.py PID, as root. Ended, it thaws the process and puts it back.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

PREFIX = "watchtower-drill-"
"""Then the pid: a group whose process is gone is taken away by the next drill."""
EMPTY_DEADLINE_S = 2.0


class Hierarchy:
    """A mounted hierarchy of control groups that can freeze: the v1 controller, or v2."""

    def __init__(self, root: Path, controller: str) -> None:
        self._root, self._controller = root, controller
        self._switch = "freezer.state" if controller else "cgroup.freeze"
        self._words = ("THAWED", "FROZEN") if controller else ("0", "1")

    def group_of(self, pid: int) -> Path:
        """The group that a process is in."""
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if self._controller in controllers.split(","):
                return self._root / path.lstrip("/")
        return self._root

    def make_group(self) -> Path:
        """A new group of this process's name."""
        group = self._root / f"{PREFIX}{os.getpid()}"
        group.mkdir()
        return group

    def set_frozen(self, group: Path, frozen: bool) -> None:
        """Freeze or thaw every process in the group."""
        (group / self._switch).write_text(self._words[frozen])

    def remove(self, group: Path, back_to: Path) -> None:
        """Thaw the group, move what lives in it out and remove it."""
        with contextlib.suppress(OSError):
            self.set_frozen(group, False)
        until = time.monotonic() + EMPTY_DEADLINE_S
        while group.is_dir() and time.monotonic() < until:
            with contextlib.suppress(OSError):  # a process that is just dying
                for pid in (group / "cgroup.procs").read_text().split():
                    (back_to / "cgroup.procs").write_text(pid)
                group.rmdir()
            time.sleep(0.02)

    def remove_left_overs(self) -> None:
        """Remove the groups of props that were killed."""
        for group in self._root.glob(f"{PREFIX}*"):
            if not Path("/proc", group.name.removeprefix(PREFIX)).exists():
                self.remove(group, self._root)


def find_hierarchy() -> Hierarchy:
    """The first hierarchy that can freeze; exits where there is none."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        if kind == "cgroup" and "freezer" in options:
            found[1] = Hierarchy(Path(fields[4]), "freezer")
        elif kind == "cgroup2":
            found[2] = Hierarchy(Path(fields[4]), "")
    if not found:
        sys.exit("no hierarchy of control groups is mounted that can freeze")
    return found[min(found)]


def main() -> None:
    """Freeze the process, wait to be ended, undo it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = int(sys.argv[1])
    hierarchy = find_hierarchy()
    hierarchy.remove_left_overs()
    before = hierarchy.group_of(pid)
    try:
        group = hierarchy.make_group()
    except OSError as error:
        sys.exit(f"cannot make a control group: {error.strerror}; this needs root")
    try:
        (group / "cgroup.procs").write_text(str(pid))
        hierarchy.set_frozen(group, True)
        print("fault", json.dumps({"monotonic_s": time.monotonic()}), flush=True)
        signal.sigwait({signal.SIGTERM})
    finally:
        hierarchy.remove(group, before)


if __name__ == "__main__":
    main()
