"""gpu_fault: an error of the GPU that a rank uses, told from errors that explain nothing."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import FETCHING, a_case, a_rank, ranks_in, with_rank
from tests.diagnosis.causes.asking import answer_of_case
from watchtower.diagnosis.causes.blamed import find_blamed
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.evidence.case import Case
from watchtower.evidence.gpus import find_asked
from watchtower.service.xid_table import explain_xid
from watchtower.wire.observations import Observation
from watchtower.wire.verdict import Cause

GPU = "pci:0000:3b:00"
RECOVERY = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x{}"


def an_xid(code, *, pid=None, age_s=30.0, subject=GPU, text=""):
    return Observation(
        source="kernel_log", subject=subject, name=f"xid.{code}", pid=pid, age_s=age_s, text=text
    )


def used_by(pid, subject=GPU):
    return Observation(source="gpu", subject=subject, name="used_by", pid=pid, age_s=1.0)


def observed(*observations, rank=None, stalled_for_s=30.0, others=()) -> Case:
    """A stalled job of 8 ranks on two nodes; the node of rank 2 has these observations."""
    built = with_rank(ranks_in(8), *others)
    case = a_case(built, stalled_for_s=stalled_for_s)
    first, *rest = case.nodes
    return replace(case, nodes=(replace(first, observations=observations), *rest))


def pid_of(case, rank):
    return case.ranks[rank].pid


PID = pid_of(observed(), 2)


@pytest.mark.parametrize("code", [46, 48, 62, 74, 79, 95, 119, 158, 4242])
def test_an_error_of_the_gpu_that_names_the_process(code):
    assert answer_of_case(observed(an_xid(code, pid=PID))) == ("gpu_fault", [2])


def test_an_error_without_a_process_on_the_gpu_that_a_rank_uses():
    assert answer_of_case(observed(an_xid(79), used_by(PID))) == ("gpu_fault", [2])


def test_an_error_without_a_process_accuses_no_rank_while_the_users_are_unknown():
    assert answer_of_case(observed(an_xid(79)))[1] == []


def test_the_error_of_a_gpu_of_another_rank():
    case = observed(an_xid(79), used_by(PID, "pci:0000:5e:00"))
    assert answer_of_case(case)[1] == []


def test_a_process_with_the_same_pid_on_another_node():
    case = observed(an_xid(79, pid=pid_of(observed(), 6)))
    assert pid_of(case, 6) not in {item.pid for item in case.ranks[:4]}
    assert answer_of_case(case)[1] == []


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 92, 93, 154, 163])
def test_codes_for_which_the_gpu_is_not_to_blame(code):
    assert find_blamed(Cause.GPU_FAULT, take_picture(observed(an_xid(code, pid=PID)))) is None


def test_an_error_long_before_the_stall_is_none():
    assert (
        find_blamed(Cause.GPU_FAULT, take_picture(observed(an_xid(79, pid=PID, age_s=900)))) is None
    )


def test_a_job_that_went_on_after_the_error_is_less_certain():
    diagnosis = diagnose(observed(an_xid(79, pid=PID, age_s=70)))
    assert [doubt.kind for doubt in diagnosis.doubts] == ["gpu_error_earlier"]
    assert diagnosis.confidence == 0.75


def test_a_rank_that_waits_is_not_accused_while_another_does_not_wait():
    case = observed(an_xid(79, pid=PID), others=[a_rank(5, FETCHING)])
    assert answer_of_case(case) == ("dataloader_stall", [5])


def test_a_code_45_beside_another_is_not_the_error_that_is_named():
    case = observed(an_xid(45, pid=PID, age_s=31), an_xid(79, pid=PID))
    assert "Xid 79" in diagnose(case).summary


def test_the_driver_decides_what_is_needed():
    words = [an_xid(79, pid=PID), an_xid(154, text=RECOVERY.format("1 (GPU Reset Required)"))]
    step = diagnose(observed(*words)).next_steps[0]
    assert "nvidia-smi --gpu-reset" in step
    assert "(Xid 154)" in step


def test_a_recovery_that_is_unknown_or_over_leaves_the_action_of_the_table():
    for words in ("7 (Sing)", "0 (None)"):
        case = observed(an_xid(79, pid=PID), an_xid(154, text=RECOVERY.format(words)))
        assert diagnose(case).next_steps[0].startswith("drain and reboot gpu-00")


def in_nvml(name, value=None, subject=GPU):
    return Observation(source="nvml", subject=subject, name=name, age_s=2.0, value=value)


def test_the_present_recommendation_of_the_driver_comes_before_its_line_and_the_table():
    words = [
        an_xid(79, pid=PID),
        an_xid(154, text=RECOVERY.format("1 (GPU Reset Required)")),
        in_nvml("gpu_recovery", 2.0),
    ]
    step = diagnose(observed(*words)).next_steps[0]
    assert step.startswith("drain and reboot gpu-00")
    assert "the driver itself asks for this (recovery action in NVML)" in step
    other = in_nvml("gpu_recovery", 2.0, "pci:0000:5e:00")
    assert "(Xid 154)" in diagnose(observed(*words[:2], other)).next_steps[0]


@pytest.mark.parametrize("value", [None, 0.0, 5.0, 6.0, 99.0])
def test_a_recommendation_without_advice_of_ours_leaves_the_action_of_the_table(value):
    assert find_asked([an_xid(62), in_nvml("gpu_recovery", value)], GPU) is None


def test_an_error_that_two_sources_report_is_one():
    twice = [an_xid(79, pid=PID, age_s=30.0), in_nvml("xid.79"), an_xid(62, age_s=1.0)]
    summary = diagnose(observed(*twice)).summary
    assert (summary.count("Xid 79"), summary.count("Xid 62")) == (1, 1)
    assert summary.index("Xid 79") < summary.index("Xid 62")


def test_a_gpu_that_needs_a_reset_is_a_fault_of_it():
    case = observed(in_nvml("gpu_reset_required"), used_by(PID))
    assert answer_of_case(case) == ("gpu_fault", [2])
    assert "the driver reports that a reset is required" in diagnose(case).next_steps[0]


def test_a_gpu_that_is_lost_without_a_number():
    lost = Observation(source="kernel_log", subject=GPU, name="gpu_lost", age_s=30.0)
    assert answer_of_case(observed(lost, used_by(PID))) == ("gpu_fault", [2])


def test_every_code_of_a_range_has_a_meaning():
    assert explain_xid(147).device_class == "nvlink"
    assert explain_xid(9999).action == "contact_support"


@pytest.mark.parametrize("name", ["xid", "xid.", "xid.x", "xid.-1", "xid.²", "xid." + "9" * 100])
def test_a_name_that_is_not_a_code_harms_nothing(name):
    forged = Observation(source="kernel_log", subject=GPU, name=name[:128], age_s=1.0, pid=PID)
    diagnose(observed(forged))


def kernel_log_of(*observations):
    diagnosis = diagnose(observed(*observations))
    return [each for each in diagnosis.evidence if each.source == "kernel log"]


def a_line(text, **values):
    words = {"subject": "node", "name": "machine_check", "age_s": 5.0, **values}
    return Observation(source="kernel_log", text=text, **words)


def test_a_link_that_was_lost_on_the_node_is_shown():
    text = "eth1 lost its link and has it again"
    lost = Observation(
        source="network", subject="nic:eth1", name="nic_link_lost", age_s=4.0, text=text
    )
    (shown,) = (
        each
        for each in diagnose(observed(lost, others=[a_rank(5, FETCHING)])).evidence
        if each.source == "network interfaces"
    )
    assert shown.text == f"gpu-00, 4 s ago: {text} (it names no suspect)"
    assert shown.weight == 0


def test_a_line_about_a_suspect_comes_before_those_that_name_none():
    other = a_line("segfault", name="segfault", pid=99, age_s=1.0)
    found = kernel_log_of(other, an_xid(79, pid=PID, text="NVRM: Xid 79"))
    assert [each.text for each in found] == [
        "gpu-00, 30 s ago: NVRM: Xid 79",
        "gpu-00, 1 s ago: segfault (it names no suspect)",
    ]
    assert [each.weight for each in found] == [0.0, 0.0]


def test_old_lines_and_lines_without_number_are_not_shown():
    lines = [a_line(f"line {number}", name=f"x.{number}") for number in range(9)]
    assert len(kernel_log_of(*lines)) == 4
    assert kernel_log_of(a_line("old", age_s=800.0)) == []
    assert kernel_log_of(replace(a_line("power"), source="gpu")) == []


@pytest.mark.parametrize(("age_s", "is_shown"), [(50.0, False), (290.0, True), (310.0, True)])
def test_a_line_about_others_from_long_after_the_stall_began_is_not_shown(age_s, is_shown):
    case = replace(observed(a_line("out of memory", age_s=age_s)), stalled_for_s=300.0)
    assert any(each.source == "kernel log" for each in diagnose(case).evidence) is is_shown


def test_a_line_cannot_add_markup_or_lines():
    [found] = kernel_log_of(a_line("<!channel>\n`rm -rf`"))
    assert "\n" not in found.text
    assert "`rm" not in found.text
