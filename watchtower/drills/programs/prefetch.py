"""A worker process prefetches batches, as data loaders of training frameworks do."""

import multiprocessing

AHEAD = 2  # batches that wait in the queue

_fork = multiprocessing.get_context("fork")


class Prefetcher:
    def __init__(self, loader):
        self.queue = _fork.Queue(AHEAD)
        self.worker = _fork.Process(target=self.fill, args=(loader,), daemon=True)
        self.worker.start()

    def fill(self, loader):
        for batch in loader:
            self.queue.put(batch)

    def __iter__(self):
        return self

    def __next__(self):
        return self.queue.get()
