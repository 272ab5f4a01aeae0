"""Where one call site lies, seen from another: by lines, and by loops where source was read."""

from tests.diagnosis.builders import frames
from watchtower.diagnosis.waits.callsites import ProgramOrder, compare_sites
from watchtower.wire.stacks import Frame


def site(*pieces: tuple[str, int, tuple[int, ...]], read: bool = True) -> tuple[Frame, ...]:
    """Frames from (function, line, loops), outermost first."""
    return tuple(
        Frame(function=function, file="train.py", line=line, loops=loops, has_source=read)
        for function, line, loops in pieces
    )


RUN = ("run", 44, ())
TRAINING = site(RUN, ("train", 57, (50,)), ("train_step", 90, ()))


def test_behind_the_loop_of_the_same_function():
    assert (
        compare_sites(site(("train", 60, ())), site(("train", 57, (50,)))) is ProgramOrder.LEFT_LOOP
    )
    assert (
        compare_sites(site(("train", 57, (50,))), site(("train", 60, ()))) is ProgramOrder.IN_LOOP
    )


def test_behind_the_call_of_the_function_with_the_loop():
    finishing = site(("run", 46, ()), ("finish", 118, ()))
    assert compare_sites(finishing, TRAINING) is ProgramOrder.LEFT_LOOP
    assert compare_sites(TRAINING, finishing) is ProgramOrder.IN_LOOP


def test_another_line_of_the_same_loop():
    backing_off = site(RUN, ("train", 67, (50,)), ("back_off", 78, ()))
    assert compare_sites(backing_off, TRAINING) is ProgramOrder.SAME_LOOP
    assert compare_sites(TRAINING, backing_off) is ProgramOrder.SAME_LOOP


def test_a_loop_over_buckets_is_part_of_a_step():
    reducing = site(("train", 57, (50,)), ("reduce_all", 20, (19,)))
    after = site(("train", 60, (50,)), ("back_off", 78, ()))
    assert compare_sites(after, reducing) is ProgramOrder.SAME_LOOP


def test_the_batch_loop_in_an_epoch_loop_is_left():
    stepping = site(("fit", 30, (28,)), ("epoch", 12, (10,)), ("step", 5, ()))
    meeting = site(("fit", 31, (28,)))
    assert compare_sites(meeting, stepping) is ProgramOrder.LEFT_LOOP


def test_code_without_loops():
    assert compare_sites(site(("main", 9, ())), site(("main", 5, ()))) is ProgramOrder.STRAIGHT


def test_without_source_only_the_order_of_lines():
    early, late = site(("train", 5, ()), read=False), site(("train", 9, ()), read=False)
    assert compare_sites(late, early) is ProgramOrder.LATER
    assert compare_sites(early, late) is ProgramOrder.EARLIER


def test_the_same_line_and_nothing_in_common():
    assert compare_sites(TRAINING, TRAINING) is ProgramOrder.SAME_LINE
    assert compare_sites(TRAINING, site(("other", 1, ()))) is ProgramOrder.UNKNOWN
    assert compare_sites((), TRAINING) is ProgramOrder.UNKNOWN
    assert compare_sites(frames("f a.py:1"), frames("f b.py:1")) is ProgramOrder.UNKNOWN
