"""The form in which the tower keeps and stores the summary of a case: compressed, with a limit."""

from __future__ import annotations

import base64
import binascii
import logging
import zlib
from dataclasses import replace
from functools import lru_cache

import msgspec

from watchtower.views.case_summary import CaseSummary
from watchtower.views.summary.grid import cut_grid

log = logging.getLogger("watchtower.diagnoser")

MAX_BYTES = 256 * 1024
"""Bytes of a stored summary. That of a job of 16,384 ranks has about 30 kB."""

MAX_JSON_BYTES = 16 * 1024 * 1024
"""Bytes of a summary as JSON. A job of 131,072 ranks has 1.5 MB."""

MAX_READ = 16
"""Summaries that are kept after they were read. One of 16,384 ranks has 1 MB in memory."""

LEVEL = 1
"""Level of compression: the fastest. The next levels save a tenth."""

_encode = msgspec.json.Encoder().encode
_summaries = msgspec.json.Decoder(CaseSummary)


def write_summary(summary: CaseSummary) -> bytes:
    """Return the summary as one text of at most `MAX_BYTES`.

    If it is too long, the grid of ranks is halved until it fits. Its table of groups stays.
    """
    while True:
        data = _encode(summary)
        body = base64.b64encode(zlib.compress(data, LEVEL))
        count = summary.ranks.count
        if (len(body) <= MAX_BYTES and len(data) <= MAX_JSON_BYTES) or not count:
            return body
        summary = replace(summary, ranks=cut_grid(summary.ranks, count // 2))


@lru_cache(maxsize=MAX_READ)
def read_summary(body: bytes) -> CaseSummary | None:
    """Return the summary; None if this release cannot read it.

    The last ones are kept: an open page asks every second, and several of its parts do.
    """
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(body), MAX_JSON_BYTES)
        return _summaries.decode(data)
    except (binascii.Error, zlib.error, msgspec.MsgspecError, ValueError, RecursionError) as error:
        log.warning("cannot read the summary of a case, it is left out: %s", error)
        return None
