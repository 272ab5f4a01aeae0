"""The training loop of all programs. Each program defines its own step."""

import contextlib
import multiprocessing
import os
import time

import transfers
from compiler import compile_kernels
from data import Loader, Storage
from device import Device
from faults import Events
from heartbeats import choose_heartbeats
from memory import collect_garbage
from metrics import Metrics
from plan import is_due
from report import emit

READ_SHARE = 0.15  # of a step
DIVERGED = 1e6  # above every loss of a model that learns
BAD_BATCHES = 8  # skipped after a bad one


class Trainer:
    def __init__(self, plan):
        self.plan = plan
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.should_stop = False
        self.quota_s = 0.0  # until the service that limits steps lets this rank go on
        self.heartbeats = choose_heartbeats(plan.beats, plan.imports_client)
        self.device = Device(self.rank, plan.step_s, plan.jitter, plan.host_work_s)
        self.storage = Storage(plan.step_s * READ_SHARE)
        self.loader = Loader(self.storage, *self.share_of_data(), plan.batches)
        self.metrics = Metrics(self.rank)
        self.callback = Events(self.rank, plan.events)
        self.checkpointer = None
        self.phases = contextlib.ExitStack()
        self.exchanges = [getattr(self, name) for name in plan.exchanges]
        self.writer = (plan.checkpoint and plan.checkpoint.rank) or 0

    def run(self):
        emit("started", rank=self.rank, pid=os.getpid())
        self.callback.setup(self)
        self.storage.stage()
        self.setup()
        self.train()
        if not self.should_stop:
            self.finish()

    def train(self):
        batches = iter(self.batches())
        for worker in multiprocessing.active_children():
            emit("worker", rank=self.rank, pid=worker.pid)
        if self.plan.compile_s:
            compile_kernels(self.plan.compile_s * (self.rank + 1) / self.world_size)
        self.begin_step(0)
        for index, batch in enumerate(batches):
            step, micro_step = divmod(index, self.plan.micro_steps)
            is_last = micro_step + 1 == self.plan.micro_steps
            loss = self.train_step(batch, is_last)
            if not is_last:
                continue
            for exchange in self.exchanges:
                exchange(loss)
            self.callback.optimizer_end(self, step)
            self.metrics.record(step, loss)
            self.heartbeats.beat(step, loss=loss)
            self.look_after(step)
            if loss > DIVERGED:
                self.back_off()
            self.begin_step(step + 1)
            self.take_quota()
            if self.should_stop or step + 1 >= self.plan.steps:
                return

    def prepare(self):
        """Read the vocabulary, when the rank has joined and before it builds the model."""
        self.callback.joined(self)
        self.storage.stage()

    def begin_step(self, step):
        if step == self.plan.phase_at:
            self.phases.enter_context(self.heartbeats.phase("finetune"))
        self.callback.before_step(self, step)

    def take_quota(self):
        """Wait until this rank may make its next step."""
        if self.quota_s:
            time.sleep(self.quota_s)

    def share_of_data(self):
        """Return which share of the data this rank reads, and how many shares there are."""
        return self.rank, self.world_size

    def back_off(self):
        """Skip a bad batch on all ranks together."""
        self.checkpointer.barrier()
        self.loader.skip(BAD_BATCHES)

    def look_after(self, step):
        """Do the rare work that is due."""
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
            with self.heartbeats.phase(name):
                work(rhythm.seconds)
        else:
            work(rhythm.seconds)

    def download(self, seconds):
        """Rank 0 downloads data for all ranks."""
        if self.rank == 0:
            transfers.download(self.plan.outlet, seconds)
        self.checkpointer.barrier()

    def upload(self, seconds):
        """Rank 0 uploads data before training continues."""
        if self.rank == 0:
            transfers.upload(self.plan.outlet, seconds)
        self.checkpointer.barrier()

    def finish(self):
        """End, some ranks later than others, because exports and uploads take time."""
        self.callback.exit(self)
        self.storage.stage()
        self.checkpointer.barrier()
        time.sleep(self.plan.leave_gap_s * self.rank)
        if self.rank == 0 and self.plan.export_s:
            self.checkpointer.write(self.plan.export_s)
