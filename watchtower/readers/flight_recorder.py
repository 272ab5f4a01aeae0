"""Reads dumps of torch's flight recorder: JSON of any backend, and the pickles of NCCL's.

A dump does not contain the rank of its process, so its file has to: `nccl_trace_rank_3`,
`comm_lib_trace_rank_3`, `nccl_trace_rank_NODE_3`, or any name with a number at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from watchtower.readers.findings import (
    NO_OWNER,
    FileFound,
    Place,
    RecordsFound,
)
from watchtower.readers.plain_pickle import MAX_BYTES, RefusedPickle, load_plain
from watchtower.readers.text_lines import owner_in_name
from watchtower.readers.torch_records import (
    BadRecords,
    TorchRecords,
    convert_records,
    parse_records,
)

JSON_WORDS = (b'"pg_config"', b'"pg_status"', b'"entries"')
PICKLE_WORDS = (b"pg_config", b"profiling_name", b"collective_seq_id", b"entries")
_PROTOCOL = b"\x80"


def recognises_json(head: bytes) -> bool:
    """Return whether a file begins as the JSON of a recorder."""
    return head.lstrip().startswith(b"{") and any(word in head for word in JSON_WORDS)


def recognises_pickle(head: bytes) -> bool:
    """Return whether a file begins as a pickle. One that is no recorder's is refused by name."""
    return head.startswith(_PROTOCOL) and head[1:2] in (b"\2", b"\3", b"\4", b"\5")


def read_json(name: str, stream: BinaryIO) -> FileFound:
    """Read the JSON of a recorder."""
    return _read(name, stream, parse_records)


def read_pickle(name: str, stream: BinaryIO) -> FileFound:
    """Read the pickle of a recorder. Nothing in it is called."""
    return _read(name, stream, lambda raw: convert_records(load_plain(raw)))


def _read(name: str, stream: BinaryIO, parse: Callable[[bytes], TorchRecords]) -> FileFound:
    owner = owner_in_name(name)
    form = "flight recorder"
    raw = stream.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        return FileFound(name=name, form=form, owner=owner, trouble=f"is over {MAX_BYTES >> 20} MB")
    try:
        records = parse(raw)
    except (BadRecords, RefusedPickle) as error:
        return FileFound(name=name, form=form, owner=owner, trouble=f"is not read: {error}")
    if owner is NO_OWNER:
        trouble = "shows calls of a rank, and neither its name nor its content has the rank"
        return FileFound(name=name, form=form, trouble=trouble)
    found = RecordsFound(place=Place(name), owner=owner, records=records)
    return FileFound(name=name, form=form, owner=owner, findings=(found,))
