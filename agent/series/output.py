"""The last lines of a rank's output, read by a child process under a deadline."""

from __future__ import annotations

import json
import logging

import msgspec

from agent.dumpers.python_child import child_command
from agent.dumpers.tool_process import ChildRunner
from agent.procfs import Proc
from agent.series.output_child import BOTH, STREAMS
from watchtower.wire.bounds import MAX_AGE_S
from watchtower.wire.series import RankOutput

OUTPUT_DEADLINE_S = 3.0
"""Seconds for the files of one rank. Reading takes 50 ms; a hanging file system never answers."""

MAX_OUTPUT_BYTES = 1 << 20
"""Bytes that the child may print: two streams of 100 lines of 400 characters have up to 0.5 MB."""

log = logging.getLogger(__name__)


class _Stream(msgspec.Struct):
    stream: str
    lines: list[str]
    age_s: float


_DECODER = msgspec.json.Decoder(list[_Stream])


def read_rank_output(
    proc: Proc, runner: ChildRunner, rank: int, key: tuple[int, int], count: int, owner: str
) -> list[RankOutput]:
    """Return the last `count` lines of standard output and error of a rank's process.

    Empty if these are no files that the process may read, or if they cannot be read in time.
    """
    pid, start_time = key
    stat = proc.stat(pid)
    if stat is None or stat.start_time != start_time:
        return []
    question = json.dumps({"process": f"{proc.path}/{pid}", "lines": count})
    command = child_command("agent.series.output_child", question)
    try:
        found = _DECODER.decode(runner.run(command, OUTPUT_DEADLINE_S, owner).output)
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("the output of pid %d cannot be read: %s", pid, error)
        return []
    return [
        RankOutput(
            rank=rank,
            pid=pid,
            start_time=start_time,
            stream=each.stream,
            lines=tuple(each.lines),
            age_s=min(max(0.0, each.age_s), MAX_AGE_S),
        )
        for each in found
        if each.stream in (*STREAMS.values(), BOTH)
    ]
