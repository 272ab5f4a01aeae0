"""Mutated inputs for each reader: files of the cases with bytes changed, repeated or cut.

`python -m tests.field.mutation 10000` gives each reader that many, and prints its time.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

from tests.field.test_field import CASES
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.fleet.found_case import make_case
from watchtower.fleet.found_files import sort_findings
from watchtower.readers.files import READERS, read_bytes
from watchtower.readers.logs import LINE_READERS

FILES = [
    (name, raw if isinstance(raw, bytes) else raw.encode())
    for case in CASES
    for name, raw in case.files.items()
]
NUMBERS = (2**63, 10**18, 65_535, 999_999, 0, -1)

Files = list[tuple[str, bytes]]


def list_readers() -> dict[str, Files]:
    """Return the files that each reader of lines, and each reader of files, is asked to read."""
    lines = {
        f"{reader.read.__module__}.{reader.read.__name__}": [
            pair for pair in FILES if any(word in pair[1] for word in reader.words)
        ]
        for reader in LINE_READERS
    }
    files = {
        f"{reader.form}: {reader.read.__module__}.{reader.read.__name__}": [
            pair for pair in FILES if reader.recognises(pair[1])
        ]
        for reader in READERS
    }
    return lines | files


def try_mutated(files: Files, count: int, seed: int = 1) -> Iterator[float]:
    """Diagnose this many sets of mutated files; yield the CPU seconds of each."""
    rng = random.Random(seed)
    for _ in range(count):
        chosen = rng.sample(files, min(len(files), rng.randint(1, 3)))
        mutated = [(name, _mutate(rng, raw)) for name, raw in chosen]
        started = time.process_time()
        found = [read_bytes(name, raw) for name, raw in mutated]
        diagnose(make_case("job", sort_findings(found)))
        yield time.process_time() - started


def _mutate(rng: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw[: rng.randint(0, len(raw))] if rng.random() < 0.4 else raw)
    for _ in range(rng.randint(1, 8)):
        at, kind = rng.randrange(len(changed) + 1), rng.random()
        if kind < 0.2:
            changed[at:at] = changed[at : at + rng.randint(0, 300)] * rng.randint(1, 4)
        elif kind < 0.4:
            changed[at : at + 1] = str(rng.choice(NUMBERS)).encode()
        else:
            changed[at : at + rng.randint(0, 4)] = rng.randbytes(rng.randint(0, 6))
    return bytes(changed)


if __name__ == "__main__":
    for name, files in list_readers().items():
        times = list(try_mutated(files, int(sys.argv[1])))
        print(
            f"{name}: {len(times)} inputs, {sum(times):.1f} s, at most {max(times):.3f} s",
            flush=True,
        )
