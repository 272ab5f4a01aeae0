"""Clauses on the proof of which side of a disagreement is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.diagnosis.waits.call_counts import RECEIVE, SEND
from watchtower.diagnosis.waits.divergent_rank import (
    CountAtPoint,
    CountBeside,
    CountDifference,
    CountsBesideAll,
)
from watchtower.diagnosis.waits.messages import (
    AheadOfExchange,
    FurtherStep,
    GoneOn,
    ReceivedMore,
    WaitsIn,
)
from watchtower.diagnosis.waits.mismatches import Proof
from watchtower.diagnosis.waits.odd_rank import Sign
from watchtower.diagnosis.waits.points import describe_group
from watchtower.writing.text import join_words

SIGNS = {
    Sign.BREAKS_CYCLE: "the other ranks wait in a cycle only because of this rank",
    Sign.OTHER_GROUPS: "the other groups of this kind made the same call as the other ranks",
}


def write_proof(proof: Proof | None) -> str:
    """Return a clause about the odd rank: "it has made one send more than rank 3, ..."."""
    if proof is None:
        return ""
    if isinstance(proof, Sign):
        return SIGNS[proof]
    if isinstance(proof, CountAtPoint):
        return _write_at_point(proof)
    if isinstance(proof, CountBeside):
        return _write_beside(proof)
    return _write_beside_all(proof)


def _write_at_point(proof: CountAtPoint) -> str:
    point = proof.point
    assert point.group is not None
    return (
        f"it has made {proof.usual + proof.by} calls in its groups of {proof.role[1]} ranks; the "
        f"others made {proof.usual} before call {point.number} of the group of "
        f"{len(point.group.members)} ranks"
    )


def _write_beside(proof: CountBeside) -> str:
    is_message = proof.role[0] in (SEND, RECEIVE)
    what = proof.role[0] if is_message else f"call in its groups of {proof.role[1]} ranks"
    more, fewer = ("more", "fewer") if proof.by > 0 else ("fewer", "more")
    return f"it has made one {what} {more} than rank {proof.other}, but {fewer} of the other calls"


def _write_beside_all(proof: CountsBesideAll) -> str:
    more = [_write_calls(each, "more") for each in proof.differing if each.by > 0]
    fewer = [_write_calls(each, "fewer") for each in proof.differing if each.by < 0]
    return (
        f"compared with rank {proof.nearest} in its groups, it has made {join_words(more)}, but "
        f"{join_words(fewer)}; no other rank differs both ways"
    )


def _write_calls(each: CountDifference, how: str) -> str:
    count = abs(each.by)
    where = describe_group(each.group) if each.group else f"its groups of {each.role[1]} ranks"
    return f"{count} {'call' if count == 1 else 'calls'} {how} in {where}"


def write_gone_on(proofs: Sequence[GoneOn]) -> str:
    """Return "it waits in all_reduce and it is at step 4, rank 2 is at step 3"."""
    return join_words([_write_one(proof) for proof in proofs])


def _write_one(proof: GoneOn) -> str:
    if isinstance(proof, AheadOfExchange):
        return f"it waits for message {proof.number} from rank {proof.receiver}"
    if isinstance(proof, ReceivedMore):
        return f"it has received {proof.count} from rank {proof.peer}"
    if isinstance(proof, WaitsIn):
        return f"it waits in {proof.operation or 'a collective'}"
    assert isinstance(proof, FurtherStep)
    return f"it is at step {proof.step}, rank {proof.receiver} is at step {proof.step_of_receiver}"
