"""What a drill needs of a program that is written as users of a framework write it.

The program says where it is, and one rank hangs where its plan says so.
"""

import argparse
import contextlib
import json
import os
import threading
import time

STEPS = 1_000_000
PAUSE_SHARE = 0.7  # of a step: the accelerator that the machine of a drill lacks


class Registry:
    """Metrics by name. Its lock is not reentrant, which is the fault of the drill."""

    def __init__(self):
        self.lock = threading.Lock()
        self.values = {}

    def publish(self, name, value):
        with self.lock:
            self.values[name] = value
            self.summarize()

    def summarize(self):
        with self.lock:
            return sorted(self.values)


class Script:
    def __init__(self):
        parser = argparse.ArgumentParser()
        parser.add_argument("--config", required=True)
        with open(parser.parse_args().config, encoding="utf-8") as file:
            plan = json.load(file)
        self.rank = int(os.environ["RANK"])
        self.steps = plan.get("steps", STEPS)
        self.step_s = plan["step_s"]
        self.phase_at = plan.get("phase_at")
        self.events = [one for one in plan.get("events", ()) if one["rank"] == self.rank]
        self.registry = Registry()
        self.phases = contextlib.ExitStack()
        self.client = choose_client(plan.get("beats", True), plan.get("imports_client", False))
        emit("started", rank=self.rank, pid=os.getpid())
        self.visit("setup")

    def visit(self, place, step=0):
        """Hang if this rank's fault is due here."""
        for event in self.events:
            if event["when"] == place and event["step"] == step:
                emit("fault", rank=self.rank, step=step, monotonic_s=time.monotonic())
                self.registry.publish("step", step)

    def begin_step(self, step):
        if self.client and step == self.phase_at:
            self.phases.enter_context(self.client.phase("finetune"))
        self.visit("before_step", step)
        time.sleep(self.step_s * PAUSE_SHARE)

    def end_step(self, step, loss):
        if self.client:
            self.client.beat(step, loss=loss)
        if self.rank == 0:
            emit("step", step=step, loss=round(loss, 4))


def choose_client(beats, is_imported):
    """Return the module that sends heartbeats; None for a job without them."""
    if not beats and not is_imported:
        return None
    import watchtower_heartbeat

    return watchtower_heartbeat if beats else None


def emit(word, **values):
    print(word, json.dumps(values), flush=True)
