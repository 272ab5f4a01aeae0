"""The loop that both programs share: what a step is, is theirs."""

import multiprocessing
import os
import time

import transfers
from compiler import compile_kernels
from data import Loader, Storage
from device import Device
from faults import Events
from memory import collect_garbage
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
        if self.plan.compile_s:
            compile_kernels(self.plan.compile_s * (self.rank + 1) / self.world_size)
        for index, batch in enumerate(batches):
            step, micro_step = divmod(index, self.plan.micro_steps)
            is_last = micro_step + 1 == self.plan.micro_steps
            loss = self.train_step(batch, is_last)
            if not is_last:
                continue
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
        if is_due(plan.download, step):
            self.now_and_then("download", plan.download, self.download)
        if is_due(plan.upload, step):
            self.now_and_then("upload", plan.upload, self.upload)
        if is_due(plan.garbage, step) and plan.garbage.rank == self.rank:
            collect_garbage(plan.garbage.seconds)
        if is_due(plan.reindex, step) and plan.reindex.rank == self.rank:
            self.loader.reindex_s = plan.reindex.seconds

    def now_and_then(self, name, rhythm, work):
        if rhythm.marked:
            with phase(name):
                work(rhythm.seconds)
        else:
            work(rhythm.seconds)

    def download(self, seconds):
        """Rank 0 fetches something for everybody."""
        if self.rank == 0:
            transfers.download(self.plan.outlet, seconds)
        self.checkpointer.barrier()

    def upload(self, seconds):
        """Rank 0 sends something away before training goes on."""
        if self.rank == 0:
            transfers.upload(self.plan.outlet, seconds)
        self.checkpointer.barrier()

    def finish(self):
        """Leave, some ranks later than others: exports and uploads take what they take."""
        time.sleep(self.plan.leave_gap_s * self.rank)
        if self.rank == 0 and self.plan.export_s:
            self.checkpointer.write(self.plan.export_s)
