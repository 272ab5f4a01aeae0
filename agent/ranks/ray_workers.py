"""Reads what Ray has given to a worker process since its start: its job, and its actor.

Ray starts workers in advance, with RAY_JOB_ID=ffffffff in their environment. The first task or
actor gives such a worker its job for good, but the environment stays as it is: another worker of
the same job, which was started later, has the real id there. The worker writes the id as the first
line of its own log, and an actor writes its class as the second line, for the program that shows
logs to users:

    :job_id:01000000
    :actor_name:Trainer

Sources: LOG_PREFIX_JOB_ID in ray/_private/ray_constants.py, print_to_stdstream in worker.py.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass

from agent.mounts import mount_of
from agent.procfs import Proc
from agent.ranks.pages import is_local_mount
from watchtower.wire.bounds import MAX_NAME
from watchtower.writing.printable import printable

JOB, NOT_ASSIGNED = "RAY_JOB_ID", "ffffffff"
"""The variable, and its value in a worker that was started without a job."""

OUTPUT = 1
"""The descriptor of the log. Its children inherit it, but the name of the file has its pid."""

LOG_LINK = re.compile(r"/worker-[0-9a-f]{1,64}-[0-9a-f]{8}-([0-9]{1,10})\.out\Z")

JOB_ID = re.compile(r"[0-9a-f]{8}\Z")

MAX_BEGIN_BYTES = 4096
"""Bytes of a log that are read. These are its first lines, unless the program printed something
while Ray loaded it.
"""

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK: a FIFO of that name must not wait for its writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """What a worker has been given. A text is empty if it is not known."""

    job: str = ""
    """The id of its job: eight hexadecimal digits."""
    actor: str = ""
    """The class of its actor; empty for a worker that runs tasks."""


NOTHING = Assigned()


def read_assigned(proc: Proc, pid: int) -> Assigned:
    """Return what a worker's log shows.

    A log on a network file system is not read: such a read may hang.
    """
    own = LOG_LINK.search(proc.link(pid, f"fd/{OUTPUT}"))
    if own is None or int(own[1]) != proc.namespaced_pid(pid):
        return NOTHING
    mount = mount_of(proc.try_read(pid, f"fdinfo/{OUTPUT}", 4096))
    if not is_local_mount(proc, pid, proc.try_read(pid, "mountinfo"), mount):
        return NOTHING
    lines: dict[str, str] = {}
    for line in _read_begin(proc.file(pid, f"fd/{OUTPUT}")).decode("utf-8", "replace").split("\n"):
        before, _, rest = line.partition(":")
        name, is_named, value = rest.partition(":")
        if is_named and not before:
            lines.setdefault(name, value)
    job = lines.get("job_id", "")
    return Assigned(
        job=job if JOB_ID.match(job) else "",
        actor=printable(lines.get("actor_name", ""), MAX_NAME),
    )


def _read_begin(path: str) -> bytes:
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return b""
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.pread(descriptor, MAX_BEGIN_BYTES, 0) if is_file else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)
