"""DistributedDataParallel, as the tutorial series of pytorch/examples has it, with torch 2.13: a
Trainer with epochs, a DistributedSampler and snapshots of rank 0.
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from script import Script
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

EPOCH = 8  # batches
BATCH = 4
SAVE_EVERY = 2  # epochs


class MyTrainDataset(Dataset):
    def __init__(self, size):
        self.data = [(torch.rand(20), torch.rand(1)) for _ in range(size)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


class Trainer:
    def __init__(self, script, model, train_data, optimizer, snapshot_path):
        self.script = script
        self.rank = int(os.environ["RANK"])
        self.train_data = train_data
        self.optimizer = optimizer
        self.snapshot_path = snapshot_path
        self.step = 0
        self.model = DDP(model)

    def _run_batch(self, source, targets):
        self.script.begin_step(self.step)
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        self.script.end_step(self.step, loss.item())
        self.step += 1

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            if self.step >= self.script.steps:
                return
            self._run_batch(source, targets)

    def _save_snapshot(self, epoch):
        snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}
        torch.save(snapshot, self.snapshot_path)

    def train(self):
        epoch = 0
        while self.step < self.script.steps:
            self._run_epoch(epoch)
            epoch += 1
            if self.rank == 0 and epoch % SAVE_EVERY == 0:
                self._save_snapshot(epoch)
            dist.barrier()


def main():
    script = Script()
    torch.set_num_threads(1)
    dist.init_process_group(backend="gloo")
    script.visit("joined")
    dataset = MyTrainDataset(EPOCH * BATCH * dist.get_world_size())
    train_data = DataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    Trainer(script, model, train_data, optimizer, "snapshot.pt").train()
    script.visit("exit")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
