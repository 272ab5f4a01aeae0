"""Trains like train_torch, but on an accelerator: kernels and collectives are queued."""

import functools
import os

import torch
import torch.distributed as dist
from device import Device
from plan import parse_plan
from queued import install
from train_torch import TorchTrainer

NICE = 19  # ranks that spin leave the processors to the processes that watch them
LAUNCHES_PER_STEP = 3  # two kernels and the gradients


class QueuedDevice(Device):
    """The accelerator of one rank: kernels are queued, and the host runs ahead of them."""

    def __init__(self, rank, plan, backend):
        super().__init__(rank, plan.step_s, plan.jitter, plan.host_work_s)
        self.backend = backend
        # No frame of its own: a full queue blocks the host at the line that launches.
        self.synchronize = functools.partial(backend.with_room, self.launch)

    def launch(self, share):
        self.prepare(share)
        self.run_for(self.draw(share))

    def run_for(self, seconds):
        self.backend.run(self.backend.compute, seconds)


class Queued:
    """The parts that programs of all kinds of parallelism share on this backend."""

    backend = "queued"
    last_loss = 0.0
    launches_per_step = LAUNCHES_PER_STEP
    micro_batches = 4

    def join(self):
        os.nice(NICE)
        plan = self.plan
        depth = plan.ahead * (self.launches_per_step + len(self.exchanges))
        backend = install(
            schedule=plan.schedule, depth=depth, log=plan.log, engine_thread=plan.engine_thread
        )
        self.device = QueuedDevice(self.rank, plan, backend)
        if plan.first_collective_s:
            self.device.run_for(plan.first_collective_s)
        self.reads = 0
        super().join()

    def count_tokens(self, _):
        """Sum the number of tokens over all ranks, for each micro-batch."""
        for _ in range(self.micro_batches):
            dist.all_reduce(torch.ones(1))

    def read_loss(self, loss):
        """Read the loss now and then, because each read waits for the device."""
        self.reads += 1
        if self.reads % self.plan.read_every == 0 and self.plan.reader in (None, self.rank):
            read = self.all_reduce_loss if self.plan.reads_in_all_reduce else self.read_value
            self.last_loss = read(loss)
        return self.last_loss

    def read_value(self, loss):
        return loss.item()

    def all_reduce_loss(self, loss):
        """Read the loss in a function with the name of a collective, which it does not call."""
        return loss.item()


class QueuedTrainer(Queued, TorchTrainer):
    pass


def main():
    QueuedTrainer(parse_plan()).run()


if __name__ == "__main__":
    main()
