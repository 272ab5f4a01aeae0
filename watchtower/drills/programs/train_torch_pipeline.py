"""Trains a pipeline with PyTorch: every rank is a stage and talks only to its two neighbours."""

import torch
import torch.distributed as dist
from plan import parse_plan
from torch import nn
from train_torch import TorchTrainer

WIDTH = 8


class StageTrainer(TorchTrainer):
    def setup(self):
        self.join()
        self.is_first = self.rank == 0
        self.is_last = self.rank == self.world_size - 1
        self.gain = 1.0
        self.device.step_s /= self.world_size  # stages work one after the other
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LeakyReLU())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def share_of_data(self):
        """All stages read the same batches: the first needs the input, the last the target."""
        return 0, 1

    def train_step(self, batch, is_last):
        inputs = batch if self.is_first else self.take(self.rank - 1, batch).requires_grad_()
        self.device.synchronize(0.35)
        outputs = self.model(inputs) * self.gain
        loss = self.learn_from_target(outputs, batch) if self.is_last else self.pass_on(outputs)
        if not self.is_first:
            self.hand_over(inputs.grad, self.rank - 1)
        if is_last:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss

    def learn_from_target(self, outputs, batch):
        loss = nn.functional.mse_loss(outputs.mean(1), batch.sum(1))
        self.device.synchronize(0.5)
        loss.backward()
        return self.read_loss(loss)

    def pass_on(self, outputs):
        """Send the activations to the next stage and receive their gradients."""
        self.hand_over(outputs.detach(), self.rank + 1)
        gradients = self.take(self.rank + 1, outputs)
        self.device.synchronize(0.5)
        outputs.backward(gradients)
        return self.read_loss(outputs.square().mean())

    def hand_over(self, values, stage):
        """Send to a neighbour. All-zero values are skipped: there is nothing to learn from them."""
        if values.count_nonzero():
            dist.send(values, stage)

    def take(self, stage, like):
        values = torch.empty(like.shape)
        dist.recv(values, stage)
        return values


def main():
    StageTrainer(parse_plan()).run()


if __name__ == "__main__":
    main()
