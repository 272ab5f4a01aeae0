"""What a snapshot may not read, and what the person who takes it can do."""

from __future__ import annotations

import contextlib
import os
import pwd
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.gaps import find_gap_of_container, find_gap_of_stacks, find_gaps, find_missing_rights
from agent.procfs import Proc
from watchtower.wire.report import AgentGaps
from watchtower.writing.printable import printable

MAX_USERS = 4
"""Users named in the sentence."""

NAMES_DEADLINE_S = 1.0
"""Seconds for the names of users. They may come from a service in the network that hangs, too."""

MAX_USER = 32
"""Characters of the name of a user, as useradd allows."""

PYTHON_NAMES = ("python", "pypy", "pt_main_thread", "ray::")
"""How the names of training processes begin. Torch and Ray set names of their own. The command line
is not read, because such a read may hang."""

ENDED = ("Z", "X")


def find_limits(proc: Proc, py_spy: str) -> AgentGaps:
    """Return what cannot be read on this node, with what to do."""
    missing = find_missing_rights(proc)
    # Root without capabilities, in a container, gets no more of them by sudo.
    is_root = os.getuid() == 0
    needed = missing if is_root else "sudo"
    unread = find_unread(proc, os.getuid()) if missing else None
    return replace(
        find_gaps(proc, py_spy),
        python_stacks=find_gap_of_stacks(
            proc, py_spy, "give it CAP_SYS_PTRACE" if is_root else "run the snapshot with sudo"
        ),
        process="; ".join(
            filter(
                None,
                (
                    write_other_users(unread, os.getuid(), needed) if unread else "",
                    write_closed(unread, needed) if unread else "",
                    find_gap_of_container(proc),
                ),
            )
        ),
    )


@dataclass(frozen=True, slots=True)
class Unread:
    """Python processes that cannot be read without more rights."""

    users: tuple[int, ...]
    """The other users who have some."""
    closed: tuple[int, ...]
    """Pids of the own user. The kernel gives the files of such a process to root, for example if
    its program has capabilities."""


def find_unread(proc: Proc, own: int) -> Unread:
    """Return the Python processes that user `own` cannot read."""
    users, closed = set(), []
    for pid in sorted(proc.pids()):
        stat = proc.stat(pid)
        # The files of a process that has ended belong to root.
        if stat is not None and stat.state not in ENDED and stat.comm.startswith(PYTHON_NAMES):
            try:
                user = os.stat(f"{proc.path}/{pid}").st_uid
                owner = os.stat(proc.file(pid, "environ")).st_uid
            except OSError:
                continue  # it has ended
            if user != own:
                users.add(user)
            elif owner != own:
                closed.append(pid)
    return Unread(users=tuple(sorted(users)), closed=tuple(closed))


def write_other_users(unread: Unread, own: int, needed: str) -> str:
    """Return the sentence on the other users."""
    users = find_names((own, *unread.users[:MAX_USERS]))
    names = [users.get(user, f"uid {user}") for user in unread.users]
    if len(names) > MAX_USERS:
        names[MAX_USERS:] = [f"{len(names) - MAX_USERS} more users"]
    shown = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    seen = f" ({shown} run{'' if len(names) > 1 else 's'} Python here)" if names else ""
    return (
        f"ranks of other users than {users.get(own, f'uid {own}')} are not found{seen}: run the "
        f"snapshot as the user of the job, or with {needed}"
    )


def write_closed(unread: Unread, needed: str) -> str:
    """Return the sentence on processes of the own user; empty without any."""
    if not unread.closed:
        return ""
    count = len(unread.closed)
    return (
        f"{count} Python process{'' if count == 1 else 'es'} of this user, such as pid "
        f"{unread.closed[0]}, cannot be read, because only root may trace "
        f"{'it' if count == 1 else 'them'}: run the snapshot with {needed}"
    )


def find_names(numbers: Sequence[int]) -> dict[int, str]:
    """Return the names of users, as far as they are found in time. A search that hangs is left."""
    names: dict[int, str] = {}

    def find() -> None:
        for number in numbers:
            with contextlib.suppress(KeyError, OSError):
                names[number] = printable(pwd.getpwuid(number).pw_name, MAX_USER)

    thread = threading.Thread(target=find, name="user names", daemon=True)
    thread.start()
    thread.join(NAMES_DEADLINE_S)
    return dict(names)
