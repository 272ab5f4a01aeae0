"""Suspects and evidence of a verdict, as the pages of an incident and of a job show them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.wire.verdict import Evidence, Suspect, Verdict
from watchtower.writing.verdict_text import SOURCES

MAX_SUSPECTS = 8
"""Suspects that are shown one by one. The others are in their rank set."""

MAX_EVIDENCE = 24
"""Lines of evidence, strongest first: more than any verdict has today."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectShown:
    """One accused rank."""

    rank: int
    node: str
    about: str
    """"GPU 5, pid 4711"."""
    where: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceShown:
    """One observation."""

    source: str
    text: str
    ranks: str
    """Rank set; empty if it is one rank, which the text names."""
    weight: int
    """0 to 100, for a bar; 0 without a weight."""


def show_suspects(verdict: Verdict) -> list[SuspectShown]:
    """Return the accused ranks."""
    return [_show_suspect(each) for each in verdict.suspects[:MAX_SUSPECTS]]


def _show_suspect(suspect: Suspect) -> SuspectShown:
    about = [
        "" if suspect.gpu is None else f"GPU {suspect.gpu}",
        "" if suspect.pid is None else f"pid {suspect.pid}",
    ]
    return SuspectShown(
        rank=suspect.rank,
        node=suspect.node,
        about=", ".join(filter(None, about)),
        where=suspect.where or "",
        why=suspect.why,
    )


def show_evidence(verdict: Verdict) -> list[EvidenceShown]:
    """Return the evidence that has a text, the strongest first."""
    known = sorted((each for each in verdict.evidence if each.text), key=lambda each: -each.weight)
    return [_show_evidence(each) for each in known[:MAX_EVIDENCE]]


def _show_evidence(evidence: Evidence) -> EvidenceShown:
    weight = min(max(evidence.weight, 0.0), 1.0)
    return EvidenceShown(
        source=SOURCES.get(evidence.source, evidence.source),
        text=evidence.text,
        ranks="" if evidence.ranks.isdigit() else evidence.ranks,
        weight=round(weight * 100),
    )
