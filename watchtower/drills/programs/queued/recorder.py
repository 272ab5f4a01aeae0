"""The collective log, in the form in which NCCL writes it."""

import ctypes
import json
import sys
import time

from queued.library import load

DTYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "uint8": "Byte",
    "bool": "Bool",
}


class Recorder:
    """Records each call when it is queued.

    `log`: "nccl"; "absent" records nothing; "frozen" stops after `last` calls, as the replay of a
    captured graph does.
    """

    def __init__(self, device, log, last):
        self._library = load("librecorder.so")
        self._library.recorder_open(device.address("stream_is_done"))
        self._left = {"nccl": -1, "absent": 0, "frozen": last}[log]
        self._is_absent = log == "absent"
        self._groups = {}
        self._count = 0

    def serve(self, path):
        """Answer at this path instead of torch's own server, which has no log of NCCL here."""
        if self._library.recorder_serve(path.encode()) != 0:
            raise OSError(f"cannot listen at {path}")
        return self

    def add_group(self, name, ranks):
        if self._is_absent:
            return
        text = ", ".join(map(str, ranks))
        self._groups[name] = {"name": name, "desc": "undefined", "ranks": f"[{text}]"}
        self._library.recorder_name_groups(json.dumps(self._groups).encode())

    def add(self, name, description, sequence, shown, inputs, outputs, ticket):
        if self._left == 0:
            return
        self._left -= 1
        known = list(self._groups)
        entry = {
            "record_id": self._count,
            "pg_id": known.index(name) if name in known else 0,
            "process_group": [name, description],
            "collective_seq_id": sequence,
            "p2p_seq_id": 0 if sequence else self._count,
            "op_id": self._count + 1,
            "profiling_name": f"nccl:{shown}",
            "time_created_ns": time.time_ns(),
            "input_sizes": [list(one.shape) for one in inputs],
            "input_dtypes": [_dtype(one) for one in inputs],
            "output_sizes": [list(one.shape) for one in outputs],
            "output_dtypes": [_dtype(one) for one in outputs],
            "timeout_ms": 600000,
            "is_p2p": sequence == 0,
        }
        self._count += 1
        self._library.recorder_add(
            json.dumps(entry)[:-1].encode(), ticket[0], ctypes.c_long(ticket[1])
        )


def install_recorder(recorder):
    """Serve the log where the server of torch would be opened."""
    sys.modules["torch._C._distributed_c10d"]._WorkerServer = recorder.serve


def _dtype(tensor):
    name = str(tensor.dtype).removeprefix("torch.")
    return DTYPES.get(name, name.title())
