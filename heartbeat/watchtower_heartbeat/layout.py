"""The layout of the heartbeat page: the place of every field, for the writer and for the reader.

This is the one definition. docs/heartbeat-page.md describes it for programs in other languages.
Import nothing here: this runs inside training processes.

Every integer is a signed 64-bit word in the machine's own byte order, on an 8-byte boundary. Every
text is UTF-8, padded with NUL bytes, and ends in at least one.
"""

MEMFD_NAME = "watchtower-heartbeat"
"""Name of the memfd, and the first part of a page's file name in a directory."""

MEMFD_LINK = f"/memfd:{MEMFD_NAME} (deleted)"
"""The link of a page's descriptor under /proc/PID/fd."""

PAGE_SIZE = 4096
"""Bytes: the smallest amount of memory that the kernel maps."""

MAGIC = b"WTHBEAT\0"
VERSION = 1
"""Increased if a field moves or changes its meaning, but not for a new field in unused bytes."""

# The head, written once, before any reader can see the page.
MAGIC_AT = 0
VERSION_AT = 8
SIZE_AT = 16

# The hot line: one cache line of its own, three words stored by every heartbeat. They are stored
# back to front, and a reader copies front to back. If the two steps are equal, the time belongs to
# them.
STEP_AT = 64
TIME_NS_AT = 72
STEP_BEGUN_AT = 80

# The cold fields follow the same rule: the count at the end is stored first, the one in front last,
# and the fields in between in any order.
COLD_DONE_AT = 128
COLD_BEGUN_AT = 4088

COLD_WORDS = {
    "pid": 136,
    "start_time_ticks": 144,
    "rank": 152,
    "world_size": 160,
    "local_rank": 168,
    "phase_since_ns": 176,
    "nonfinite_losses": 184,
    "first_nonfinite_step": 192,
    "last_nonfinite_step": 200,
    "ended": 208,
    "ended_ns": 216,
    "exit_code": 224,
    "groups_descriptor": 232,
}
"""Field name to offset."""

COLD_TEXTS = {
    "job": (512, 256),
    "phase": (768, 64),
    "exception_type": (832, 192),
    "exception_message": (1024, 512),
    "record_socket": (1536, 128),
    "declared": (3456, 576),
}
"""Field name to (offset, size in bytes including the closing NUL)."""

# Point-to-point transfers: a row per peer, outside of the cold writes. Each word is stored alone
# and only counts up. A row is valid if its `peer`, stored last, is not zero.
TRANSFERS_AT = 1792
TRANSFER_ROWS = 32
TRANSFER_WORDS = (
    "peer",
    "opened_by_send",
    "sends_begun",
    "sends_done",
    "receives_begun",
    "receives_done",
)
TRANSFERS_LEFT_OUT_AT = 3328
"""Calls with peers for which no row was left."""

ANY_PEER = -1
"""In the word `peer`: receives from any sender. A rank is stored plus one."""

# The process groups: a memfd of its own, append-only, whose descriptor is `groups_descriptor`.
GROUPS_MEMFD_NAME = "watchtower-groups"
GROUPS_MAGIC = b"WTGROUP\0"
GROUPS_VERSION = 1
GROUPS_LENGTH_AT = 16
GROUPS_TEXT_AT = 64
GROUPS_MAX_SIZE = 1 << 20
"""Bytes, including the head. A job has tens of groups, and a line has tens of bytes."""

UNKNOWN = -1
"""Value of every word without a value yet. A step of -1 means: no heartbeat yet."""

STARTS_UNKNOWN = (
    "pid",
    "start_time_ticks",
    "rank",
    "world_size",
    "local_rank",
    "first_nonfinite_step",
    "last_nonfinite_step",
    "exit_code",
)
"""Words of a new page that are not zero."""

ENDED_NOT = 0
ENDED_FINISHED = 1
ENDED_EXCEPTION = 2
ENDED_EXIT = 3
