"""Trains on a grid of ranks: pairs share the features of a model, all pairs share the data."""

from array import array

import ring
from model import FEATURES, Model
from plan import parse_plan
from train import RingTrainer

PAIR = 2


class SplitModel(Model):
    """Half of the features. The partner has the other half."""

    def __init__(self, device, partners):
        super().__init__(device)
        self.partners = partners
        self.own = range(partners.rank, FEATURES, PAIR)

    def forward(self, batch):
        self.draw_negatives()
        self.device.synchronize(0.35)
        parts = [sum(self.weights[i] * sample[i] for i in self.own) for sample in batch]
        scores = self.partners.all_reduce(array("d", parts))
        return [score - sum(sample) for score, sample in zip(scores, batch, strict=True)]


class GridTrainer(RingTrainer):
    def setup(self):
        self.join()
        first = self.rank - self.rank % PAIR
        self.partners = ring.new_group(self.group, range(first, first + PAIR))
        self.replicas = ring.new_group(self.group, range(self.rank % PAIR, self.world_size, PAIR))
        self.model = SplitModel(self.device, self.partners)

    def share_of_data(self):
        return self.rank // PAIR, self.world_size // PAIR

    def train_step(self, batch, is_last):
        errors = self.model.forward(batch)
        self.model.backward(batch, errors)
        if is_last:
            gradients = self.replicas.all_reduce(self.model.gradients)
            share = len(self.replicas.members) * self.plan.micro_steps
            self.model.update([gradient / share for gradient in gradients])
        return sum(error * error for error in errors) / len(errors)

    def share_norm(self, _):
        """Sum the norm of all weights over the pair."""
        own = sum(self.model.weights[i] ** 2 for i in self.model.own)
        self.partners.all_reduce([own] * PAIR)


def main():
    GridTrainer(parse_plan()).run()


if __name__ == "__main__":
    main()
