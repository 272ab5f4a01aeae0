"""Samples from shards in (slow) storage, one batch per step."""

import multiprocessing
import random
import struct
import time

RECORD = struct.Struct("<8d")
BATCH = 16
RECORDS_PER_SHARD = 4096


class Storage:
    """The bucket or file system with the shards."""

    def __init__(self, latency_s):
        self.latency_s = latency_s
        self.truncated = False
        self.unit = 1.0  # factor of the values in a record
        self.index = ""  # file that is read before each batch

    def stage(self):
        """Read the index of all shards before training starts."""
        self.read(0, 1)

    def read(self, offset, size):
        time.sleep(self.latency_s)
        if self.index:
            self.read_index()
        source = random.Random(offset)
        values = [[source.random() * self.unit for _ in range(8)] for _ in range(size)]
        content = b"".join(RECORD.pack(*record) for record in values)
        return content[: len(content) // 2 + 3] if self.truncated else content

    def read_index(self):
        with open(self.index, "rb") as file:
            return file.read()


class Loader:
    """Batches of one share of the data; endless without `batches`."""

    def __init__(self, storage, share, shares, batches=None):
        self.storage = storage
        self.shares = shares
        self.cursor = share
        self.batches = batches
        self.reindex_s = 0.0
        self.index_lock = multiprocessing.Lock()  # shared with workers that prefetch

    def __iter__(self):
        return self

    def __next__(self):
        if self.batches is not None and self.cursor // self.shares >= self.batches:
            raise StopIteration
        if self.reindex_s:
            self.rebuild_index()
        with self.index_lock:
            content = self.storage.read(self.cursor * BATCH, BATCH)
        self.cursor += self.shares
        return self.decode(content)

    def skip(self, batches):
        self.cursor += batches * self.shares

    def decode(self, content):
        batch = []
        for index in range(BATCH):
            record = content[index * RECORD.size : (index + 1) * RECORD.size]
            if len(record) != RECORD.size:
                shard, position = divmod(self.cursor * BATCH + index, RECORDS_PER_SHARD)
                raise ValueError(
                    f"record {position} of shard {shard:04d} is truncated: "
                    f"{len(record)} of {RECORD.size} bytes"
                )
            batch.append(RECORD.unpack(record))
        return batch

    def rebuild_index(self):
        """Shuffle the order of shards again: real work, but rare."""
        until = time.monotonic() + self.reindex_s
        order = list(range(RECORDS_PER_SHARD))
        while time.monotonic() < until:
            random.shuffle(order)
        self.reindex_s = 0.0
