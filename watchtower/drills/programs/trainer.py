"""The loop that both programs share: what a step is, is theirs."""

import multiprocessing
import os
import time

from data import Loader, Storage
from device import Device
from faults import Events
from metrics import Metrics
from plan import is_due
from report import tell
from watchtower_heartbeat import beat, phase

READ_SHARE = 0.15  # of a step


class Trainer:
    def __init__(self, plan):
        self.plan = plan
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.should_stop = False
        self.device = Device(self.rank, plan.step_s, plan.jitter)
        self.storage = Storage(plan.step_s * READ_SHARE)
        self.loader = Loader(self.storage, self.rank, self.world_size)
        self.metrics = Metrics(self.rank)
        self.callback = Events(self.rank, plan.events)
        self.checkpointer = None
        self.writer = (plan.checkpoint and plan.checkpoint.rank) or 0

    def run(self):
        tell("started", rank=self.rank, pid=os.getpid())
        self.callback.setup(self)
        self.storage.stage()
        self.setup()
        self.train()
        if not self.should_stop:
            self.finish()

    def train(self):
        batches = iter(self.batches())
        for worker in multiprocessing.active_children():
            tell("worker", rank=self.rank, pid=worker.pid)
        for step, batch in enumerate(batches):
            loss = self.train_step(batch)
            self.callback.optimizer_end(self, step)
            self.metrics.record(step, loss)
            beat(step, loss=loss)
            self.look_after(step)
            self.callback.step_end(self, step)
            if self.should_stop or step + 1 >= self.plan.steps:
                return

    def look_after(self, step):
        """Whatever happens only now and then."""
        plan = self.plan
        if is_due(plan.checkpoint, step):
            self.now_and_then("checkpoint", plan.checkpoint, self.checkpointer.save)
        if is_due(plan.evaluation, step):
            self.now_and_then("eval", plan.evaluation, self.evaluate)
        if is_due(plan.reindex, step) and plan.reindex.rank == self.rank:
            self.loader.reindex_s = plan.reindex.seconds

    def now_and_then(self, name, rhythm, work):
        if rhythm.marked:
            with phase(name):
                work(rhythm.seconds)
        else:
            work(rhythm.seconds)

    def finish(self):
        """Leave, some ranks later than others: exports and uploads take what they take."""
        time.sleep(self.plan.leave_gap_s * self.rank)
        if self.rank == 0 and self.plan.export_s:
            self.checkpointer.write(self.plan.export_s)
