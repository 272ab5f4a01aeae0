"""Bounds of wire messages, each with its reason.

A message that exceeds a bound is refused. It is not trimmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

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


_Message = TypeVar("_Message")


class Bound(NamedTuple):
    """A bound of the value of one field."""

    holds: str
    """A Python expression that is true for an allowed value, which is `{}` in it."""
    check: Callable[[str, Any], None]
    """Raises ValueError, which names the field and the value, unless the value is allowed."""


def bounded(**bounds: Bound) -> Callable[[type[_Message]], type[_Message]]:
    """Return a decorator of a dataclass that makes it check the bounds of its fields.

    Its values raise ValueError if a field is out of its bound. A report has hundreds of fields.
    Nearly all are right: one generated expression finds that out in a quarter of the time that a
    function for each field takes.
    """
    holds = " and ".join(bound.holds.format(f"self.{name}") for name, bound in bounds.items())

    def refuse(message: Any) -> None:
        for name, bound in bounds.items():
            bound.check(name, getattr(message, name))

    names: dict[str, Any] = {"refuse": refuse}
    exec(f"def check(self):\n    if not ({holds}):\n        refuse(self)", names)

    def decorate(message: type[_Message]) -> type[_Message]:
        message.__post_init__ = names["check"]  # type: ignore[attr-defined]
        return message

    return decorate


def characters(limit: int = MAX_NAME) -> Bound:
    """Return the bound of a text: at most `limit` characters."""
    return Bound(f"len({{}}) <= {limit}", partial(check_text, limit=limit))


def named(why: str, limit: int = MAX_NAME) -> Bound:
    """Return the bound of a text that may not be empty; `why` explains that."""

    def check(field: str, value: str) -> None:
        check_text(field, value, limit)
        if not value:
            raise ValueError(f"`{field}` is empty, {why}")

    return Bound(f"0 < len({{}}) <= {limit}", check)


def entries(limit: int) -> Bound:
    """Return the bound of a list: at most `limit` entries."""
    return Bound(
        f"len({{}}) <= {limit}", lambda field, value: check_count(field, len(value), limit)
    )


def integer(low: int = 0) -> Bound:
    """Return the bound of a number: from `low` to `MAX_INTEGER`."""
    return Bound(f"{low} <= {{}} <= {MAX_INTEGER}", partial(check_integer, low=low))


def between(low: int, high: int) -> Bound:
    """Return the bound of a number: from `low` to `high`."""

    def check(field: str, value: int) -> None:
        if not low <= value <= high:
            raise ValueError(f"`{field}` is {value}, allowed is {low} to {high}")

    return Bound(f"{low} <= {{}} <= {high}", check)


def above_zero(high: float) -> Bound:
    """Return the bound of a number: more than 0, and at most `high`."""

    def check(field: str, value: float) -> None:
        if not 0 < value <= high:
            raise ValueError(f"`{field}` is {value}, allowed is above 0 to {high:g}")

    return Bound(f"0 < {{}} <= {high}", check)


def up_to(high: float) -> Bound:
    """Return the bound of a number with any sign: at most `high` without it."""

    def check(field: str, value: float) -> None:
        if not abs(value) <= high:
            raise ValueError(f"`{field}` is {value}, allowed is up to {high:g}")

    return Bound(f"{-high} <= {{}} <= {high}", check)


def optional(bound: Bound) -> Bound:
    """Return the bound of a value that may be None."""

    def check(field: str, value: Any) -> None:
        if value is not None:
            bound.check(field, value)

    return Bound(f"({{0}} is None or {bound.holds.replace('{}', '{0}')})", check)


def every(bound: Bound) -> Bound:
    """Return the bound of all entries of a list."""

    def check(field: str, values: Iterable[Any]) -> None:
        for value in values:
            bound.check(field, value)

    return Bound(f"all({bound.holds.format('one')} for one in {{}})", check)


def both(first: Bound, second: Bound) -> Bound:
    """Return the bound of a value that has two of them."""

    def check(field: str, value: Any) -> None:
        first.check(field, value)
        second.check(field, value)

    one, other = (bound.holds.replace("{}", "{0}") for bound in (first, second))
    return Bound(f"({one} and {other})", check)


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


def check_integer(field: str, value: int | None, low: int = 0) -> None:
    """Raise ValueError if an optional number is outside `low` to `MAX_INTEGER`."""
    if value is not None and not low <= value <= MAX_INTEGER:
        raise ValueError(f"`{field}` is out of range, allowed is {low} to {MAX_INTEGER}")


def check_rate(field: str, value: float) -> None:
    """Raise ValueError if a rate is negative or larger than `MAX_RATE`."""
    if not 0 <= value <= MAX_RATE:
        raise ValueError(f"`{field}` is {value}, allowed is 0 to {MAX_RATE:g}")


AGE = Bound(f"0 <= {{}} <= {MAX_AGE_S}", check_age)
RANK = between(0, MAX_RANK)
RATE = Bound(f"0 <= {{}} <= {MAX_RATE}", check_rate)
NAME, TEXT, INTEGER = characters(), characters(MAX_TEXT), integer()

MAX_SILENCE_S = 30 * 86_400.0
"""Longest silence of a job's alerts in seconds, 30 days: people forget a longer one."""
