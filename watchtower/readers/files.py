"""Which reader reads a file: decided by its first bytes, never by its name."""

from __future__ import annotations

from collections.abc import Callable
from io import BufferedReader, BytesIO
from typing import BinaryIO, NamedTuple, cast

from watchtower.readers import flight_recorder, logs, stacks
from watchtower.readers.findings import FileFound

HEAD_BYTES = 65_536
"""First bytes of a file by which it is recognised."""


class Reader(NamedTuple):
    """A form of evidence."""

    form: str
    recognises: Callable[[bytes], bool]
    """Whether a file that begins with these bytes has this form."""
    read: Callable[[str, BinaryIO], FileFound]


READERS: tuple[Reader, ...] = (
    Reader("flight recorder", flight_recorder.recognises_pickle, flight_recorder.read_pickle),
    Reader("flight recorder", flight_recorder.recognises_json, flight_recorder.read_json),
    Reader("stacks", stacks.recognises_json, stacks.read_json),
    Reader("stacks", stacks.recognises_text, stacks.read_text),
    Reader("log", logs.recognises, logs.read),
)
"""In the order in which they are asked. The last one takes any text."""


def read_bytes(name: str, raw: bytes) -> FileFound:
    """Read the content of a file, as `read_file` does."""
    return read_file(name, cast("BufferedReader", BufferedReader(BytesIO(raw))))


def read_file(name: str, stream: BufferedReader) -> FileFound:
    """Read a file with the first reader that recognises it."""
    head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    for reader in READERS:
        if reader.recognises(head):
            return reader.read(name, stream)
    return FileFound(name=name, form="")
