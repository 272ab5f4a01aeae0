"""Sizes: upper estimates of the bytes of memory that the parts of a job take.

Texts come from processes. The texts of one rank have at most about 2,800 characters of up to four
bytes. A rank with short texts has a fixed size. Longer texts are counted, and shortened if there
are too many.
"""

from __future__ import annotations

from dataclasses import replace

from watchtower.wire.report import AgentGaps, RankVitals

RANK_BYTES = 2048
"""A rank's record with its vitals, and the stack sample of a rank without heartbeats."""

KEY_BYTES = 192
"""A stored process of an earlier attempt."""

PACE_BYTES = 7168
"""The step times of one phase."""

PAUSE_BYTES = 384
"""The longest pause of a kind."""

UNCLAIMED_BYTES = 160
"""A rank whose dumps arrived before a report."""

BATCH_BYTES = 512
"""The stored id of a batch of dumps."""

CHARACTER_BYTES = 4
"""The most that one character of a Python string needs."""

USUAL_CHARACTERS = 256
"""Texts of one rank up to this length are part of `RANK_BYTES`."""

SHORT_PHASE = 32
"""Number of characters that remain of a phase when texts are shortened."""


def count_text(vitals: RankVitals) -> int:
    """Return the bytes of the texts of one rank; 0 if they are as short as usual."""
    count = len(vitals.job) + len(vitals.owner) + len(vitals.launch) + len(vitals.wchan)
    beat, ended = vitals.beat, vitals.ended
    if beat is not None:
        count += len(beat.phase) + len(beat.exception_type) + len(beat.exception_text)
    if ended is not None:
        count += len(ended.exception_type) + len(ended.exception_text)
    return 0 if count <= USUAL_CHARACTERS else CHARACTER_BYTES * count


def shorten(vitals: RankVitals) -> RankVitals:
    """Return vitals without their longest texts: exceptions, kernel functions, ends of phases."""
    beat, ended = vitals.beat, vitals.ended
    if beat is not None:
        phase = beat.phase[:SHORT_PHASE]
        beat = replace(beat, phase=phase, exception_type="", exception_text="")
    if ended is not None:
        ended = replace(ended, exception_type="", exception_text="")
    return replace(vitals, wchan="", beat=beat, ended=ended)


def share_names(vitals: RankVitals, known: RankVitals) -> RankVitals:
    """Return vitals that share the strings of equal names with another rank of the job.

    Each message contains its own copy of a name. With this, all ranks of a job use one copy.
    """
    job = known.job if known.job == vitals.job else vitals.job
    owner = known.owner if known.owner == vitals.owner else vitals.owner
    return replace(vitals, job=job, owner=owner)


def count_pause(kind: tuple[str, str]) -> int:
    """Return the bytes of a learned pause in a phase and a class of frames."""
    return PAUSE_BYTES + CHARACTER_BYTES * sum(map(len, kind))


def count_gaps(gaps: AgentGaps) -> int:
    """Return the bytes of the sentences that an agent reports about itself; 0 without any."""
    return CHARACTER_BYTES * sum(map(len, gaps.sentences()))
