"""What torch's flight recorder says: every assumption about its JSON format is in this file.

The recorder that gloo writes (`fr_trace_json`) was exercised with torch 2.13, format 2.10: what is
said of it here was seen. The one that NCCL writes (`dump_nccl_trace_json`) was not: what is said of
it is from torch's tutorial "Flight Recorder for Debugging Stuck Jobs" (format 2.5).

* `entries` is a ring, 2000 long by default, for all groups of a process; `record_id` counts from 0,
  so that the oldest one tells whether something was overwritten.
* An entry's `process_group` is [name, description], its `pg_id` a number of this process only. The
  default group is ["0", "default_pg"]; a group made without a description says "undefined".
  A process that leaves all its groups and joins anew uses names again, with another `pg_id`; the
  ring keeps what the old ones called.
* `collective_seq_id` counts the collectives of a group from 1, and is equal on all its members.
* gloo: `state` stays "scheduled" for ever, `retired` becomes true when the call is over. A call is
  recorded where the caller's thread hands it in, and begins at once. Sends and receives have no
  entries. `pg_config` has one key, "", that names nothing; with TORCH_FR_BUFFER_SIZE=0 it has none.
* NCCL: `state` is "scheduled", "started" or "completed"; the start is known only with timing on
  (TORCH_NCCL_ENABLE_TIMING). A scheduled call waits behind other work of the GPU, perhaps for ever.
  Sends and receives have entries with `is_p2p`. `pg_config` maps a group's name to its `ranks`, the
  text "[0, 1]".
* `pg_status` has an entry for each group that was ever used, by `pg_id`. Its counts are not used:
  gloo's count sends and receives too.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated

import msgspec

from watchtower.printable import printable
from watchtower.wire.bounds import MAX_INTEGER, MAX_NAME, MAX_RANK, MAX_TEXT, MAX_WORLD_SIZE
from watchtower.wire.collectives import CollectiveRecord

MAX_ENTRIES = 20_000
"""Entries read of one recorder: ten times the default ring, and 10 MB of JSON."""

MAX_OBJECTS = 2 * MAX_ENTRIES + 1000
"""Objects in a reply: entries, and two small ones for each group. It bounds their memory before
they are decoded."""

MAX_LISTS = 200_000
"""Lists in a reply: the sizes of one tensor are a list. It bounds their memory, too."""

MAX_VALUES = 300_000
"""Values in a reply, told by its commas; the 9,000 entries of 4 MB have 225,000."""

NO_DESCRIPTIONS = ("", "undefined")

_TYPES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "BFloat16": "bfloat16",
    "Bool": "bool",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
"""Names of c10::ScalarType, as torch/csrc writes them, to those that Python code uses."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]


class _Entry(msgspec.Struct):
    process_group: tuple[str, str]
    collective_seq_id: _Count
    record_id: _Count = 0
    pg_id: int = -1
    profiling_name: str = ""
    state: str = ""
    retired: bool = False
    is_p2p: bool = False
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_sizes: list[list[int]] = []
    output_dtypes: list[str] = []


class _Group(msgspec.Struct):
    ranks: str = ""


class _Reply(msgspec.Struct):
    entries: list[_Entry] = []
    pg_config: dict[str, _Group] = {}
    pg_status: dict[str, msgspec.Raw] = {}


_DECODER = msgspec.json.Decoder(_Reply)
_RANKS = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0, le=MAX_RANK)]])


class BadRecords(Exception):
    """The reply is not what torch's flight recorder is known to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCalls:
    """What one process called in one group, ascending by number."""

    name: str
    description: str
    calls: tuple[TorchCall, ...]
    seen: int
    """How many groups of this name the ring has calls of; these are the newest one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCall:
    """One number of a group: one collective, or several that were handed in as one."""

    number: int
    started: bool
    over: bool
    entry: _Entry

    def as_record(self) -> CollectiveRecord:
        """Return it as it crosses the network."""
        name = self.entry.profiling_name
        return CollectiveRecord(
            number=self.number,
            operation=printable(name.rpartition(":")[2], MAX_NAME),
            signature=_signature(self.entry),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRecords:
    """One recorder's reply."""

    groups: tuple[GroupCalls, ...]
    members: dict[str, tuple[int, ...]]
    """Of groups by name, where the recorder knows them: ascending global ranks."""
    forgot_groups: bool
    """A group was used, and the ring has none of its calls any more."""
    is_blank: bool = False
    """It is switched off, or no group is its library's: that nothing was called, it cannot say."""


def parse_records(raw: bytes) -> TorchRecords:
    """Parse what a recorder's handler answers. BadRecords says why not."""
    # Counting marks is quick and says too much at worst: a text may hold some.
    bounds = ((b"{", MAX_OBJECTS), (b"[", MAX_LISTS), (b",", MAX_VALUES))
    if any(raw.count(mark) > limit for mark, limit in bounds):
        raise BadRecords("it is larger than a flight recorder's reply can be")
    try:
        reply = _DECODER.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadRecords(str(error)) from error
    if len(reply.entries) > MAX_ENTRIES:
        raise BadRecords(f"it has {len(reply.entries)} entries, at most {MAX_ENTRIES} are read")
    entries = [entry for entry in reply.entries if not entry.is_p2p]
    return TorchRecords(
        groups=tuple(_calls_by_group(entries)),
        members={
            name: members
            for name, group in reply.pg_config.items()
            if (members := _parse_ranks(group.ranks))
        },
        forgot_groups=_forgot_groups(reply),
        is_blank=not (reply.entries or reply.pg_config or reply.pg_status),
    )


def _calls_by_group(entries: list[_Entry]) -> list[GroupCalls]:
    by_name: dict[str, list[_Entry]] = defaultdict(list)
    for entry in entries:
        by_name[entry.process_group[0]].append(entry)
    return [_as_calls(name, found) for name, found in by_name.items()]


def _as_calls(name: str, entries: list[_Entry]) -> GroupCalls:
    """Take the newest group of this name: the ring still has the calls of those before it."""
    newest = max(reversed(entries), key=lambda entry: entry.record_id)
    numbers: dict[int, list[_Entry]] = defaultdict(list)
    for entry in entries:
        if entry.pg_id == newest.pg_id:
            numbers[entry.collective_seq_id].append(entry)
    description = newest.process_group[1]
    return GroupCalls(
        name=name,
        description="" if description in NO_DESCRIPTIONS else description,
        calls=tuple(_as_call(number, numbers[number]) for number in sorted(numbers)),
        seen=len({entry.pg_id for entry in entries}),
    )


def _as_call(number: int, entries: list[_Entry]) -> TorchCall:
    over = all(entry.retired or entry.state == "completed" for entry in entries)
    started = any(entry.state == "started" for entry in entries)
    return TorchCall(number=number, started=started or over, over=over, entry=entries[-1])


def _forgot_groups(reply: _Reply) -> bool:
    """Say whether a group has been used of which no entry is left."""
    if not reply.entries or min(entry.record_id for entry in reply.entries) == 0:
        return False
    seen = {str(entry.pg_id) for entry in reply.entries}
    return not set(reply.pg_status) <= seen


def _parse_ranks(text: str) -> tuple[int, ...]:
    try:
        ranks = _RANKS.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return ()
    return tuple(sorted(set(ranks))) if len(ranks) <= MAX_WORLD_SIZE else ()


def _signature(entry: _Entry) -> str:
    """Write "float32[256] -> float32[256]"; one too long ends in a hash, so that it stays exact."""
    given = _tensors(entry.input_sizes, entry.input_dtypes)
    taken = _tensors(entry.output_sizes, entry.output_dtypes)
    text = f"{given} -> {taken}" if given or taken else ""
    plain = printable(text, MAX_TEXT)
    if len(text) <= MAX_TEXT:
        return plain
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{plain[: MAX_TEXT - 24]} ... #{digest}"


def _tensors(sizes: list[list[int]], types: list[str]) -> str:
    count = max(len(sizes), len(types))
    return ", ".join(
        f"{_type(types[at]) if at < len(types) else ''}"
        f"{_shape(sizes[at]) if at < len(sizes) else ''}"
        for at in range(count)
    )


def _type(name: str) -> str:
    return _TYPES.get(name, name.lower())


def _shape(sizes: list[int]) -> str:
    return f"[{','.join(map(str, sizes))}]"


def order_of_name(name: str) -> tuple[int, int, str]:
    """Order names of groups as they were made: torch numbers them, and names few by a hash."""
    made = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else -1
    return (0, made, "") if made >= 0 else (1, 0, name)
