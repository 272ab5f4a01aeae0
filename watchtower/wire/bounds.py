"""Bounds of wire messages, each with its reason; a message beyond one is refused, never trimmed."""

MAX_NAME = 256
"""Jobs, nodes, phases, thread names: a label a person can still read."""

MAX_TEXT = 1024
"""One line of free text, such as the first line of an exception."""

MAX_RANKS_PER_NODE = 1024
"""Largest nodes run 8 to 16 ranks; CPU test clusters a few hundred."""

MAX_FRAMES = 512
"""Deeper stacks (Python's default limit is 1000) are cut in the middle by the agent."""

MAX_THREADS = 256
"""Threads sent of one process: the main one, those that hold the GIL, then the others."""

MAX_CHILDREN = 64
"""DataLoader workers and other children sent of one rank."""

MAX_MOUNTS = 16
"""Mounted file systems sent of one blocked process. Of a process that sees more, none is sent: the
receiver would take the first ones for all."""

MAX_STACKS = 4096
"""Distinct stacks in one batch of dumps."""

MAX_REPORT_BYTES = 2 * 1024 * 1024
"""One report as JSON: a node of 1024 ranks at about 1 KB each, doubled. 8 ranks are 5 kB. An agent
cuts longer ones to this, and a tower takes no more."""

MAX_DUMPS_BYTES = 16 * 1024 * 1024
"""One batch of dumps as JSON. Those of real hangs have 100 kB; an agent cuts longer ones to this,
and a tower takes no more."""

MAX_LOOPS = 8
"""Loops around one line, from the innermost outwards; code nested deeper is not training code."""

MAX_GROUPS_PER_RANK = 4096
"""Process groups of one rank. Expert parallelism and sub-meshes make hundreds."""

MAX_GROUPS = 16_384
"""Distinct process groups in one batch of dumps, and as many logs of them for each."""

MAX_GROUP_RECORDS = 8
"""Last collectives sent of one group: the one that hangs, and what it usually calls around it."""

MAX_MEMBERS_TEXT = 131_072
"""Characters of a group's members: no layout needs more than a few spans, any subset of a job of
16,384 ranks fits."""

MAX_PEERS = 32
"""Ranks that one rank sends to and receives from, one by one; a pipeline stage has two to four."""

MAX_WORLD_SIZE = 262_144
"""Twice the largest job designed for, low enough to catch a garbage environment."""

MAX_RANK = MAX_WORLD_SIZE - 1
"""Ranks count from 0."""


MAX_INTEGER = 2**63 - 1
"""What 64 bits hold: steps, process ids, ticks since boot."""

MAX_AGE_S = 1e10
"""Longer than the largest time that a heartbeat file can hold (2**63 ns), and three centuries."""

MAX_RATE = 1e15
"""Cores, or bytes per second: a petabyte a second."""


def check_text(field: str, value: str, limit: int = MAX_NAME) -> None:
    """Raise ValueError when `value` is longer than `limit` characters."""
    if len(value) > limit:
        raise ValueError(f"`{field}` has {len(value)} characters, at most {limit} are allowed")


def check_count(field: str, count: int, limit: int) -> None:
    """Raise ValueError when a list has more than `limit` entries."""
    if count > limit:
        raise ValueError(f"`{field}` has {count} entries, at most {limit} are allowed")


def check_age(field: str, value: float) -> None:
    """Raise ValueError when an age in seconds is negative, too large or not a number."""
    if not 0 <= value <= MAX_AGE_S:
        raise ValueError(f"`{field}` is {value}, an age in seconds is >= 0")


def check_rank(rank: int) -> None:
    """Raise ValueError when `rank` cannot be a global rank."""
    if not 0 <= rank <= MAX_RANK:
        raise ValueError(f"`rank` is {rank}, allowed is 0 to {MAX_RANK}")


def check_integer(field: str, value: int | None, low: int = 0) -> None:
    """Raise ValueError when a number that may be missing is not in `low` to `MAX_INTEGER`."""
    if value is not None and not low <= value <= MAX_INTEGER:
        raise ValueError(f"`{field}` is out of range, allowed is {low} to {MAX_INTEGER}")


def check_rate(field: str, value: float) -> None:
    """Raise ValueError when a rate is negative or beyond everything that exists."""
    if not 0 <= value <= MAX_RATE:
        raise ValueError(f"`{field}` is {value}, allowed is 0 to {MAX_RATE:g}")
