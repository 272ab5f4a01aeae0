"""Reads the output of torch's flight recorder. All assumptions about its JSON format are here.

The recorder for gloo (`fr_trace_json`) was tried with torch 2.13, format 2.10: the facts about it
were observed. The recorder for NCCL (`dump_nccl_trace_json`) was not tried: the facts about it come
from torch's tutorial "Flight Recorder for Debugging Stuck Jobs" (format 2.5).

* `entries` is a ring, by default with 2000 entries, for all groups of a process. `record_id` counts
  from 0, so the oldest one shows whether entries were overwritten.
* An entry's `process_group` is [name, description]. Its `pg_id` is valid in this process only. The
  default group is ["0", "default_pg"]; a group made without a description has "undefined".
* A process that leaves all its groups and joins again uses the same names with another `pg_id`. The
  ring still has the calls of the old groups.
* `collective_seq_id` counts the collectives of a group from 1, and is equal on all its members.
* gloo: `state` is always "scheduled"; `retired` becomes true when the call is over. A call is
  recorded in the caller's thread, and starts at once. Sends and receives have no entries.
  `pg_config` has one key, "", without meaning; with TORCH_FR_BUFFER_SIZE=0 it is empty.
* gloo: a `monitored_barrier` uses two numbers and has no entry. All other collectives have one
  number and one entry, those on objects and lists too. A call that failed (it timed out, or a peer
  died) is retired. Two threads of the library execute the calls of a group and retire them, so a
  later call may be retired before an earlier one.
* NCCL: `state` is "scheduled", "started" or "completed". The start is known only with timing on
  (TORCH_NCCL_ENABLE_TIMING). A scheduled call waits for other work of the GPU, perhaps forever.
  Sends and receives have entries with `is_p2p`. `pg_config` maps a group's name to its `ranks`, the
  text "[0, 1]".
* NCCL: calls that were submitted as one have one number. Only the last entry of it, "coalesced", is
  ever completed. A submission without calls uses a number and has no entry. The calls of a group
  are executed in their order. Those of an aborted communicator are never completed.
* `pg_status` has an entry for each group that was ever used, by `pg_id`. Its counts are not used:
  gloo's include sends and receives.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated

import msgspec

from watchtower.wire.bounds import (
    MAX_AGE_S,
    MAX_INTEGER,
    MAX_NAME,
    MAX_RANK,
    MAX_TEXT,
    MAX_WORLD_SIZE,
)
from watchtower.wire.collectives import CollectiveRecord
from watchtower.writing.printable import printable

MAX_ENTRIES = 20_000
"""Entries read of one recorder: ten times the default ring, and 10 MB of JSON."""

MAX_OBJECTS = 2 * MAX_ENTRIES + 1000
"""Objects in a reply: entries, and two small ones for each group. Checked before decoding, to bound
the memory.
"""

MAX_LISTS = 200_000
"""Lists in a reply: the sizes of one tensor are a list. This bounds the memory too."""

MAX_VALUES = 300_000
"""Values in a reply, counted by commas. The 9,000 entries of 4 MB have 225,000."""

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
"""Names of c10::ScalarType, as torch/csrc writes them, and the names that Python code uses."""

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
    timeout_ms: float = 0.0
    time_created_ns: int = 0


class _Group(msgspec.Struct):
    ranks: str = ""


class _Reply(msgspec.Struct):
    entries: list[_Entry] = []
    pg_config: dict[str, _Group] = {}
    pg_status: dict[str, object] = {}


_DECODER = msgspec.json.Decoder(_Reply)
_RANKS = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0, le=MAX_RANK)]])


class BadRecords(Exception):
    """The reply is not in the known format of torch's flight recorder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCalls:
    """The calls of one process in one group, ascending by number."""

    name: str
    description: str
    calls: tuple[TorchCall, ...]
    seen: int
    """How many groups with this name have calls in the ring. `calls` belong to the newest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCall:
    """One number of a group: one collective, or several that were submitted as one."""

    number: int
    started: bool
    over: bool
    entry: _Entry

    @property
    def made_at(self) -> int:
        """Position among all calls of the process."""
        return self.entry.record_id

    @property
    def timeout_s(self) -> float:
        """Seconds after which the library gives up this call; 0 if that is not known."""
        seconds = self.entry.timeout_ms / 1000
        return seconds if 0 < seconds <= MAX_AGE_S else 0.0

    @property
    def gives_up_at_ns(self) -> float:
        """When its timeout has passed, by the clock of the machine; infinity if not known."""
        made_ns = self.entry.time_created_ns
        return made_ns + self.timeout_s * 1e9 if made_ns > 0 and self.timeout_s > 0 else math.inf

    def as_record(self) -> CollectiveRecord:
        """Return the record for the message to the tower."""
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
    """Ascending global ranks by group name, if the recorder knows them."""
    last_made_ns: int = 0
    """When the process made its newest call, by the clock of the machine."""
    is_whole: bool = False
    """True if the ring has not overwritten any call."""
    forgot_groups: bool
    """True if a group was used and the ring has none of its calls any more."""
    library: str = ""
    """The library whose recorder it is, from the names of its calls: "nccl", "gloo"."""
    is_blank: bool = False
    """True if the recorder is off, or no group uses its library. It does not mean that no call was
    made.
    """


def parse_records(raw: bytes) -> TorchRecords:
    """Parse the answer of a recorder's handler. Raises BadRecords."""
    return make_records(_decode(raw))


def _decode(raw: bytes) -> _Reply:
    # Counting these characters is fast. The count may be too high, because texts may contain them.
    bounds = ((b"{", MAX_OBJECTS), (b"[", MAX_LISTS), (b",", MAX_VALUES))
    if any(raw.count(mark) > limit for mark, limit in bounds):
        raise BadRecords("it is larger than a flight recorder's reply can be")
    try:
        return _DECODER.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadRecords(str(error)) from error


def convert_records(plain: object) -> TorchRecords:
    """Return the records in the plain values of a pickle. Raises BadRecords.

    Before format 2.0, `process_group` was `pg_id`, `collective_seq_id` was `seq_id`, and the first
    format was the list of entries alone.
    """
    whole = plain if isinstance(plain, dict) else {"entries": plain}
    entries = whole.get("entries", [])
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise BadRecords("its entries are not a list of dictionaries")
    _check_sizes(entries)
    status = whole.get("pg_status")
    try:
        reply = msgspec.convert(
            {
                "entries": [_modern(entry) for entry in entries],
                "pg_config": whole.get("pg_config") or {},
                "pg_status": dict.fromkeys(map(str, status), 0) if isinstance(status, dict) else {},
            },
            _Reply,
            strict=False,
        )
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRecords(str(error)) from error
    return make_records(reply)


def _modern(entry: dict[str, object]) -> dict[str, object]:
    """Return an entry with the keys of today."""
    group = entry.get("pg_name", entry.get("pg_id", "0"))
    return {
        "process_group": (str(group), str(entry.get("pg_desc", ""))),
        "collective_seq_id": entry.get("seq_id", 0),
        "record_id": entry.get("id", 0),
        **entry,
    }


def _check_sizes(entries: list[dict[str, object]]) -> None:
    """Raise BadRecords if there are too many sizes. A pickle may use one list many times."""
    if len(entries) > MAX_ENTRIES:
        raise BadRecords(f"it has {len(entries)} entries; the limit is {MAX_ENTRIES}")
    left = MAX_VALUES
    for entry in entries:
        for name in ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes"):
            sizes = entry.get(name) or ()
            for each in sizes if isinstance(sizes, (list, tuple)) else ():
                left -= 1 + (len(each) if isinstance(each, (list, tuple)) else 0)
                if left < 0:
                    raise BadRecords(f"it has more than {MAX_VALUES} sizes of tensors")


def make_records(reply: _Reply) -> TorchRecords:
    """Return the calls in a recorder's reply. Raises BadRecords if there are too many."""
    if len(reply.entries) > MAX_ENTRIES:
        raise BadRecords(f"it has {len(reply.entries)} entries; the limit is {MAX_ENTRIES}")
    entries = [entry for entry in reply.entries if not entry.is_p2p]
    return TorchRecords(
        groups=tuple(_calls_by_group(entries)),
        is_whole=min((entry.record_id for entry in reply.entries), default=0) == 0,
        last_made_ns=max((entry.time_created_ns for entry in reply.entries), default=0),
        members={
            name: members
            for name, group in reply.pg_config.items()
            if (members := _parse_ranks(group.ranks))
        },
        forgot_groups=_forgot_groups(reply),
        library=reply.entries[-1].profiling_name.partition(":")[0] if reply.entries else "",
        is_blank=not (reply.entries or reply.pg_config or reply.pg_status),
    )


def _calls_by_group(entries: list[_Entry]) -> list[GroupCalls]:
    by_name: dict[str, list[_Entry]] = defaultdict(list)
    for entry in entries:
        by_name[entry.process_group[0]].append(entry)
    return [_as_calls(name, found) for name, found in by_name.items()]


def _as_calls(name: str, entries: list[_Entry]) -> GroupCalls:
    """Return the calls of the newest group with this name. The ring may have those of older ones
    too.
    """
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
    """Return the call with this number. Of calls submitted as one, only the last is ever over."""
    over = any(map(_is_over, entries))
    started = any(entry.state == "started" for entry in entries)
    return TorchCall(number=number, started=started or over, over=over, entry=entries[-1])


def _is_over(entry: _Entry) -> bool:
    return entry.retired or entry.state == "completed"


def _forgot_groups(reply: _Reply) -> bool:
    """Return whether a group was used of which no entry is left."""
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
    """Return "float32[256] -> float32[256]". A longer one ends in a hash, so that it stays
    exact.
    """
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
    """Return a sort key: the order in which the groups were made. Torch numbers most names; a few
    are hashes.
    """
    made = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else -1
    return (0, made, "") if made >= 0 else (1, 0, name)
