"""Describes the boxes of a wait-for graph in words."""

from __future__ import annotations

from watchtower.views.case_summary import RankState, WaitArrow, WaitBox, WaitBoxes
from watchtower.writing.text import capitalise, count_ranks, join_words

MAX_SENTENCE = 450
"""Characters. The picture shows the rest."""

NO_WAIT = "No rank is known to wait for another rank."

STATES = {
    RankState.CANNOT_RUN: "cannot run",
    RankState.ENDED: "ended",
    RankState.MISSING: "was never seen",
    RankState.UNSEEN: "shows no stack",
}

PLURALS = {"was never seen": "were never seen", "shows no stack": "show no stack"}

WAITING = (RankState.WAITING, RankState.DEVICE, RankState.PRESUMED)

NAMED = 3
"""Runs of ranks that are named; of more, the number is given."""


def write_waits(waits: WaitBoxes) -> str:
    """Return the graph in words: the ranks at the end of the waiting, then those that wait."""
    if not waits.boxes:
        return NO_WAIT
    sentences = []
    for index, box in sorted(enumerate(waits.boxes), key=lambda item: item[1].layer):
        arrows = [arrow for arrow in waits.arrows if arrow.from_box == index]
        sentences += _write_box(waits, box, arrows)
    sentences = list(dict.fromkeys(sentences))
    text = ""
    for number, sentence in enumerate(sentences):
        if len(text) + len(sentence) > MAX_SENTENCE:
            left = len(sentences) - number
            return f"{text} {left} more {'wait is' if left == 1 else 'waits are'} not named."
        text = f"{text} {sentence}".strip()
    return text


def name_box(box: WaitBox) -> str:
    """Return "rank 37 (gpu-042)", "ranks 0-6,8" or "480 ranks"."""
    ranks = box.rank_set
    node = f" ({box.node})" if box.node else ""
    if ranks.count == 1:
        return f"rank {ranks.text}{node}"
    if ranks.is_whole and ranks.text.count(",") < NAMED:
        return f"ranks {ranks.text}{node}"
    return f"{count_ranks(ranks.count)}{node}"


def _write_box(waits: WaitBoxes, box: WaitBox, arrows: list[WaitArrow]) -> list[str]:
    name = capitalise(name_box(box))
    is_one = box.rank_set.count == 1
    sentences = []
    if box.is_cycle:
        call = f" in {box.call}" if box.call else ""
        sentences.append(f"{name} wait for each other{call}.")
    elif box.call:
        wait = "waits" if is_one else "wait"
        others = "other ranks made another call" if _is_split(waits, box) else "no rank is missing"
        sentences.append(f"{name} {wait} in {box.call}, and {others} there.")
    by_call: dict[tuple[str, str], list[str]] = {}
    for arrow in arrows:
        target = name_box(waits.boxes[arrow.to_box])
        by_call.setdefault((arrow.label, arrow.source), []).append(target)
    for (label, source), targets in by_call.items():
        call = f" in {label}" if label else ""
        sentences.append(f"{name} {_wait(source, is_one)} for {join_words(targets)}{call}.")
    if not sentences:
        sentences.append(f"{name} {_end(box, is_one)}.")
    return sentences


def _is_split(waits: WaitBoxes, box: WaitBox) -> bool:
    """Return whether other ranks made a call with another operation as the same number."""
    operation, _, number = box.call.partition(" number ")
    others = (other.call.partition(" number ") for other in waits.boxes)
    return any(which == number and what != operation for what, _, which in others)


def _wait(source: str, is_one: bool) -> str:
    if source == "gave up":
        return "waited until it gave up" if is_one else "waited until they gave up"
    if source == "presumed":
        return "seems to wait" if is_one else "seem to wait"
    return "waits" if is_one else "wait"


def _end(box: WaitBox, is_one: bool) -> str:
    if box.state in WAITING:
        return f"{'waits' if is_one else 'wait'}, and it is not known for which rank"
    words = STATES.get(box.state)
    if words is not None:
        return words if is_one else PLURALS.get(words, words)
    if box.place:
        return f"{'is' if is_one else 'are'} at {box.place}"
    return f"{'does' if is_one else 'do'} not wait for another rank"
