"""Collects the evidence of a drilled job while it hangs: after the verdict, before the job ends."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from watchtower_heartbeat.page import PageError

from agent.dumpers.flight_recorder import NoAnswer, RecordSocket, SocketRefused
from agent.dumpers.process_groups import BadGroups, read_groups
from agent.procfs import Proc
from agent.ranks.pages import find_page
from benchmarks.accuracy.evidence import INCIDENT, MISSING, NO_SOCKET
from watchtower.commands.client import TowerClient
from watchtower.drills.drill_run import DrillRun
from watchtower.wire.bounds import MAX_WORLD_SIZE
from watchtower.wire.collectives import parse_members

HANDLER = "fr_trace_json"
"""Handler for the records of gloo. A CPU build of torch has no handler for the pickle. Both have
equal values, except for the call stacks, which are not used here.
"""

RANK_DEADLINE_S = 3.0
"""Seconds for an answer. A living rank answers in 1 ms; a stopped or dead one never does."""


def collect(run: DrillRun, folder: Path) -> None:
    """Write the incident and, for a torch job, every rank's flight recorder.

    Without an incident (a slow job, a status) nothing is written: there is nothing to judge.
    """
    client = TowerClient(run.environment.tower_url)
    incidents = client.incidents(run.observed.job)
    if not incidents:
        return
    (folder / INCIDENT).write_text(client.export(str(incidents[0]["id"])), encoding="utf-8")
    if run.job.backend == "torch":
        _collect_records(run, folder)


def _collect_records(run: DrillRun, folder: Path) -> None:
    ranks = range(run.job.layout.ranks)
    with ThreadPoolExecutor(len(ranks)) as pool:
        pids = run.job.log.pids
        asked = pool.map(lambda rank: ask_rank(pids.get(rank), rank, folder), ranks)
        missing = {rank: why for rank, why in zip(ranks, asked, strict=True) if why}
    (folder / MISSING).write_text(json.dumps(missing), encoding="utf-8")


def ask_rank(pid: int | None, rank: int, folder: Path, wait_s: float = RANK_DEADLINE_S) -> str:
    """Write a rank's records and groups. Return why that failed, else an empty string."""
    proc = Proc()
    stat = proc.stat(pid) if pid is not None else None
    if pid is None or stat is None:
        return "its process is gone"
    deadline = time.monotonic() + wait_s
    try:
        page = find_page(proc, pid, stat.start_time).page
        view = page.read() if page else None
        if view is None or not view.record_socket:
            return NO_SOCKET
        raw = RecordSocket(pid=pid, path=view.record_socket).ask(proc, HANDLER, deadline)
        groups = read_groups(proc, pid, view.groups_descriptor)
    except (PageError, SocketRefused, NoAnswer, BadGroups, OSError) as error:
        return f"no answer: {error}"
    if raw is None:
        return f"its torch has no handler {HANDLER}"
    members = [(group.name, parse_members(group.members, MAX_WORLD_SIZE)) for group in groups]
    (folder / f"records_{rank}.json").write_bytes(raw)
    (folder / f"groups_{rank}.json").write_text(json.dumps(members), encoding="utf-8")
    return ""
