"""Bounds of wire messages, each with its reason.

A message that exceeds a bound is refused. It is not trimmed.
"""

MAX_NAME = 256
"""Characters of the name of a job, node, phase or thread. A longer label is not readable."""

MAX_TEXT = 1024
"""Characters of one line of free text, such as the first line of an exception."""

MAX_RANKS_PER_NODE = 1024
"""Large GPU nodes run 8 to 16 ranks. CPU test clusters run a few hundred."""

MAX_FRAMES = 512
"""Frames of one stack. The agent removes the middle of a deeper stack. Python's default limit is
1000 frames."""

MAX_THREADS = 256
"""Threads sent per process: first the main thread, then threads that hold the GIL, then the
others."""

MAX_CHILDREN = 64
"""Child processes sent per rank, such as DataLoader workers."""

MAX_MOUNTS = 16
"""Mounted file systems sent per blocked process. If a process sees more, none is sent, because the
receiver would treat a part of the list as the whole list."""

MAX_STACKS = 4096
"""Distinct stacks in one batch of dumps."""

MAX_REPORT_BYTES = 2 * 1024 * 1024
"""Bytes of one report as JSON: 1024 ranks of about 1 KB, doubled. A report of 8 ranks has 5 kB. An
agent cuts a longer report to this size, and a tower refuses a longer one."""

MAX_DUMPS_BYTES = 16 * 1024 * 1024
"""Bytes of one batch of dumps as JSON. A batch of a real hang has 100 kB. An agent cuts a longer
batch to this size, and a tower refuses a longer one."""

MAX_LOOPS = 8
"""Loops around one line, innermost first. Training code is not nested more deeply."""

MAX_GROUPS_PER_RANK = 4096
"""Process groups of one rank. Expert parallelism and sub-meshes create hundreds."""

MAX_GROUPS = 16_384
"""Distinct process groups in one batch of dumps. The batch may also have this many group logs."""

MAX_GROUP_RECORDS = 8
"""Most recent collectives sent per group: the one that hangs, and the usual calls around it."""

MAX_UNKNOWN_CALLS = 8
"""Collectives per group of which the log does not show whether they are over. Usual logs have none
or two."""

MAX_MEMBERS_TEXT = 131_072
"""Characters of a group's member list. Usual layouts need a few spans. Any subset of a job of
16,384 ranks fits."""

MAX_PEERS = 32
"""Peers of one rank in point-to-point sends and receives. A pipeline stage has two to four."""

MAX_WORLD_SIZE = 262_144
"""Twice the largest job that the design supports. A larger value shows that the environment is
wrong."""

MAX_RANK = MAX_WORLD_SIZE - 1
"""Ranks count from 0."""


MAX_INTEGER = 2**63 - 1
"""Largest signed 64-bit number: for steps, process ids and clock ticks since boot."""

MAX_AGE_S = 1e10
"""Longer than the largest time that a heartbeat file can contain (2**63 ns), and than 300 years."""

MAX_RATE = 1e15
"""CPU cores, or bytes per second: one petabyte per second."""


def check_text(field: str, value: str, limit: int = MAX_NAME) -> None:
    """Raise ValueError if `value` is longer than `limit` characters."""
    if len(value) > limit:
        raise ValueError(f"`{field}` has {len(value)} characters, at most {limit} are allowed")


def check_count(field: str, count: int, limit: int) -> None:
    """Raise ValueError if a list has more than `limit` entries."""
    if count > limit:
        raise ValueError(f"`{field}` has {count} entries, at most {limit} are allowed")


def check_age(field: str, value: float) -> None:
    """Raise ValueError if an age in seconds is negative, too large or not a number."""
    if not 0 <= value <= MAX_AGE_S:
        raise ValueError(f"`{field}` is {value}, allowed is 0 to {MAX_AGE_S:g} seconds")


def check_rank(rank: int) -> None:
    """Raise ValueError if `rank` cannot be a global rank."""
    if not 0 <= rank <= MAX_RANK:
        raise ValueError(f"`rank` is {rank}, allowed is 0 to {MAX_RANK}")


def check_integer(field: str, value: int | None, low: int = 0) -> None:
    """Raise ValueError if an optional number is outside `low` to `MAX_INTEGER`."""
    if value is not None and not low <= value <= MAX_INTEGER:
        raise ValueError(f"`{field}` is out of range, allowed is {low} to {MAX_INTEGER}")


def check_rate(field: str, value: float) -> None:
    """Raise ValueError if a rate is negative or larger than `MAX_RATE`."""
    if not 0 <= value <= MAX_RATE:
        raise ValueError(f"`{field}` is {value}, allowed is 0 to {MAX_RATE:g}")


MAX_SILENCE_S = 30 * 86_400.0
"""Longest silence of a job's alerts in seconds, 30 days: people forget a longer one."""
