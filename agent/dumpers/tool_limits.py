"""Limits for the tools that the agent starts.

A tool works on a process that may be hostile: py-spy copies as much memory as the headers of a
forged program name. The limits are set from outside on the running tool, because in a process with
threads no Python code may run between fork and exec.
"""

from __future__ import annotations

import logging
import resource
from functools import cache

MAX_TOOL_MEMORY_BYTES = 128 << 20
"""Private memory of one tool. py-spy needs 3 MB, or 17 MB for 300 threads of 100 frames (it cannot
read more before its deadline). The child that reads source needs 9 MB.
"""

MAX_SYMBOLS_MEMORY_BYTES = 512 << 20
"""The same for a py-spy that reads native functions. It loads the symbols of each library on the
stack: 185 MB with those of libtorch_cpu.so. Three py-spy at this limit and the agent fit into the
MemoryMax of its unit.
"""


log = logging.getLogger(__name__)

OOM_SCORE = 1000
"""oom_score_adj: if the node or the control group has no memory left, the tool is killed first."""


def confine(pid: int, memory_bytes: int = MAX_TOOL_MEMORY_BYTES) -> None:
    """Limit a child that was just started and not reaped yet.

    Memory that it has allocated before counts too. If a limit cannot be set, that is logged once
    and the tool runs without it.
    """
    try:
        # Private memory: the heap, but not mapped files.
        resource.prlimit(pid, resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        # A tool that aborts at that limit leaves no core file.
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(OOM_SCORE))
    except ProcessLookupError:
        pass  # it has ended already
    except OSError as error:
        _warn_once(str(error))


@cache
def _warn_once(error: str) -> None:
    log.warning("cannot limit the memory of tools: %s", error)
