"""Launchers that wait for other nodes before they start ranks: torchrun and what is built on it.

What a launcher waits for is in its command line, else in its variables (PET_*). One that needs no
other node does not wait: its program may have no ranks at all, as that of `accelerate launch` on
one GPU. Its ranks do not exist yet, so their environment is derived from it: the job has the name
that its ranks will give it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from agent.ranks.launchers import naming_variables
from agent.ranks.process_table import Process
from watchtower.service.toml_tables import read_table
from watchtower.wire import drills
from watchtower.wire.bounds import MAX_NAME, MAX_RANKS_PER_NODE, MAX_TEXT
from watchtower.wire.report import MAX_NODES, WaitingLauncher
from watchtower.writing.printable import printable

MAX_WORDS = 64
"""Words of a command line that are searched for options. The options of launchers come first."""

RUN_ID = "TORCHELASTIC_RUN_ID"

DEFAULT_PORT = "29500"
"""torchrun's port, also behind an endpoint without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The table `rendezvous_launchers` of `data/launchers.toml`."""

    names: Mapping[str, str]
    """The name of a launcher, by program and module."""
    options: Mapping[str, tuple[str, ...]]
    """The options and variables of each value."""
    node_lists: tuple[str, ...]
    """Variables of schedulers with the names of the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """What the command line and the environment of a launcher show."""

    launcher: str
    variables: Mapping[str, str] = field(repr=False)
    """The variables that name a job, as its ranks will have them."""
    least: int
    most: int
    node_list: str
    endpoint: str
    processes: int
    """Ranks that it will start on this node; 0 if that is not known."""

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
            launcher=self.launcher,
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
def load_facts() -> Facts:
    """Read the table. The result is cached."""
    table = read_table("agent.data", "launchers")["rendezvous_launchers"]
    return Facts(
        names=table["names"],
        options={name: tuple(words) for name, words in table["options"].items()},
        node_lists=tuple(table["node_lists"]),
    )


def read_rendezvous(command: Sequence[str], environment: Mapping[str, str]) -> Rendezvous | None:
    """Return what a launcher waits for; None for a program that waits for no other node."""
    launcher = _find_name(command)
    if not launcher:
        return None
    found = _read_options(command[:MAX_WORDS], environment)
    least, most = _read_range(found.get("nodes", ""))
    if least < 2:
        return None
    host, _, port = found.get("endpoint", "").partition(":")
    host, port = host or found.get("address", ""), port or found.get("port", DEFAULT_PORT)
    given = {name: environment[name] for name in naming_variables() if name in environment}
    return Rendezvous(
        launcher=launcher,
        variables={
            **given,
            **({RUN_ID: found["id"]} if found.get("id") else {}),
            **({"MASTER_ADDR": host, "MASTER_PORT": port} if host else {}),
        },
        least=least,
        most=most,
        node_list=_first(environment, load_facts().node_lists),
        endpoint=f"{host}:{port}" if host else "",
        processes=min(_read_range(found.get("processes", ""))[0], MAX_RANKS_PER_NODE),
    )


def _find_name(command: Sequence[str]) -> str:
    names = load_facts().names
    words = [os.path.basename(word) for word in command[:2]]
    if len(words) > 1 and names.get(words[1]):
        return names[words[1]]
    if "-m" in command[:8]:
        module = command[command.index("-m") + 1 : command.index("-m") + 2]
        return names.get(module[0], "") if module else ""
    return names.get(words[0], "") if words else ""


def _read_options(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the options, the first of equal ones. Options of the program that the
    launcher starts come behind its own.
    """
    known = {word: name for name, each in load_facts().options.items() for word in each}
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


def _first(environment: Mapping[str, str], names: Iterable[str]) -> str:
    return next(filter(None, (environment.get(name, "").strip() for name in names)), "")
