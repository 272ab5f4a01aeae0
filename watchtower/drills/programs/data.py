"""Samples come from shards in (slow) storage, one batch per step."""

import multiprocessing
import random
import struct
import time

RECORD = struct.Struct("<8d")
BATCH = 16
RECORDS_PER_SHARD = 4096


class Storage:
    """The bucket or file system that holds the shards."""

    def __init__(self, latency_s):
        self.latency_s = latency_s
        self.truncated = False

    def stage(self):
        """Fetch the index of all shards before training starts."""
        self.read(0, 1)

    def read(self, offset, size):
        time.sleep(self.latency_s)
        source = random.Random(offset)
        content = b"".join(RECORD.pack(*(source.random() for _ in range(8))) for _ in range(size))
        return content[: len(content) // 2 + 3] if self.truncated else content


class Loader:
    """Endless batches of this rank's share of the data."""

    def __init__(self, storage, rank, world_size):
        self.storage = storage
        self.world_size = world_size
        self.cursor = rank
        self.reindex_s = 0.0
        self.index_lock = multiprocessing.Lock()  # shared with workers that read ahead

    def __iter__(self):
        return self

    def __next__(self):
        if self.reindex_s:
            self.rebuild_index()
        with self.index_lock:
            content = self.storage.read(self.cursor * BATCH, BATCH)
        self.cursor += self.world_size
        return self.decode(content)

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
        """Shuffle the order of shards anew: real work, and only now and then."""
        until = time.monotonic() + self.reindex_s
        order = list(range(RECORDS_PER_SHARD))
        while time.monotonic() < until:
            random.shuffle(order)
        self.reindex_s = 0.0
