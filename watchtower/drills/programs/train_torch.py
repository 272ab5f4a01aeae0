"""Trains a small network with PyTorch: DistributedDataParallel over gloo, with a DataLoader."""

import contextlib
import os
import time

import torch
import torch.distributed as dist
from checkpoint import Checkpointer
from data import BATCH
from model import Negatives
from plan import parse_plan
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset
from trainer import Trainer

EVAL_READ_S = 0.04
EVAL_WORK_S = 0.008  # of CPU time between two reads: a fifth of a core on every machine
WORDS_PER_RANK = 2**19  # two buffers of the size that gloo sends at once


class ShardDataset(IterableDataset):
    """Batches of this rank's shards, in the order of the storage."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for content in self.loader:
            yield torch.tensor(content, dtype=torch.float32)


class Scorer(nn.Module, Negatives):
    def __init__(self, device):
        super().__init__()
        self.device = device
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch):
        self.draw_negatives()
        self.device.synchronize(0.35)
        return self.layers(batch)


class TorchTrainer(Trainer):
    backend = "gloo"
    backend_error = dist.DistBackendError

    def run(self):
        super().run()
        if self.should_stop:
            # A thread of torch's may abort a process that returns while its collectives are open.
            os._exit(0)

    def setup(self):
        self.join()
        self.model = Scorer(self.device)
        self.replica = DistributedDataParallel(self.model)
        if self.plan.checks_ranks:
            dist.monitored_barrier()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def join(self):
        torch.set_num_threads(1)
        dist.init_process_group(self.backend)
        self.checkpointer = Checkpointer(self.rank, os.getcwd(), dist.barrier, self.writer)
        self.words = WORDS_PER_RANK * self.world_size
        self.prepare()

    def batches(self):
        shards = ShardDataset(self.loader)
        return DataLoader(shards, batch_size=None, num_workers=self.plan.workers)

    def train_step(self, batch, is_last):
        with contextlib.nullcontext() if is_last else self.replica.no_sync():
            loss = nn.functional.mse_loss(self.replica(batch).squeeze(1), batch.sum(1))
            self.device.synchronize(0.5)
            loss.backward()
        if is_last:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self.read_loss(loss)

    def read_loss(self, loss):
        return loss.item()

    def share_loss(self, loss):
        """Sum the loss over all ranks, for the learning rate schedule."""
        total = torch.tensor([loss])
        dist.all_reduce(total)

    def compare_progress(self, _):
        """Exchange the positions of all ranks in the data."""
        place = torch.tensor([float(self.loader.cursor)])
        places = [torch.empty_like(place) for _ in range(self.world_size)]
        dist.all_gather(places, place)

    def count_words(self, _):
        """Sum over all ranks how often each word was drawn."""
        counts = torch.zeros(self.words)
        dist.all_reduce(counts)

    @torch.no_grad()
    def evaluate(self, seconds):
        """Process this rank's share of the held-out data, then sum the score."""
        until = time.monotonic() + seconds
        score = torch.zeros(1)
        while time.monotonic() < until:
            time.sleep(EVAL_READ_S)
            work_until = time.thread_time() + EVAL_WORK_S
            while time.thread_time() < work_until:
                score += self.model.layers(torch.rand(BATCH, 8)).mean()
        dist.all_reduce(score)

    def finish(self):
        super().finish()
        dist.destroy_process_group()


def main():
    TorchTrainer(parse_plan()).run()


if __name__ == "__main__":
    main()
