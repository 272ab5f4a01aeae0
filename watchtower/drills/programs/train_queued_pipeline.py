"""Trains a pipeline, on an accelerator: sends and receives are queued."""

from plan import parse_plan
from train_queued import Queued
from train_torch_pipeline import StageTrainer


class QueuedStageTrainer(Queued, StageTrainer):
    launches_per_step = 6


def main():
    QueuedStageTrainer(parse_plan()).run()


if __name__ == "__main__":
    main()
