"""Launchers that wait before there are ranks: for other nodes, for a head, or for ranks elsewhere.

What a launcher waits for is in its command line, else in its variables. One that needs no other
node does not wait: its program may have no ranks at all, as that of `accelerate launch` on one GPU.
Its ranks do not exist yet, so their environment is derived from it: the job has the name that its
ranks will give it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

from agent.ranks.launchers import is_python, naming_variables
from agent.ranks.process_table import Process
from watchtower.service.toml_tables import read_table
from watchtower.wire import drills
from watchtower.wire.bounds import MAX_NAME, MAX_RANKS_PER_NODE, MAX_TEXT
from watchtower.wire.report import FOR_HEAD, FOR_NODES, FOR_RANKS, MAX_NODES, WaitingLauncher
from watchtower.writing.printable import printable

MAX_WORDS = 64
"""Words of a command line that are searched for options. The options of launchers come first."""

RUN_ID = "TORCHELASTIC_RUN_ID"

DEFAULT_PORT = "29500"
"""torchrun's port, also behind an endpoint without one."""


MAX_BELOW = 64
"""Processes below a launcher that are asked whether it has started something."""

PROGRAMS = ("python", "torchrun", "accelerate", "deepspeed", ".py")
"""Parts of a word of the command line of a launcher that shows a training program. srun and mpirun
start any program, most of which have no ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A launcher in the table `waiting_launchers` of `data/launchers.toml`."""

    name: str
    programs: tuple[str, ...]
    waits_for: str
    """`FOR_NODES`, `FOR_HEAD` or `FOR_RANKS`."""
    options: Mapping[str, tuple[str, ...]]
    """The options and variables of each value."""
    started: str = ""
    """Begin of the name of a program that runs below it when it waits no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """What the command line and the environment of a launcher show."""

    row: Row
    variables: Mapping[str, str] = field(repr=False)
    """The variables that name a job, as its ranks will have them."""
    least: int
    most: int
    node_list: str
    endpoint: str
    processes: int
    """Ranks that it will start on this node; 0 if that is not known."""

    def is_answered(self, process: Process, with_rank: Set[int]) -> bool:
        """Return whether a process below the launcher shows that it waits no more.

        `with_rank`: the pids with the variables of a rank. Their program need not train.
        """
        waits_for_ranks, started = self.row.waits_for == FOR_RANKS, self.row.started
        return any(
            (waits_for_ranks and each.pid in with_rank)
            or (bool(started) and each.comm.startswith(started))
            for each in islice(process.descendants(), MAX_BELOW)
        )

    def describe(
        self, process: Process, *, owner: str, name: str, marks_drills: bool
    ) -> WaitingLauncher:
        """Return the message about the process of the launcher, with bounded text.

        `name`: of its job.
        """
        is_drill = marks_drills and drills.VARIABLE in self.variables
        return WaitingLauncher(
            job=drills.mark_drill(name) if is_drill else name,
            owner=owner,
            launcher=self.row.name,
            waits_for=self.row.waits_for,
            pid=process.pid,
            start_time=process.start_time,
            waits_s=process.age_s,
            nodes=self.least,
            most_nodes=max(self.least, self.most),
            node_list=printable(self.node_list, MAX_TEXT),
            endpoint=printable(self.endpoint, MAX_NAME),
            processes=self.processes,
            run_id=printable(self.variables.get(RUN_ID, ""), MAX_NAME),
        )


@cache
def load_rows() -> tuple[Row, ...]:
    """Read the table. The result is cached."""
    return tuple(
        Row(
            name=row["name"],
            programs=tuple(row["programs"]),
            waits_for=row["waits_for"],
            options={name: tuple(words) for name, words in row["options"].items()},
            started=row.get("started", ""),
        )
        for row in read_table("agent.data", "launchers")["waiting_launchers"]
    )


def read_rendezvous(command: Sequence[str], environment: Mapping[str, str]) -> Rendezvous | None:
    """Return what a launcher waits for; None for a program that waits for no other node."""
    row = _find_row(command)
    if row is None:
        return None
    found = _read_options(row, command[:MAX_WORDS], environment)
    least, most = _count_nodes(row, found)
    if least < 2 or (row.waits_for == FOR_RANKS and not _trains(command)):
        return None
    host, _, port = found.get("endpoint", "").partition(":")
    host, port = host or found.get("address", ""), port or found.get("port", DEFAULT_PORT)
    given = {name: environment[name] for name in naming_variables() if name in environment}
    return Rendezvous(
        row=row,
        variables={
            **given,
            **({RUN_ID: found["id"]} if found.get("id") else {}),
            **({"MASTER_ADDR": host, "MASTER_PORT": port} if host else {}),
        },
        least=least,
        most=most,
        # "n1:4,n2:4" are the nodes with their slots.
        node_list=",".join(w.partition(":")[0] for w in found.get("hosts", "").split(",")),
        endpoint=f"{host}:{port}" if host else "",
        processes=min(_read_range(found.get("processes", ""))[0], MAX_RANKS_PER_NODE),
    )


def _count_nodes(row: Row, found: Mapping[str, str]) -> tuple[int, int]:
    """Return the least and most nodes that the launcher needs."""
    if row.waits_for == FOR_HEAD:
        is_known = found.get("endpoint", "auto") not in ("", "auto", "local")
        return (2, 2) if is_known else (0, 0)
    if row.waits_for == FOR_NODES or "nodes" in found:
        return _read_range(found.get("nodes", ""))
    # The tower counts the names: a list of a scheduler may have ranges.
    is_list = any(each in found.get("hosts", "") for each in ",[")
    return (2, 2) if is_list else (0, 0)


def _trains(command: Sequence[str]) -> bool:
    words = command[2 if is_python(command) else 1 : MAX_WORDS]
    return any(each in word for word in words for each in PROGRAMS)


def _find_row(command: Sequence[str]) -> Row | None:
    names = list(_list_names(command))
    return next((row for row in load_rows() if any(n in row.programs for n in names)), None)


def _list_names(command: Sequence[str]) -> Iterable[str]:
    """Yield what the program may be called in the table: alone, and with its command."""
    at = 1 if is_python(command) else 0
    if at and "-m" in command[:8]:
        at = command.index("-m") + 1
    words = [os.path.basename(word) for word in command[at : at + 2]]
    if words:
        yield from (words[0], " ".join(words))


def _read_options(row: Row, words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the options, the first of equal ones. Options of the program that the
    launcher starts come behind its own.
    """
    known = {word: name for name, each in row.options.items() for word in each}
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option[:1] == "-" and option in known:
            value = value if equals else "".join(words[at + 1 : at + 2])
            found.setdefault(known[option], value.strip())
    for word, name in known.items():
        if word[0] != "-" and (value := environment.get(word, "").strip()):
            found.setdefault(name, value)
    return found


def _read_range(text: str) -> tuple[int, int]:
    """Return the least and most nodes of "2" or "2:4"; zeros if it is neither."""
    least, _, most = text.partition(":")
    numbers = [each for each in (least, most or least) if each.isascii() and each.isdigit()]
    if len(numbers) < 2:
        return 0, 0
    first, last = (min(int(each[:9]), MAX_NODES) for each in numbers)
    return first, last
