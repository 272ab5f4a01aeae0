"""Reads the job of a process that Ray started before there was a job.

Ray starts workers in advance, with RAY_JOB_ID=ffffffff in their environment. The first task or
actor gives such a worker its job for good, but the environment stays as it is: another worker of
the same job, which was started later, has the real id there. The worker writes the id as the first
line of its own log, for the program that shows logs to users: `:job_id:01000000`.

Source: LOG_PREFIX_JOB_ID in ray/_private/ray_constants.py, print_to_stdstream in worker.py.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

from agent.mounts import mount_of
from agent.procfs import Proc
from agent.ranks.pages import is_local_mount

VARIABLE, NOT_ASSIGNED = "RAY_JOB_ID", "ffffffff"

OUTPUT = "fd/1"

LOG_LINK = re.compile(rf"/worker-[0-9a-f]{{1,64}}-{NOT_ASSIGNED}-[0-9]{{1,10}}\.out\Z")
"""The link of the output of such a worker."""

JOB_LINE = re.compile(rb"^:job_id:([0-9a-f]{8})$", re.MULTILINE)

MAX_BEGIN_BYTES = 4096
"""Bytes of a log in which the id is searched. It is the first line, unless the program printed
something while Ray loaded it.
"""

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK: a FIFO of that name must not wait for its writer."""


def lacks_job(variables: Mapping[str, str]) -> bool:
    """Return whether an environment is that of a worker which Ray started without a job."""
    return variables.get(VARIABLE) == NOT_ASSIGNED


def read_job(proc: Proc, pid: int) -> str:
    """Return the id of the job that Ray has given to a worker; empty if it is not known.

    A log on a network file system is not read: such a read may hang.
    """
    if not LOG_LINK.search(proc.link(pid, OUTPUT)):
        return ""
    mount = mount_of(proc.try_read(pid, OUTPUT.replace("fd", "fdinfo"), 4096))
    if not is_local_mount(proc, pid, proc.try_read(pid, "mountinfo"), mount):
        return ""
    try:
        descriptor = os.open(proc.file(pid, OUTPUT), _READ)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        found = JOB_LINE.search(os.pread(descriptor, MAX_BEGIN_BYTES, 0))
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return found[1].decode("ascii") if found is not None else ""
