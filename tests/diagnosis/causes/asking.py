"""Asks one rule, and the whole diagnosis, about a case."""

from __future__ import annotations

from tests.diagnosis.builders import a_case, a_rank, ranks_in, with_rank
from watchtower.diagnosis.accusation import MIN_CONFIDENCE
from watchtower.diagnosis.causes import RULES
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.diagnosis.writer.accusations import write_accusation
from watchtower.diagnosis.writer.advice import choose_entries


class Asked:
    """The decision of one rule, and its sentences."""

    def __init__(self, picture, accusation):
        self.accusation = accusation
        written = write_accusation(picture, accusation)
        self.suspects, self.summary = written.suspects, written.summary
        self.evidence = written.evidence
        self.next_steps = tuple(step.text for step in written.next_steps)
        self.entries = choose_entries(picture, accusation)
        """Entries of `advice.toml` that are shown."""

    def __getattr__(self, name):
        return getattr(self.accusation, name)


def ask(name, built, **values):
    """Return the accusation of one rule, null without any."""
    return ask_of_case(name, a_case(built, **values))


def ask_of_case(name, case):
    """Return the accusation of one rule about a case."""
    picture = take_picture(case)
    accusation = dict(RULES)[name](picture)
    return accusation and Asked(picture, accusation)


def abstains(name, built, **values):
    """Return whether a rule accuses nobody, or is less sure than a verdict must be."""
    finding = ask(name, built, **values)
    return finding is None or finding.confidence < MIN_CONFIDENCE


def answer(built, **values):
    """Return cause and suspects of the diagnosis."""
    diagnosis = diagnose(a_case(built, **values))
    return diagnosis.cause.value, [suspect.rank for suspect in diagnosis.suspects]


def job_held_at(stack, **values):
    """Make a job of four whose rank 2 is at this stack, in a futex unless told otherwise."""
    return with_rank(ranks_in(4), a_rank(2, stack, **{"syscall": "futex", **values}))


def shown(asked, kind):
    """Return what the reasons of a kind are about, in order."""
    return [reason.about for reason in asked.reasons if reason.kind is kind]


def quotes(finding, source):
    """Return what a finding quotes without any weight."""
    return [item.text for item in finding.evidence if item.source == source and not item.weight]
