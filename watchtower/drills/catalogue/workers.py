"""Ranks that wait for their child: the worker process that prefetches batches."""

from __future__ import annotations

import os
import signal

from watchtower.drills.catalogue.stalls import event
from watchtower.drills.drill import Drill
from watchtower.drills.drill_run import DrillRun
from watchtower.drills.setup import names


def _stop(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    worker = run.job.worker(run.rank)
    run.want_mentioned(str(worker))
    run.fault(f"the worker of rank {run.rank} gets SIGSTOP")
    os.kill(worker, signal.SIGSTOP)
    run.wait_for_final()


def _lock(run: DrillRun) -> None:
    run.launch()
    run.wait_for_fault()
    run.want_mentioned(str(run.job.worker(run.rank)))
    run.wait_for_final()


LOADER_WORKER = Drill(
    name="loader_worker",
    shows="the process that prefetches batches for one rank is stopped",
    expected=names("dataloader_stall", domain="operator"),
    plan=lambda _: {"workers": 1},
    act=_stop,
)

LOADER_WORKER_LOCK = Drill(
    name="loader_worker_lock",
    shows="the process that prefetches batches for one rank waits for a lock that stays locked",
    expected=names("dataloader_stall", domain="user_code"),
    plan=event("keep_index_lock", workers=1),
    act=_lock,
)
