"""Trains with PyTorch on a grid of ranks: pairs share a network's layers, all pairs share the
data.
"""

import torch
import torch.distributed as dist
from model import Negatives
from plan import parse_plan
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from train_torch import TorchTrainer

PAIR = 2
WIDTH = 32


class Sum(torch.autograd.Function):
    """The sum over a group. The gradient of every member is that of the sum."""

    @staticmethod
    def forward(_, part, group):
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(_, gradient):
        return gradient, None


class SplitScorer(nn.Module, Negatives):
    """A part of the hidden layer. The partner has the rest."""

    def __init__(self, device, partners):
        super().__init__()
        self.device = device
        self.partners = partners
        self.enter = nn.Linear(8, WIDTH // PAIR)
        self.leave = nn.Linear(WIDTH // PAIR, 1, bias=False)

    def forward(self, batch):
        self.draw_negatives()
        self.device.synchronize(0.35)
        return Sum.apply(self.leave(torch.relu(self.enter(batch))), self.partners)


class GridTrainer(TorchTrainer):
    def setup(self):
        self.join()
        shape = self.world_size // PAIR, PAIR
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
        self.partners = mesh.get_group("tensor")
        self.replicas = mesh.get_group("data")
        pairs = [range(first, first + PAIR) for first in range(0, self.world_size, PAIR)]
        self.scalers = [dist.new_group(list(pair)) for pair in pairs][self.rank // PAIR]
        self.model = SplitScorer(self.device, self.partners)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def share_of_data(self):
        return self.rank // PAIR, self.world_size // PAIR

    def train_step(self, batch, is_last):
        loss = nn.functional.mse_loss(self.model(batch).squeeze(1), batch.sum(1))
        self.device.synchronize(0.5)
        loss.backward()
        if is_last:
            self.reduce_gradients()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self.read_loss(loss)

    def reduce_gradients(self):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, group=self.replicas)
            parameter.grad /= self.replicas.size()

    def share_norm(self, _):
        """Sum the norm of the whole network's weights over the pair."""
        norm = sum(parameter.detach().square().sum() for parameter in self.model.parameters())
        dist.all_reduce(norm, group=self.partners)

    def share_scale(self, _):
        """Find the pair's largest weight, in a separate group, as for another stream."""
        scale = max(parameter.detach().abs().max() for parameter in self.model.parameters())
        dist.all_reduce(scale, op=dist.ReduceOp.MAX, group=self.scalers)


def main():
    GridTrainer(parse_plan()).run()


if __name__ == "__main__":
    main()
