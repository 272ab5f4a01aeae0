"""Drills for which hosts must queue their work on a device: they exist on `queued` only."""

from __future__ import annotations

import socket

from watchtower.drills.catalogue.pauses import AFTERWARDS_STEPS, SETTLE_S, plan_straggler
from watchtower.drills.catalogue.stalls import event, happen
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.setup import CALM, FINAL, Expected, Plan, Variables, names

ONLY = ("queued",)
NOT_SHOWN_BY_HOSTS = Expected(cause="symmetric_hang", or_causes=("unknown",), statuses=FINAL)
"""All hosts wait alike: they alone do not show which device or link it is."""
READER = 0
"""The rank that alone reads the loss in rank0_reads_loss."""


def _not_reader(rank: int) -> int:
    return max(rank, READER + 1)


def _plan_reader(_: Variables) -> Plan:
    return {"reader": READER}


def _plan_reader_hung(variables: Variables) -> Plan:
    plan = event("slow_storage")(variables)
    rank = _not_reader(variables.rank)
    events = [{"act": "slow_storage", "rank": rank, "when": "before_step", "step": variables.step}]
    return {**plan, "reader": READER, "events": events}


def _plan_first_collective(variables: Variables) -> Plan:
    return {"first_collective_s": variables.settings.first_collective_s}


def _plan_recompile(variables: Variables) -> Plan:
    return event("recompile", arguments={"seconds": variables.settings.recompile_s})(variables)


def _train(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.watch_for(run.settings.calm_s)
    run.wait_for_status(CALM, SETTLE_S)


def _cut(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.cut()
    run.fault(f"the link of rank {run.rank} is cut, and all ranks wait")
    run.wait_for_final()


def _recompile(run: DrillRun) -> None:
    run.launch()
    step = run.variables.step + AFTERWARDS_STEPS
    run.wait_for_step(step, extra_s=2 * run.settings.recompile_s)
    run.wait_for_status(CALM, SETTLE_S)


def _begin_late(run: DrillRun) -> None:
    run.launch()
    run.wait_for_step(AFTERWARDS_STEPS, extra_s=2 * run.settings.first_collective_s)
    run.wait_for_status(CALM, SETTLE_S)


def _train_slowly(run: DrillRun) -> None:
    settings = run.settings
    run.launch(step_s=settings.device_step_s)
    extra_s = 2 * settings.device_steps * settings.device_step_s
    run.wait_for_step(settings.device_steps, extra_s=extra_s)
    run.wait_for_status(CALM, SETTLE_S)


def _serve(run: DrillRun) -> None:
    settings = run.settings
    run.launch()
    with socket.socket(socket.AF_UNIX) as client:
        run.wait_until(lambda: _has_met(client, run), settings.start_deadline_s, "server")
        _request(client, run, settings.warmup_steps)
        run.watch_for(settings.idle_s)
        progress = (run.observed.view or {}).get("progress")
        if progress != "idle":
            run.complain(f"progress {progress}, expected idle")
        _request(client, run, 1)
    run.wait_for_status(CALM, SETTLE_S)


def _has_met(client: socket.socket, run: DrillRun) -> bool:
    try:
        client.connect(str(run.job.folder / "requests"))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    return True


def _request(client: socket.socket, run: DrillRun, count: int) -> None:
    """Send requests, each when the one before is answered."""
    for _ in range(count):
        step = run.job.log.step
        client.sendall(b"request")
        run.wait_until(
            lambda: run.job.log.step != step,  # noqa: B023 -- called in this round only
            run.settings.start_deadline_s,
            "answer of the server",
        )


DEVICE_STUCK = Drill(
    name="device_stuck",
    shows="one device runs a kernel that never ends, and the hosts of all ranks wait",
    expected=NOT_SHOWN_BY_HOSTS,
    plan=event("stick_device"),
    backends=ONLY,
    blames=lambda _: (),
    act=happen,
)

SLOW_DEVICE = Drill(
    name="slow_device",
    shows="one device takes three times as long for each step, and the hosts of all ranks wait",
    expected=Expected(cause="job_slow", statuses=("slow",)),
    plan=plan_straggler,
    warmups=3,
    backends=ONLY,
    blames=lambda _: (),
    act=happen,
)

LINK_CUT = Drill(
    name="link_cut",
    shows="the link of one rank is cut, and the hosts of all ranks wait (needs root)",
    expected=NOT_SHOWN_BY_HOSTS,
    backends=ONLY,
    networked=ONLY,
    blames=lambda _: (),
    act=_cut,
)

RANK0_READS_LOSS_HUNG = Drill(
    name="rank0_reads_loss_hung",
    shows="only rank 0 reads the loss, so it has queued less; another rank sleeps in its data",
    expected=names("dataloader_stall", domain="data"),
    plan=_plan_reader_hung,
    backends=ONLY,
    blames=lambda rank: (_not_reader(rank),),
    act=happen,
)

FEWER_MICRO_BATCHES = Drill(
    name="fewer_micro_batches",
    shows="one rank has one micro-batch fewer in a step, and so calls one collective less",
    expected=names("mismatched_collective", domain="user_code"),
    plan=event("skip_micro_batch", exchanges=["count_tokens", "compare_progress"]),
    backends=ONLY,
    act=happen,
)

RANK0_READS_LOSS = Drill(
    name="rank0_reads_loss",
    shows="only rank 0 reads the loss and waits for the device; the others run ahead",
    expected=Expected(),
    plan=_plan_reader,
    backends=ONLY,
    act=_train,
)

GRAPH_REPLAY = Drill(
    name="graph_replay",
    shows="a captured graph is replayed: no collective is recorded any more",
    expected=Expected(),
    plan=lambda _: {"log": "frozen"},
    backends=ONLY,
    act=_train,
)

RECOMPILE = Drill(
    name="recompile",
    shows="one rank compiles again for a minute, and the others wait for it",
    expected=Expected(),
    plan=_plan_recompile,
    backends=ONLY,
    act=_recompile,
)

FIRST_COLLECTIVE = Drill(
    name="first_collective",
    shows="the first collective takes 90 s, and all hosts wait for it",
    expected=Expected(),
    plan=_plan_first_collective,
    backends=ONLY,
    act=_begin_late,
)

DEVICE_BOUND_STEPS = Drill(
    name="device_bound_steps",
    shows="every step takes 45 s, and the hosts spend it in device waits",
    expected=Expected(),
    backends=ONLY,
    act=_train_slowly,
)

IDLE_SERVER = Drill(
    name="idle_server",
    shows="a model server without requests: rank 0 waits for a client, the others for rank 0",
    expected=Expected(),
    plan=lambda _: {"beats": False},
    parallelism="server",
    backends=ONLY,
    act=_serve,
)

QUEUED_FAULTS = (DEVICE_STUCK, SLOW_DEVICE, LINK_CUT, RANK0_READS_LOSS_HUNG, FEWER_MICRO_BATCHES)
QUEUED_HEALTHY = (
    RANK0_READS_LOSS,
    GRAPH_REPLAY,
    RECOMPILE,
    FIRST_COLLECTIVE,
    DEVICE_BOUND_STEPS,
    IDLE_SERVER,
)
