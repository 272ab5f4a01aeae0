"""The last loss values."""

import threading

from report import emit

KEPT = 1000


class Metrics:
    def __init__(self, rank):
        self.rank = rank
        self.flush_every = 0  # 0: only at the end of training
        self._lock = threading.Lock()
        self._losses = []

    def record(self, step, loss):
        with self._lock:
            self._losses.append(loss)
            del self._losses[:-KEPT]
            if self.flush_every and len(self._losses) >= self.flush_every:
                self.flush()
        if self.rank == 0:
            emit("step", step=step, loss=round(loss, 4))

    def flush(self):
        with self._lock:
            self._losses.clear()
