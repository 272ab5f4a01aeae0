"""A thread that keeps the interpreter lock in native code (stacks as py-spy shows them)."""

from tests.diagnosis.builders import IN_USER_CODE, a_rank, ranks_in, with_rank
from tests.diagnosis.causes.asking import abstains, answer, ask

HOLDING = "hold_gil /home/ann/job/native.py:12 < Thread.run @threading.py:982"
WAITING = (
    "Condition.wait @threading.py:327 < Event.wait @threading.py:629"
    " < train main.py:50 < <module> main.py:80"
)
IN_NATIVE = "hold_gil /home/ann/job/native.py:12 < train main.py:48 < <module> main.py:80"


def test_a_native_thread_that_keeps_the_lock_is_named_with_its_place():
    held = a_rank(2, WAITING, threads=(("native-holder", HOLDING),), gil="native-holder")
    built = with_rank(ranks_in(4), held)
    assert answer(built) == ("gil_held", [2])
    finding = ask("gil_held", built)
    assert finding.suspects[0].where == "native.py:12 in hold_gil"
    assert "`native-holder`" in finding.summary


def test_the_main_thread_asleep_with_the_lock_is_named():
    held = a_rank(2, IN_NATIVE, gil="MainThread", syscall="clock_nanosleep")
    assert answer(with_rank(ranks_in(4), held)) == ("gil_held", [2])


def test_the_main_thread_at_work_in_python_owns_the_lock_by_right():
    busy = a_rank(2, IN_USER_CODE, gil="MainThread", state="R", active=True, cpu=1.0)
    assert answer(with_rank(ranks_in(4), busy)) == ("busy_loop", [2])


def test_one_look_proves_nothing():
    held = a_rank(2, WAITING, threads=(("holder", HOLDING),), gil="holder", dumps=1)
    assert abstains("gil_held", with_rank(ranks_in(4), held))
