"""`watchtower requeue JOB --without-suspect`: starts a hung job of Slurm again, on other nodes.

It is a command of the job's user, with the user's rights in Slurm. It does what the page of an
incident prints, once for an incident, and only if the verdict is fit to be acted upon.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from typing import NamedTuple

from watchtower.commands.acting import user_name
from watchtower.commands.asking import verdict_of
from watchtower.commands.client import DONE, TROUBLE, ClientError, TowerClient
from watchtower.commands.contexts import add_tower, make_client
from watchtower.commands.handing_over import add_guards, read_blamed, read_guards
from watchtower.commands.printing import clean
from watchtower.incidents.handover import decide
from watchtower.service.command_line import Parser, name_or_id
from watchtower.views.scheduler_commands import ELSEWHERE, requeue_without

COMMAND_S = 60.0
"""Seconds for one command of Slurm: its controller may be busy."""

PENDING_S = 300.0
"""Seconds until a requeued job is pending: when its last process has ended, on all its nodes."""

CHECK_S = 1.0
"""Seconds between two checks of its state."""

_ID = re.compile(r"\d{1,12}(_\d{1,9})?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")
"""Names that Slurm takes for themselves: no list of nodes, no option."""

_FIELD = re.compile(r"(?:^|\s)(ExcNodeList|Comment)=(.*?)(?=\s[A-Za-z][\w/:]*=|$)")


class Plan(NamedTuple):
    """What is to be done to a job of Slurm."""

    job: str
    node: str
    comment: str
    incident: str


def add_requeue(parser: Parser) -> None:
    """Add the options of `requeue`."""
    add = parser.add_argument
    add("job", type=name_or_id, help="name of the job, or its id in Slurm")
    add(
        "--without-suspect",
        action="store_true",
        required=True,
        help="exclude the node that the verdict blames",
    )
    add("--yes", action="store_true", help="do it; otherwise only print the commands")
    add_guards(parser, "gpu, node, network and storage")
    add_tower(parser)
    parser.set_defaults(run=requeue)


def requeue(args: argparse.Namespace) -> int:
    """Requeue the job without the node that the verdict blames; returns the exit code."""
    plan = make_plan(make_client(args), args)
    shown = run_slurm("scontrol", "show", "job", "-o", plan.job)
    fields = dict(_FIELD.findall(shown))
    if f"incident {plan.incident}" in fields.get("Comment", ""):
        print("nothing was done: this incident has requeued the job already", file=sys.stderr)
        return TROUBLE
    excluded = [each for each in fields.get("ExcNodeList", "").split(",") if each != "(null)"]
    nodes = ",".join(dict.fromkeys([*filter(None, excluded), plan.node]))
    hold, change, release = requeue_without(plan.job, nodes)
    if not args.yes:
        for words in (hold, change, release):
            print(" ".join(words))
        print("nothing was done: add --yes", file=sys.stderr)
        return DONE
    run_slurm(*hold)
    print(f"{plan.job} is requeued and held")
    wait_until_pending(plan.job)
    run_slurm(*change, f"Comment={plan.comment}")
    run_slurm(*release)
    print(f"{plan.job} is released, without {plan.node}: {clean(plan.comment)}")
    return DONE


def make_plan(client: TowerClient, args: argparse.Namespace) -> Plan:
    """Return what to do. Raises ClientError with the reason if nothing is to be done."""
    verdict = verdict_of(client, args.job)
    name, incident = str(verdict["job"]), str(verdict.get("incident") or "")
    if not incident:
        raise ClientError(f"{clean(name)} has no incident: it is {verdict['status']}")
    labels = next((one.get("labels") for one in client.jobs() if one["job"] == name), None) or {}
    job = str(labels.get("scheduler_id", ""))
    if labels.get("scheduler") != "slurm" or not _ID.fullmatch(job):
        raise ClientError(f"{clean(name)} is not a job of Slurm")
    blamed = read_blamed(client.incident(incident), time.time())
    node = blamed.nodes[0] if blamed.nodes else ""
    if not _NODE.fullmatch(node):
        raise ClientError("the verdict blames no node: `scontrol requeue` starts it again anywhere")
    found = decide(
        node,
        [blamed],
        node_count=1,
        is_silenced=False,  # a silence is about alerts and drains, and the user asks for this
        guards=read_guards(args, ELSEWHERE),
    )
    if not found.acts:
        held = "; ".join(found.held) or f"its domain is {blamed.domain.value}"
        raise ClientError(f"nothing was done, because another node may not help: {held}")
    return Plan(job, node, f"{found.reason}, requeued by {user_name()}", incident)


def wait_until_pending(job: str) -> None:
    """Wait for it: the list of excluded nodes of a job that runs cannot change."""
    until = time.monotonic() + PENDING_S
    while run_slurm("squeue", "-h", "-j", job, "-o", "%T").strip() != "PENDING":
        if time.monotonic() > until:
            raise ClientError(
                f"{job} is requeued and held, and still has processes: when it is pending, run "
                f"`scontrol update JobId={job} ExcNodeList=...` and `scontrol release {job}`"
            )
        time.sleep(CHECK_S)


def run_slurm(*words: str) -> str:
    """Return the output of a command of Slurm. Raises ClientError."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=COMMAND_S, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClientError(f"cannot run {words[0]}: {error}") from None
    if done.returncode:
        raise ClientError(f"`{' '.join(words)}` failed: {clean(done.stderr.strip())}")
    return done.stdout
