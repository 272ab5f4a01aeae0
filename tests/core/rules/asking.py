"""Asks one rule, and the whole diagnosis, about a case."""

from __future__ import annotations

from tests.core.builders import a_case, a_rank, picture_of, ranks_in, with_rank
from watchtower.core.diagnosis.diagnosis import diagnose
from watchtower.core.diagnosis.rules import RULES
from watchtower.core.diagnosis.weighing import MIN_CONFIDENCE


def ask(name, built, **values):
    """Give the finding of one rule."""
    return dict(RULES)[name](picture_of(built, **values))


def abstains(name, built, **values):
    """Tell whether a rule accuses nobody, or is not sure enough to."""
    finding = ask(name, built, **values)
    return finding is None or finding.confidence < MIN_CONFIDENCE


def answer(built, **values):
    """Give cause and suspects of the diagnosis."""
    said = diagnose(a_case(built, **values))
    return said.cause.value, [suspect.rank for suspect in said.suspects]


def job_held_at(stack, **values):
    """Make a job of four whose rank 2 is at this stack, in a futex unless told otherwise."""
    return with_rank(ranks_in(4), a_rank(2, stack, **{"syscall": "futex", **values}))


def quotes(finding, source):
    """Give what a finding quotes without any weight."""
    return [item.text for item in finding.evidence if item.source == source and not item.weight]
