"""Asks one rule, and the whole diagnosis, about a case."""

from __future__ import annotations

from tests.core.builders import a_case, standings_of
from watchtower.core.diagnosis.diagnosis import diagnose
from watchtower.core.diagnosis.rules import RULES
from watchtower.core.diagnosis.weighing import MIN_CONFIDENCE


def ask(name, built, **values):
    """Give the finding of one rule."""
    return dict(RULES)[name](a_case(built, **values), standings_of(built, **values))


def abstains(name, built, **values):
    """Tell whether a rule accuses nobody, or is not sure enough to."""
    finding = ask(name, built, **values)
    return finding is None or finding.confidence < MIN_CONFIDENCE


def answer(built, **values):
    """Give cause and suspects of the diagnosis."""
    said = diagnose(a_case(built, **values))
    return said.cause.value, [suspect.rank for suspect in said.suspects]
