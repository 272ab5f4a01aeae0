"""The tuple of rules: complete, in tiers, each file one cause."""

from tests.diagnosis.builders import a_rank, picture_of, ranks_in, with_rank
from tests.diagnosis.strategies import FAULTS
from watchtower.diagnosis.causes import RULES, SLOW_RULES
from watchtower.wire.verdict import Cause


def test_every_rule_is_named_once_and_after_its_cause():
    names = [name for name, _ in (*RULES, *SLOW_RULES)]
    assert len(names) == len(set(names))
    assert set(names) <= {cause.value for cause in Cause}


def test_rules_stand_in_the_order_of_their_tiers():
    faults = {**FAULTS, "never_started": None, "init_stuck": None}
    tiers = []
    for name, rule in RULES:
        if faults.get(name) is None:
            continue
        built = with_rank(ranks_in(8), faults[name](3))
        finding = rule(picture_of(built))
        assert finding.cause.value == name
        tiers.append(finding.tier)
    assert tiers == sorted(tiers)


def test_no_rule_accuses_anybody_of_a_job_in_its_collective():
    built = [*ranks_in(7), a_rank(7)]
    found = {name: rule(picture_of(built)) for name, rule in RULES}
    found = {name: finding.suspects for name, finding in found.items() if finding}
    assert found == {"symmetric_hang": ()}
