"""Native functions are evidence for people: they are shown, and change no verdict."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import a_native
from tests.diagnosis.causes.test_odd_gpu import SPINNING, observed
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Case
from watchtower.evidence.native import MAX_FUNCTIONS, describe_functions
from watchtower.jobs.incident_reads import AGAIN_S, MAX_TRIES, NativeReads
from watchtower.wire.dumps import NativeFrame, NativeFunctions

SUSPECT = 5
STUCK = SPINNING | {SUSPECT: "working"}


def functions(*calls: str, is_whole: bool = True, **values: object) -> NativeFunctions:
    """Return functions, each given as "name file"."""
    named = (each.rpartition(" ") for each in calls)
    frames = tuple(NativeFrame(function=name, file=file) for name, _, file in named)
    return NativeFunctions(calls=frames, is_whole=is_whole, **values)


WAIT = functions("pthread_cond_wait libc.so.6", "ncclGroupEnd libnccl.so.2")


def with_functions(case: Case, read: NativeFunctions) -> Case:
    ranks = tuple(
        replace(item, dumps=tuple(replace(dump, functions=read) for dump in item.dumps))
        if item.rank == SUSPECT
        else item
        for item in case.ranks
    )
    return replace(case, ranks=ranks)


def test_a_suspect_in_a_device_wait_is_to_be_read():
    assert diagnose(observed(STUCK)).unread_natively == (SUSPECT,)


def test_functions_are_shown_and_not_read_again():
    diagnosis = diagnose(with_functions(observed(STUCK), WAIT))
    shown = [each for each in diagnosis.evidence if each.source == "native"]
    assert [(each.ranks, each.weight) for each in shown] == [(str(SUSPECT), 0.0)]
    assert "pthread_cond_wait (libc.so.6) <- ncclGroupEnd (libnccl.so.2)" in shown[0].text
    assert diagnosis.unread_natively == ()


def test_a_suspect_elsewhere_is_not_read():
    case = observed(STUCK)
    elsewhere = a_native("native", library="_tokens.so", running=True)
    ranks = tuple(
        replace(item, dumps=tuple(replace(dump, native=elsewhere) for dump in item.dumps))
        for item in case.ranks
    )
    assert diagnose(replace(case, ranks=ranks)).unread_natively == ()


@pytest.mark.parametrize(
    "read",
    [
        functions("qwfp zx.so.1", "arst libcuda.so.1"),
        functions("cudaStreamSynchronize libcudart.so.12", is_whole=False),
        functions("<script>alert(1)</script> \x1b[2J"),
        functions(failure="py-spy would have to stop it"),
    ],
)
def test_no_name_changes_the_verdict(read):
    plain, named = diagnose(observed(STUCK)), diagnose(with_functions(observed(STUCK), read))
    rest = tuple(each for each in named.evidence if each.source != "native")
    assert replace(named, evidence=rest, unread_natively=()) == replace(plain, unread_natively=())


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (WAIT, "pthread_cond_wait (libc.so.6) <- ncclGroupEnd (libnccl.so.2)"),
        (functions(" [vdso]", "clock_gettime libc.so.6", is_whole=False), "([vdso]) <- clock"),
        (functions("a x.so", " x.so", " x.so", "b y.so"), "a (x.so) <- b (y.so)"),
        (functions("a\x1b[31m x.so"), "a"),
        (functions(), ""),
        (functions(failure="its cgroup is frozen"), "not read: its cgroup is frozen"),
    ],
)
def test_one_line_for_people(read, says):
    line = describe_functions(read)
    assert line.startswith(says)
    assert line.isprintable()


@pytest.mark.parametrize(
    "read",
    [functions(failure="it spins"), functions("clock_gettime libc.so.6", is_whole=False)],
)
def test_libraries_follow_where_functions_are_missing(read):
    place = a_native("device_wait", libraries=("[vdso]", "libc.so.6", "libcuda.so.1"))
    libraries = "; libraries: [vdso] <- libc.so.6 <- libcuda.so.1"
    assert describe_functions(read, place).endswith(libraries)
    assert describe_functions(WAIT, place) == describe_functions(WAIT)


def test_the_line_is_bounded():
    line = describe_functions(functions(*(f"{'f' * 150}{n} {'l' * 90}.so" for n in range(24))))
    assert line.endswith(" <- ...")
    assert len(line) < MAX_FUNCTIONS * 110


def test_functions_of_before_the_stall_are_not_shown_and_are_read_again():
    case = observed(STUCK)
    old = replace(WAIT, age_s=case.stalled_for_s + 1)
    diagnosis = diagnose(with_functions(case, old))
    assert diagnosis.unread_natively == (SUSPECT,)
    assert not [each for each in diagnosis.evidence if each.source == "native"]


def test_the_age_is_shown():
    line = describe_functions(replace(WAIT, age_s=40.0))
    assert line.endswith("ncclGroupEnd (libnccl.so.2) (read 40 s before the dump)")


class TestWhichRanksAreRead:
    def test_each_suspect_is_ordered_a_few_times_if_nothing_comes(self):
        reads = NativeReads()
        for number in range(MAX_TRIES):
            assert reads.take_due("a", (5,), 4, number * AGAIN_S) == (5,)
            assert reads.take_due("a", (5,), 4, number * AGAIN_S + 1) == ()
            reads.count((5,))
        assert reads.take_due("a", (5,), 4, 99.0) == ()

    def test_an_order_that_no_agent_collects_is_not_a_try(self):
        reads = NativeReads()
        for number in range(MAX_TRIES + 1):
            assert reads.take_due("a", (5,), 1, number * AGAIN_S) == (5,)
        assert reads.take_due("a", (6,), 1, 99.0) == ()
        reads.count((6,))
        assert reads.tries == {5: 0}, "an operator's rank is not counted"

    def test_only_a_few_ranks_of_an_incident(self):
        reads = NativeReads()
        assert reads.take_due("a", tuple(range(9)), 4, 0.0) == (0, 1, 2, 3)
        assert reads.take_due("a", (7, 8), 4, AGAIN_S) == ()
        assert reads.take_due("b", (7, 8), 4, AGAIN_S) == (7, 8)

    def test_none_if_the_setting_is_0(self):
        assert NativeReads().take_due("a", (5,), 0, 0.0) == ()
