"""A known bug adds a sentence and advice to a verdict, and changes nothing else of it."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_HIDDEN_WAIT,
    POLLS,
    a_case,
    a_rank,
    ranks_in,
    with_rank,
)
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.wire.dumps import Software

HOSTS = ranks_in(8, IN_HIDDEN_WAIT, native=POLLS, cpu=1.0, state="R", syscall="", active=True)
"""Hosts that poll for their devices, and none is known to be behind."""

ON_ARM = {"nccl": "2.28.9+cuda12.9", "machine": "aarch64"}
LINK = "marin/issues/8038"


def with_software(built, versions):
    software = tuple(Software(name=name, version=text) for name, text in versions.items())
    dumps = tuple(replace(dump, software=software) for dump in built.evidence.dumps)
    return replace(built, evidence=built.evidence.with_dumps(dumps))


def job(*others, versions=ON_ARM):
    return [with_software(each, versions) for each in with_rank(HOSTS, *others)]


def bugs_in(diagnosis):
    return [each.text for each in diagnosis.evidence if each.source == "known bug"]


def without_bugs(diagnosis):
    return replace(
        diagnosis,
        evidence=tuple(each for each in diagnosis.evidence if each.source != "known bug"),
        next_steps=tuple(each for each in diagnosis.next_steps if LINK not in each),
        lasting_steps=tuple(each for each in diagnosis.lasting_steps if LINK not in each),
    )


def test_it_is_a_sentence_and_advice_and_the_verdict_stays():
    diagnosis, bare = diagnose(a_case(job())), diagnose(a_case(job(versions={})))
    assert [LINK in each for each in bugs_in(diagnosis)] == [True]
    assert bugs_in(diagnosis)[0].startswith("nccl 2.28.9+cuda12.9: before 2.29.3, NCCL may lose")
    assert "upgrade NCCL to 2.29.3" in diagnosis.next_steps[-1]
    assert diagnosis.next_steps[-1] in diagnosis.lasting_steps
    assert without_bugs(diagnosis) == bare


@pytest.mark.parametrize(
    "versions",
    [{**ON_ARM, "nccl": "2.29.3"}, {**ON_ARM, "machine": "x86_64"}, {"machine": "aarch64"}, {}],
    ids=["mended", "another machine", "version not known", "nothing known"],
)
def test_another_version_or_machine_has_none(versions):
    assert bugs_in(diagnose(a_case(job(versions=versions)))) == []


def test_a_suspect_that_does_something_else_does_not_show_it():
    diagnosis = diagnose(a_case(job(a_rank(5, FETCHING, syscall="nanosleep"))))
    assert [each.rank for each in diagnosis.suspects] == [5]
    assert bugs_in(diagnosis) == []


def test_ranks_with_a_version_of_their_own_show_none():
    built = job()
    built[3] = with_software(HOSTS[3], {**ON_ARM, "nccl": "2.30.1"})
    assert bugs_in(diagnose(a_case(built))) == []
