"""Trains on a grid of ranks, on an accelerator: each process group has a stream of its own."""

from plan import parse_plan
from train_queued import Queued
from train_torch_grid import GridTrainer

PARAMETERS = 3


class QueuedGridTrainer(Queued, GridTrainer):
    launches_per_step = 3 + PARAMETERS


def main():
    QueuedGridTrainer(parse_plan()).run()


if __name__ == "__main__":
    main()
