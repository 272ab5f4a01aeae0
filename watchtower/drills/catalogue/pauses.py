"""Long pauses and slow steps in which the job works, with or without a phase."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from watchtower.drills.catalogue.stalls import event, happen
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.settings import DrillSettings
from watchtower.drills.setup import CALM, Expected, Plan, Variables

AFTERWARDS_STEPS = 5
"""Steps to wait for after the last pause."""
HOST_WORK = 0.2
"""CPU time of a step, as a share of its planned length."""
LIMITED_FACTOR = 3.5
"""A CPU limit makes the steps of the slow rank about this many times as long as they were: slow
begins at 2, a stall at 5. On a busy machine steps are longer than planned, so they are measured
first."""
FIRST_LIMIT = {"queued": 4.0}
"""By backend, the first limit divided by the CPU that the work needs. On queued the wait for the
device and a helper thread use CPU too, so the limit begins high and falls until steps are slow."""
SLOWED = 2.5
"""The limit has been found when steps are at least this many times as long."""
MOST_FALLS = 10
"""Times that the limit falls: to 3 % of the first one."""
MEASURED_STEPS = 10
SLOW_STEPS = 5
"""Steps that are measured before the limit and with it."""
SETTLE_S = 30.0
"""Seconds for a temporary suspect to clear."""


def sit_through(
    every: str, duration: Callable[[DrillSettings], float]
) -> Callable[[DrillRun], None]:
    """Return a run with regular pauses: train through several of them."""

    def act(run: DrillRun) -> None:
        settings = run.settings
        period: int = getattr(settings, every)
        pauses_s = settings.rounds * duration(settings)
        run.launch()
        # Real machines are slower than planned: a pause may take twice its time.
        run.wait_for_step(settings.rounds * period + AFTERWARDS_STEPS, extra_s=2 * pauses_s)
        run.wait_for_status(CALM, SETTLE_S)

    return act


def _slow_down(run: DrillRun) -> None:
    settings, step = run.settings, run.variables.step
    run.launch()
    run.warm_up()
    run.note(f"every step now takes {settings.slow_factor:g} times as long")
    slow_s = settings.slow_steps * settings.slow_factor * settings.step_s
    run.wait_for_step(step + settings.slow_steps, extra_s=2 * slow_s)
    run.wait_for_status((*CALM, "slow"), SETTLE_S)


def _evaluate_alone(run: DrillRun) -> None:
    run.launch()
    step = run.variables.step + AFTERWARDS_STEPS
    run.wait_for_step(step, extra_s=2 * run.settings.alone_s)
    run.wait_for_status(CALM, SETTLE_S)


def _limit_cpu(run: DrillRun) -> None:
    work_s = HOST_WORK * run.settings.step_s
    run.launch(host_work_s=work_s)
    run.warm_up()
    usual_s = _measure_step(run, MEASURED_STEPS)
    cpus = FIRST_LIMIT.get(run.job.backend, 1.0) * work_s / (LIMITED_FACTOR * usual_s)
    run.set_up("control_group.py", "slow", str(run.job.pid(run.rank)), f"{cpus:.3f}")
    run.fault(f"rank {run.rank} may use {cpus:.3f} of a CPU")
    for _ in range(MOST_FALLS):
        if _measure_step(run, SLOW_STEPS) >= SLOWED * usual_s:
            break
        run.signal_fixtures(signal.SIGUSR1)
        run.note(f"the limit of rank {run.rank} falls")
    run.wait_for_final()


def _measure_step(run: DrillRun, steps: int) -> float:
    """Train for some steps more; return the mean seconds of one."""
    begun, before = time.monotonic(), run.job.log.step or 0
    run.wait_for_step(before + steps, extra_s=steps * LIMITED_FACTOR * run.settings.step_s)
    return (time.monotonic() - begun) / ((run.job.log.step or 0) - before)


def _plan_long_checkpoint(variables: Variables) -> Plan:
    settings = variables.settings
    return rhythm("checkpoint", settings.eval_every, settings.long_checkpoint_s, marked=True)


def _plan_checkpoint(variables: Variables) -> Plan:
    settings = variables.settings
    return rhythm("checkpoint", settings.checkpoint_every, settings.checkpoint_s)


def _plan_eval(variables: Variables) -> Plan:
    return rhythm(
        "evaluation", variables.settings.eval_every, variables.settings.eval_s, marked=True
    )


def _plan_unmarked_eval(variables: Variables) -> Plan:
    return rhythm("evaluation", variables.settings.eval_every, variables.settings.eval_s)


def plan_eval_alone(variables: Variables) -> Plan:
    """Return the plan of an evaluation of rank 0 alone."""
    arguments = {"seconds": variables.settings.alone_s}
    step = {"when": "before_step", "step": variables.step, "arguments": arguments}
    return {"events": [{"act": "evaluate_alone", "rank": None, **step}]}


def _plan_pause(variables: Variables) -> Plan:
    settings = variables.settings
    pause_s = settings.pause_factor * settings.step_s
    return rhythm("reindex", settings.pause_every, pause_s, rank=variables.rank)


def _plan_slow(variables: Variables) -> Plan:
    arguments = {"factor": variables.settings.slow_factor}
    step = {"when": "before_step", "step": variables.step, "arguments": arguments}
    return {"events": [{"act": "slow_down", "rank": None, **step}]}


def plan_straggler(variables: Variables) -> Plan:
    """Return the plan of a rank whose steps become longer."""
    arguments = {"factor": variables.settings.straggle_factor}
    return event("slow_down", arguments=arguments)(variables)


def rhythm(name: str, every: int, seconds: float, **more: object) -> Plan:
    """Return a plan for something that happens every `every` steps."""
    return {name: {"every": every, "seconds": seconds, **more}}


LONG_CHECKPOINT = Drill(
    name="long_checkpoint",
    shows="a long checkpoint, marked with phase(): rank 0 writes, the others wait at a barrier",
    expected=Expected(),
    plan=_plan_long_checkpoint,
    act=sit_through("eval_every", lambda settings: settings.long_checkpoint_s),
)

UNMARKED_CHECKPOINT = Drill(
    name="unmarked_checkpoint",
    shows="regular checkpoints without a phase: bytes move, but there are no steps",
    expected=Expected(),
    plan=_plan_checkpoint,
    act=sit_through("checkpoint_every", lambda settings: settings.checkpoint_s),
)

EVAL_LOOP = Drill(
    name="eval_loop",
    shows="an evaluation, marked with phase(): no steps while it lasts",
    expected=Expected(),
    plan=_plan_eval,
    act=sit_through("eval_every", lambda settings: settings.eval_s),
)

UNMARKED_EVAL = Drill(
    name="unmarked_eval",
    shows="an evaluation without a phase: the CPUs work, but there are no steps",
    expected=Expected(),
    plan=_plan_unmarked_eval,
    act=sit_through("eval_every", lambda settings: settings.eval_s),
)

EVAL_ON_RANK0 = Drill(
    name="eval_on_rank0",
    shows="rank 0 alone evaluates for two minutes, without a phase, and the others wait for it",
    expected=Expected(),
    plan=plan_eval_alone,
    act=_evaluate_alone,
)

RARE_PAUSE = Drill(
    name="rare_pause",
    shows="sometimes one rank works ten times as long on a step",
    expected=Expected(),
    plan=_plan_pause,
    act=sit_through("pause_every", lambda settings: settings.pause_factor * settings.step_s),
)

STRAGGLER = Drill(
    name="straggler",
    shows="one rank takes three times as long for each step, and the others wait for it each time",
    expected=Expected(cause="straggler", statuses=("slow",)),
    plan=plan_straggler,
    warmups=3,
    # On queued the device is slow, which the hosts do not show: `slow_device`.
    backends=("stdlib", "torch"),
    act=happen,
)

CPU_LIMIT = Drill(
    name="cpu_limit",
    shows="the CPU limit of its control group slows down one rank (needs root)",
    expected=Expected(
        cause="straggler", domain="scheduler", mentions=("CPU limit",), statuses=("slow",)
    ),
    warmups=3,
    act=_limit_cpu,
)

TEN_TIMES_SLOWER = Drill(
    name="ten_times_slower",
    shows="every step suddenly takes ten times as long, but steps still come",
    expected=Expected(statuses=(*CALM, "slow")),
    plan=_plan_slow,
    warmups=3,
    act=_slow_down,
)
