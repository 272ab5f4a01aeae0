"""Runs every peer on one hung job, and returns the answers for the results file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from benchmarks.accuracy.evidence import Evidence
from benchmarks.accuracy.peers import PEERS
from benchmarks.accuracy.peers.peer import Opinion, Peer

NOT_ASKED = "not asked: there is no incident whose evidence could be judged"
LONGEST = 300

Answer = dict[str, object]


def ask_peers(evidence: Evidence | None, peers: Iterable[Peer] = PEERS) -> dict[str, Answer]:
    """Return each peer's answer, by its name."""
    return {peer.name: _ask(peer, evidence) for peer in peers}


def _ask(peer: Peer, evidence: Evidence | None) -> Answer:
    why_not = NOT_ASKED if evidence is None else peer.applies(evidence)
    opinion = Opinion(said="") if evidence is None or why_not else _judge(peer, evidence)
    return {
        "accused": list(opinion.accused),
        "cause": opinion.cause,
        "said": opinion.said,
        "failed": opinion.failed,
        "why_not": why_not,
    }


def _judge(peer: Peer, evidence: Evidence) -> Opinion:
    """Run a peer. A failure or a timeout is a result too."""
    try:
        return peer.judge(evidence)
    except subprocess.TimeoutExpired as error:
        return Opinion(said=f"no answer within {error.timeout:g} s", failed=True)
    except Exception as error:
        return Opinion(said=f"it failed: {type(error).__name__}: {error}"[:LONGEST], failed=True)
