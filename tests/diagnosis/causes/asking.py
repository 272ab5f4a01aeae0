"""Asks one cause, and the whole diagnosis, about a case."""

from __future__ import annotations

from tests.diagnosis.builders import a_case, a_rank, ranks_in, with_rank
from tests.diagnosis.named import ADVICE
from watchtower.diagnosis.accusation import MIN_CONFIDENCE
from watchtower.diagnosis.advice import choose_closest
from watchtower.diagnosis.causes import CAUSES
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.diagnosis.writer import write_accusation

FIND = {entry.cause.value: entry.find for entry in CAUSES}
NAMES = {sentence: name.lower() for name, sentence in ADVICE.items()}


class Asked:
    """The decision of one cause, and its sentences."""

    def __init__(self, picture, accusation):
        self.accusation = accusation
        written = write_accusation(picture, accusation)
        self.suspects, self.summary = written.suspects, written.summary
        self.evidence = written.evidence
        self.next_steps = tuple(step.text for step in written.next_steps)
        self.entries = tuple(
            NAMES.get(each, "wait_place") for each in choose_closest(picture, accusation)
        )
        """Names of the sentences of advice that are shown."""

    def __getattr__(self, name):
        return getattr(self.accusation, name)


def ask(name, built, **values):
    """Return the accusation of one cause, null without any."""
    return ask_of_case(name, a_case(built, **values))


def ask_of_case(name, case):
    """Return the accusation of one cause about a case."""
    picture = take_picture(case)
    accusation = FIND[name](picture)
    return accusation and Asked(picture, accusation)


def abstains(name, built, **values):
    """Return whether a cause accuses nobody or is not sure enough for a verdict."""
    finding = ask(name, built, **values)
    return finding is None or finding.confidence < MIN_CONFIDENCE


def named(diagnosis):
    """Return cause and suspects of a diagnosis."""
    return diagnosis.cause.value, [suspect.rank for suspect in diagnosis.suspects]


def answer(built, **values):
    """Return cause and suspects of the diagnosis of these ranks."""
    return named(diagnose(a_case(built, **values)))


def answer_of_case(case):
    """Return cause and suspects of the diagnosis of a case."""
    return named(diagnose(case))


def job_held_at(stack, **values):
    """Make a job of four whose rank 2 is at this stack, in a futex unless told otherwise."""
    return with_rank(ranks_in(4), a_rank(2, stack, **{"syscall": "futex", **values}))


def reasons_of(asked, source):
    """Return the sentences of the reasons of a source, in order."""
    return [reason.text for reason in asked.reasons if reason.source == source]


def ranks_of(asked, source):
    """Return the ranks of the reasons of a source, in order."""
    return [reason.ranks for reason in asked.reasons if reason.source == source]


def quotes(finding, source):
    """Return what a finding quotes without any weight."""
    return [item.text for item in finding.evidence if item.source == source and not item.weight]
