"""Trains a small model on all ranks, with the standard library's sockets as the interconnect."""

import os
import random
import time

import ring
from checkpoint import Checkpointer
from model import Model
from plan import parse_plan
from prefetch import Prefetcher
from trainer import Trainer

EVAL_READ_S = 0.04
EVAL_WORK_S = 0.008  # of CPU time between two reads: a fifth of a core on every machine


class RingTrainer(Trainer):
    backend_error = ring.DistBackendError

    def setup(self):
        self.join()
        self.model = Model(self.device)
        self.model.weights = self.group.broadcast(self.model.weights)

    def join(self):
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.group = ring.init_process_group(
            self.rank, self.world_size, *address, patient=self.plan.patient
        )
        self.checkpointer = Checkpointer(self.rank, os.getcwd(), self.group.barrier, self.writer)
        self.prepare()

    def batches(self):
        return Prefetcher(self.loader) if self.plan.workers else self.loader

    def train_step(self, batch, is_last):
        errors = self.model.forward(batch)
        self.model.backward(batch, errors)
        if is_last:
            gradients = self.group.all_reduce(self.model.gradients)
            share = self.world_size * self.plan.micro_steps
            self.model.update([gradient / share for gradient in gradients])
        return sum(error * error for error in errors) / len(errors)

    def share_loss(self, loss):
        """Sum the loss over all ranks, for the learning rate schedule."""
        self.group.all_reduce([loss] * self.world_size)

    def compare_progress(self, _):
        """Exchange the positions of all ranks in the data."""
        self.group.all_gather([float(self.loader.cursor)])

    def evaluate(self, seconds):
        """Process this rank's share of the held-out data, then sum the score."""
        until = time.monotonic() + seconds
        score = 0.0
        while time.monotonic() < until:
            time.sleep(EVAL_READ_S)
            score += self.evaluate_batch()
        self.group.all_reduce([score] * self.world_size)

    def evaluate_batch(self):
        until = time.thread_time() + EVAL_WORK_S
        score = 0.0
        while time.thread_time() < until:
            score += self.model.predict([random.random() for _ in self.model.weights])
        return score


def main():
    RingTrainer(parse_plan()).run()


if __name__ == "__main__":
    main()
