"""The bytes of the heartbeat page: where every field lies, for the writer and for the reader.

This is the one definition; docs/heartbeat-page.md shows it to people who write the page from
another language. Import nothing here: this runs inside training processes.

Every integer is a signed 64-bit word in the machine's own byte order, on an 8-byte boundary.
Every text is UTF-8, padded with NUL bytes, and ends in at least one.
"""

MEMFD_NAME = "watchtower-heartbeat"
"""Name of the memfd, and the first part of a page's file name in a directory."""

MEMFD_LINK = f"/memfd:{MEMFD_NAME} (deleted)"
"""What readlink says about a page's descriptor under /proc/PID/fd."""

PAGE_SIZE = 4096
"""Bytes; the smallest amount of memory the kernel maps."""

MAGIC = b"WTHBEAT\0"
VERSION = 1
"""Raised when a field moves or changes its meaning; a new field in unused bytes keeps it."""

# The head, written before anybody can see the page and never again.
MAGIC_AT = 0
VERSION_AT = 8
SIZE_AT = 16

# The hot line: one cache line of its own, three words stored by every beat. They are stored back
# to front, and a reader copies front to back: when the two steps agree, the time is theirs.
STEP_AT = 64
TIME_NS_AT = 72
STEP_BEGUN_AT = 80

# The cold fields follow the same rule: the count at the far end is stored first, the one in front
# last, and between the two the fields in any order.
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
}
"""Field name to (offset, size in bytes, the closing NUL included)."""

# Point-to-point transfers: a row per peer, outside of the cold writes. Each word is stored alone
# and only counts up; a row is there when its `peer`, stored last, is not zero.
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
"""Calls with peers for whom there was no row left."""

ANY_PEER = -1
"""In the word `peer`: receives that take from whoever sends first. A rank is shown plus one."""

# The process groups: a memfd of its own, append-only, whose descriptor is `groups_descriptor`.
GROUPS_MEMFD_NAME = "watchtower-groups"
GROUPS_MAGIC = b"WTGROUP\0"
GROUPS_VERSION = 1
GROUPS_VERSION_AT = 8
GROUPS_LENGTH_AT = 16
GROUPS_TEXT_AT = 64
GROUPS_MAX_SIZE = 1 << 20
"""Bytes, head included; a job has tens of groups, and a line has tens of bytes."""

UNKNOWN = -1
"""Said by every word that has no value yet; a step of -1 means: no beat yet."""

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
"""Words of a fresh page that are not zero."""

ENDED_NOT = 0
ENDED_FINISHED = 1
ENDED_EXCEPTION = 2
ENDED_EXIT = 3
