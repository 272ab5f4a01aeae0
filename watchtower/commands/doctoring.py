"""`watchtower doctor JOB`: what is wrong with a job and its nodes, and the first moves.

Each move has a mark if it is known to be right, else the command that answers it. `watchtower
doctor --between NODE NODE` tests the path between two nodes: see `show_path`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import select
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watchtower.commands.asking import find_job
from watchtower.commands.client import DONE, TROUBLE, ClientError, TowerClient
from watchtower.commands.printing import as_json, clean_lines
from watchtower.commands.texts import write_advisories
from watchtower.writing.text import quote_name

RIGHT, WRONG, UNKNOWN = "[x]", "[!]", "[?]"

MAX_GROUPS = 4
"""Values of one difference that are shown. `--json` has sixteen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the tower says of one job."""

    job: Mapping[str, Any]
    advisories: Mapping[str, Any]
    configuration: Mapping[str, Any]

    def values(self, name: str) -> list[str]:
        """Return the values of one name of the configuration; empty if it is not known."""
        found = (each for each in self.configuration["items"] if each["name"] == name)
        return [group["value"] for each in found for group in each["value_groups"]]

    def has(self, *names: str) -> bool:
        """Return whether one of these advisories is there."""
        return any(each["advisory"] in names for each in self.advisories["items"])

    @property
    def knows_configuration(self) -> bool:
        """Whether the configuration of every live rank is known."""
        known, count = self.configuration["known_ranks"], self.configuration["rank_count"]
        return bool(count) and known == count


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One of the first moves."""

    asks: str
    check: Callable[[Answers], bool | None]
    """Whether it is as it should be; None if that is not known."""
    command: str
    """What answers it, or shows more."""


def _are_all_reported(answers: Answers) -> bool | None:
    states = answers.job["rank_states"]
    live = [each for each in states if each["ended"] is None]
    return len(live) == int(answers.job["world_size"])


def _reports_every_node(answers: Answers) -> bool | None:
    return not any(each["limits"] for each in answers.job["nodes"])


def _is_equal(*names: str) -> Callable[[Answers], bool | None]:
    def check(answers: Answers) -> bool | None:
        found = [values for name in names if (values := answers.values(name))]
        if not found or not answers.knows_configuration:
            return None
        return all(len(values) == 1 for values in found)

    return check


def _has_equal(beginning: str) -> Callable[[Answers], bool | None]:
    def check(answers: Answers) -> bool | None:
        if not answers.knows_configuration:
            return None
        of_family = [n for n in answers.configuration["items"] if n["name"].startswith(beginning)]
        return not any(
            len(n["value_groups"]) > 1 and n["difference"] != "normal" for n in of_family
        )

    return check


def _is_memlock_free(answers: Answers) -> bool | None:
    values = answers.values("limit memlock")
    return set(values) == {"unlimited"} if values else None


def _has_driver(answers: Answers) -> bool:
    """Return whether there are GPUs: only their collectors see what is wrong with them."""
    return bool(answers.values("nvidia driver"))


def _has_stepped(answers: Answers) -> bool:
    return answers.job["step"] is not None


def _is_free_of(
    *advisories: str, known: Callable[[Answers], bool] = _has_driver
) -> Callable[[Answers], bool | None]:
    """Return a check that there is none of these advisories; `known` where that can be known."""

    def check(answers: Answers) -> bool | None:
        if answers.has(*advisories):
            return False
        return True if known(answers) else None

    return check


def _has_recorder(answers: Answers) -> bool | None:
    """Return whether torch's recorder is on. If nothing is set, its release decides."""
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    values = [value for name in names for value in answers.values(name)]
    if "0" in values:
        return False
    return True if values and "not set" not in values else None


MOVES: tuple[Move, ...] = (
    Move(
        asks="every rank of the world size lives",
        check=_are_all_reported,
        command="watchtower why {job}",
    ),
    Move(
        asks="the agents see all they can on every node",
        check=_reports_every_node,
        command="watchtower-agent doctor --about agent   (on the node)",
    ),
    Move(
        asks="all ranks meet at one address, with one world size",
        check=_is_equal("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"),
        command="tr '\\0' '\\n' < /proc/PID/environ | grep -E 'MASTER_|WORLD_SIZE'",
    ),
    Move(
        asks="all ranks have one NCCL and one torch",
        check=_is_equal("nccl", "torch"),
        command='python -c "import torch; print(torch.__version__, torch.cuda.nccl.version())"',
    ),
    Move(
        asks="NCCL is set up alike on all ranks",
        check=_has_equal("NCCL_"),
        command="NCCL_DEBUG=INFO, and compare the lines `NCCL_... set by environment`",
    ),
    Move(
        asks="all nodes have one driver",
        check=_is_equal("nvidia driver"),
        command="nvidia-smi --query-gpu=driver_version --format=csv   (on each node)",
    ),
    Move(
        asks="each interface has one MTU on all nodes",
        check=_has_equal("mtu "),
        command="ip link; ping -M do -s 8972 OTHER_NODE   (on each node)",
    ),
    Move(
        asks="memory may be locked without a limit (InfiniBand, RoCE)",
        check=_is_memlock_free,
        command="grep 'Max locked' /proc/PID/limits; LimitMEMLOCK=infinity in the unit of slurmd",
    ),
    Move(
        asks="each rank has its own GPU",
        check=_is_free_of("shared_gpu"),
        command="nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv",
    ),
    Move(
        asks="the fabric manager runs, and every GPU answers",
        check=_is_free_of("fabric_down", "gpu_lost"),
        command="watchtower-agent doctor --about node   (on each node)",
    ),
    Move(
        asks="no GPU and no link has errors",
        check=_is_free_of("gpu_memory", "gpu_memory_wears", "gpu_links", "network_link"),
        command="nvidia-smi -q -d ECC,ROW_REMAPPER; ibstat",
    ),
    Move(
        asks="the loss is a number, and no steps are lost",
        check=_is_free_of("nan_loss", "lost_steps", known=_has_stepped),
        command="beat(step, loss=...) in the loop: docs/heartbeat.md",
    ),
    Move(
        asks="torch records its collectives, so that a hang names the call (a few MB a rank)",
        check=_has_recorder,
        command="export TORCH_FR_BUFFER_SIZE=2000; before torch 2.9: TORCH_NCCL_TRACE_BUFFER_SIZE",
    ),
    Move(
        asks="no firewall drops what the ranks send",
        check=lambda _: None,
        command="nft list ruleset; nstat -az | grep -i drop   (on each node)",
    ),
)
"""In the order in which people make them."""


def write_moves(answers: Answers, results: Sequence[bool | None]) -> str:
    """Return the first moves with their marks; a move that is not right has its command."""
    lines, job = [], quote_name(str(answers.job["job"])) or "JOB"
    for move, result in zip(MOVES, results, strict=True):
        mark = UNKNOWN if result is None else RIGHT if result else WRONG
        lines.append(f"{mark} {move.asks}")
        if mark != RIGHT:
            lines.append(f"      {move.command.replace('{job}', job)}")
    return "\n".join(lines)


def write_differences(configuration: Mapping[str, Any]) -> str:
    """Return the values that are not the same everywhere, except those that may differ."""
    lines = []
    for each in configuration["items"]:
        if len(each["value_groups"]) == 1 or each["difference"] == "normal":
            continue
        who = "nodes" if each["is_of_nodes"] else "ranks"
        lines.append(f"{each['name']} ({each['difference']})")
        lines += [f"    {group['value']}: {who} {group['members']}" for group in _few(each)]
    known, count = configuration["known_ranks"], configuration["rank_count"]
    head = f"Configuration of {known} of {count} ranks is known"
    return "\n".join([f"{head}: {'differences' if lines else 'no difference'}", *lines])


def _few(each: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    groups: Sequence[Mapping[str, Any]] = each["value_groups"]
    return groups[:MAX_GROUPS]


def show_doctor(client: TowerClient, args: argparse.Namespace) -> int:
    """Print what is wrong with a job, in what its ranks differ, and the first moves.

    Returns 1 if there is an advisory or a move that is known to be wrong.
    """
    job = find_job(client, args.job)
    answers = Answers(
        job=client.job(job),
        advisories=client.list_advisories(job),
        configuration=client.configuration(job),
    )
    results = [move.check(answers) for move in MOVES]
    moves = write_moves(answers, results)
    parts = [
        write_advisories(dict(answers.advisories), time.time()),
        write_differences(answers.configuration),
        f"First moves ({RIGHT} known to be right, {WRONG} wrong, {UNKNOWN} not known):\n{moves}",
    ]
    if args.json:
        advised, configured = answers.advisories, answers.configuration
        print(as_json({"advisories": advised, "configuration": configured}))
    else:
        print("\n\n".join(map(clean_lines, parts)))
    return TROUBLE if answers.advisories["items"] or False in results else DONE


THROUGH = "ssh -o BatchMode=yes {node}"
"""Starts a command on a node, with the rights of the person who runs the test."""

AGENT = ("watchtower-agent", "path")

OFFER_S, TEST_S = 20.0, 120.0
"""Seconds until the second node answers, and for the test: 8 s for each address that is broken."""

MAX_ANSWER = 1 << 20
"""Characters of an answer that are read."""

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")
"""A node that no program takes for an option."""


def show_path(args: argparse.Namespace) -> int:
    """Print what gets through from one node to another; returns 1 if something does not.

    Both nodes run `watchtower-agent path` for some seconds, with the rights of the caller: no
    agent opens a port, and no tower can make nodes send anything. Raises ClientError.
    """
    first, second = args.between
    if not (_NODE.fullmatch(first) and _NODE.fullmatch(second)):
        raise ClientError("a name of a node has letters, digits, dots and dashes")
    interface = ("--interface", args.interface) if args.interface else ()
    with _started(args.through, second, *interface) as answering:
        offer = _read_offer(answering, second)
        with _started(args.through, first, "--ask") as asking:
            try:
                output, _ = asking.communicate(offer, TEST_S)
            except subprocess.TimeoutExpired as error:
                raise ClientError(f"{first} has no result after {TEST_S:.0f} s") from error
    found = _read_json(output, first)
    if args.json:
        print(as_json(found))
    else:
        lines = [f"From {first} to {second}:"]
        for each in found["results"]:
            lines.append(f"{each['state'].upper():<5} {each['check']}: {each['text']}")
            lines += [f"      fix: {each['fix']}"] if each["fix"] else []
        print("\n".join(clean_lines(each) for each in lines))
    return TROUBLE if found["state"] == "fail" else DONE


@contextlib.contextmanager
def _started(through: str, node: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start the agent's part of the test on a node; its standard input is closed at the end."""
    command = [each.replace("{node}", node) for each in shlex.split(through)]
    try:
        process = subprocess.Popen(
            [*command, *AGENT, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    except OSError as error:
        raise ClientError(f"{' '.join(command)}: {error.strerror}") from error
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _read_offer(process: subprocess.Popen[str], node: str) -> str:
    """Return the first line of the node that answers."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], OFFER_S)
    line = process.stdout.readline(MAX_ANSWER) if ready else ""
    if not line:
        raise ClientError(f"`watchtower-agent path` did not start on {node}: --through starts it")
    return line


def _read_json(output: str, node: str) -> dict[str, Any]:
    try:
        found = json.loads(output[:MAX_ANSWER])
        return {"state": str(found["state"]), "results": list(found["results"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ClientError(f"`watchtower-agent path` has no result on {node}") from error
