"""From the functions of the driver to the verdict: what changes at a GPU around the stall."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.diagnosis.builders import IN_ALL_REDUCE, a_case, ranks_in
from tests.system.agent.fake_gpus import SPINS, Gpus
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.drills.compiling import find_compiler
from watchtower.wire.observations import Observation

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")

ODD = 1
"""The rank whose GPU changes: the second one of its node."""

SCRIPT = "count 0 8\n" + "".join(f"{SPINS.format(gpu)}pid {gpu} {4000 + gpu}\n" for gpu in range(4))
GOOD = "field.4 1 7\nfield.94 1 3\nfield.230 1 0\nfabric_state 1 3\n"
SUBJECT = "pci:0000:3b:00"

CHANGES = {
    "gpu_errors.ecc_uncorrected": (
        "field.4 1 12\n",
        "gpu_fault",
        "5 new uncorrected memory errors",
    ),
    "gpu_recovery": ("field.230 1 1\n", "gpu_fault", "the driver asks for a reset"),
    "gpu_remap.failed": ("remap_failed 1 1\n", "gpu_fault", "could not be replaced"),
    "gpu_pcie_width": (
        "width 1 4\nfield.94 1 90\n",
        "gpu_fault",
        "its PCIe link has 4 of 16 lanes; 87 new replays of PCIe",
    ),
    "gpu_fabric": (
        "fabric_state 1 3\nfabric_status 1 999\n",
        "fabric_fault",
        "its NVLink fabric was not set up",
    ),
}


def script_of(change: str) -> str:
    """Return the script in which the lines of a change replace those that were good."""
    changed = {tuple(line.split()[:2]) for line in change.splitlines()}
    kept = [line for line in GOOD.splitlines() if tuple(line.split()[:2]) not in changed]
    return SCRIPT + "\n".join(kept) + "\n" + change


def diagnose_with(observations: list[Observation], stalled_for_s: float = 10.0):
    case = a_case(ranks_in(8, IN_ALL_REDUCE), stalled_for_s=stalled_for_s)
    first, *others = case.nodes
    return diagnose(
        replace(case, nodes=(replace(first, observations=tuple(observations)), *others))
    )


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_at_the_gpu_of_one_rank_names_that_rank(gpus: Gpus, name: str):
    change, cause, said = CHANGES[name]
    gpus.be(script_of(""))
    gpus.wait_for(SUBJECT, "gpu_pattern.spinning")
    assert diagnose_with(list(gpus.observed().values())).cause.value == "unknown"
    gpus.be(script_of(change))
    gpus.wait_for(SUBJECT, name)
    diagnosis = diagnose_with(list(gpus.observed().values()))
    assert (diagnosis.cause.value, [each.rank for each in diagnosis.suspects]) == (cause, [ODD])
    assert diagnosis.domain.value == "gpu"
    assert "uses GPU 1 (0000:3b:00): " in diagnosis.summary
    assert said in diagnosis.summary
    # The same long before the stall: the job made steps with it.
    old = [replace(each, age_s=each.age_s + 900.0) for each in gpus.observed().values()]
    fresh = [each for each in gpus.observed().values() if each.family == "gpu_pattern"]
    changed = [each for each in old if each.family != "gpu_pattern"]
    assert diagnose_with([*fresh, *changed]).cause.value == "unknown"


@pytest.mark.parametrize("name", sorted(set(CHANGES) - {"gpu_errors.ecc_uncorrected"}))
def test_what_an_agent_finds_at_its_start_names_nobody(gpus: Gpus, name: str):
    gpus.be(script_of(CHANGES[name][0]))
    gpus.wait_for(SUBJECT, name)
    assert diagnose_with(list(gpus.observed().values())).suspects == ()
