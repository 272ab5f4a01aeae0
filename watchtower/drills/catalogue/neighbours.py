"""A normal hang beside another job: one with the same name, or the processes of an attacker.

The attackers are of another user: names, clocks, claims, floods, dumps. Then the same job hangs
twice: first alone, then during the attack. The second verdict may be later by at most
`neighbour_delay_s`.
"""

from __future__ import annotations

import json
import os
import signal

from watchtower.drills.catalogue.stalls import event
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.errors import DrillError
from watchtower.drills.launching import JOB_MARK, MARK, job_mark, node_mark
from watchtower.drills.setup import names

USER = 65534
"""The user id of the attackers, the user `nobody` on most systems. The job's processes run as
root.
"""
FEWEST_JOBS = 8
"""Jobs of the attackers that the tower must know. With fewer there was no attack."""


def _hang_with_a_taken_name(run: DrillRun) -> None:
    other = run.launch_beside("first", same_name=True, events=[])
    run.wait_until_known(other)
    first = run.find_job(other)
    run.launch()
    run.wait_until_known(run.job)
    run.follow(run.job)
    run.note(f"two launches of {run.job.name}: {first} and {run.observed.job}")
    run.wait_for_fault()
    run.wait_for_final()
    run.check_series()
    if run.find_job(other) != first:
        run.complain(f"the first job is not {first} any more")
    if not run.is_calm(other):
        run.complain("the first job is not healthy")


def _attack(run: DrillRun) -> None:
    if os.geteuid() != 0:
        raise DrillError("this drill must run as root, because it starts processes of another user")
    usual = run.see_beside()
    run.note(
        f"alone: {usual.fault_to_verdict_s} s from the fault to the verdict, "
        f"{usual.fault_to_hung_s} s to the incident"
    )
    run.launch()
    # The first process with a name owns it. To take it first is not the attack of this drill.
    run.wait_until_known(run.job)
    found = run.set_up("neighbours.py", json.dumps(_plan(run)))
    run.note(f"{len(found['pids'])} processes of user {USER} attack")
    run.wait_for_fault()
    run.signal_fixtures(signal.SIGUSR1)
    run.wait_for_final()
    jobs = run.count_jobs(f"uid:{USER}")
    if jobs < FEWEST_JOBS:
        raise DrillError(f"there was no attack: the tower knows {jobs} jobs of user {USER}")
    run.note(f"the tower knows {jobs} jobs of user {USER}")
    run.check_series()
    run.compare(usual)


def _plan(run: DrillRun) -> dict[str, object]:
    """Return what the attackers know: everything that a local user can see."""
    job = run.job
    environments = [
        {
            MARK: node_mark(run.environment.folder, node),
            JOB_MARK: job_mark(job.folder, job.name),
        }
        for node in range(job.layout.nodes)
    ]
    words = {"user": USER, "job": job.name, "ranks": job.layout.ranks}
    return {**words, "environments": environments}


SAME_NAME_TWICE = Drill(
    name="same_name_twice",
    shows="one rank sleeps while it fetches a batch, while an older job of the same user with the"
    " same name trains",
    expected=names("dataloader_stall", domain="data"),
    plan=event("slow_storage"),
    act=_hang_with_a_taken_name,
)

HOSTILE_NEIGHBOUR = Drill(
    name="hostile_neighbour",
    shows="one rank sleeps while it fetches a batch, while another user's processes attack"
    " (needs root)",
    expected=names("dataloader_stall", domain="data"),
    plan=event("slow_storage"),
    # So that the attack is in progress.
    warmups=2,
    attacked=True,
    act=_attack,
)
