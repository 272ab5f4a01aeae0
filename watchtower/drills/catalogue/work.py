"""Healthy: ranks that work without steps: in a child, on a socket, in the garbage collector."""

from __future__ import annotations

from watchtower.drills.catalogue.pauses import AFTERWARDS_STEPS, SETTLE_S, rhythm, sit_through
from watchtower.drills.catalogue.stalls import short_grace
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.setup import CALM, Expected, Plan, Variables


def _compile(run: DrillRun) -> None:
    run.launch()
    # The compilers of all ranks share the machine.
    run.wait_for_step(AFTERWARDS_STEPS, extra_s=4 * run.settings.compile_s)
    run.wait_for_status(CALM, SETTLE_S)


def _accumulate(run: DrillRun) -> None:
    settings = run.settings
    steps = settings.warmup_steps
    run.launch(step_s=settings.step_s / 2)
    # A pass takes half the time of a step in other drills.
    run.wait_for_step(steps, extra_s=steps * settings.micro_steps * settings.step_s)
    run.wait_for_status(CALM, SETTLE_S)


def _transfer(run: DrillRun) -> None:
    settings = run.settings
    run.launch(outlet=run.set_up("file_server.py")["url"])
    run.wait_for_step(settings.eval_every + AFTERWARDS_STEPS, extra_s=2 * settings.transfer_s)
    run.wait_for_status(CALM, SETTLE_S)


def _plan_download(variables: Variables) -> Plan:
    settings = variables.settings
    return rhythm("download", settings.eval_every, settings.transfer_s)


def _plan_upload(variables: Variables) -> Plan:
    settings = variables.settings
    return rhythm("upload", settings.eval_every, settings.transfer_s)


def _plan_garbage(variables: Variables) -> Plan:
    settings = variables.settings
    return rhythm("garbage", settings.eval_every, settings.gc_s, rank=variables.rank)


COMPILE_FIRST_STEP = Drill(
    name="compile_first_step",
    shows="every rank compiles before its first step, in a child process, some for much longer",
    expected=Expected(),
    plan=lambda variables: {"compile_s": variables.settings.compile_s},
    detection=short_grace,
    act=_compile,
)

RANK0_DOWNLOAD = Drill(
    name="rank0_download",
    shows="rank 0 downloads from a slow server into memory, the others wait at a barrier",
    expected=Expected(),
    plan=_plan_download,
    act=_transfer,
)

SUBPROCESS_UPLOAD = Drill(
    name="subprocess_upload",
    shows="a child of rank 0 uploads, rank 0 waits for it and the others at a barrier",
    expected=Expected(),
    plan=_plan_upload,
    act=_transfer,
)

GRAD_ACCUMULATION = Drill(
    name="grad_accumulation",
    shows="many passes without a sync or a heartbeat make one step",
    expected=Expected(),
    plan=lambda variables: {"micro_steps": variables.settings.micro_steps},
    act=_accumulate,
)

GC_PAUSE = Drill(
    name="gc_pause",
    shows="one rank collects garbage for many seconds, the others wait for it",
    expected=Expected(),
    plan=_plan_garbage,
    act=sit_through("eval_every", lambda settings: settings.gc_s),
)
