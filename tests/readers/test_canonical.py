"""py-spy's JSON becomes canonical threads; garbage becomes an error with a name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchtower.readers.canonical import BadDump, canonical_file, parse_dump
from watchtower.wire.bounds import MAX_FRAMES, MAX_THREADS


def a_frame(name: str = "train", file: str = "/job/train.py", line: int = 5) -> dict[str, Any]:
    return {"name": name, "filename": file, "short_filename": "x", "module": None, "line": line}


ROOT = a_frame("<module>", line=9)


def a_thread(tid: int, *frames: dict[str, Any], name: str = "", **more: Any) -> dict[str, Any]:
    known = {"pid": 7, "thread_id": 140, "thread_name": name or None, "os_thread_id": tid}
    flags = {"active": False, "owns_gil": False, "process_info": None}
    return {**known, **flags, "frames": list(frames), **more}


def parse(*threads: dict[str, Any], pid: int = 7) -> Any:
    return parse_dump(json.dumps(threads).encode(), pid)


def test_the_main_thread_comes_first_then_who_holds_the_gil() -> None:
    dump = parse(
        a_thread(9, name="b"), a_thread(8, name="holder", owns_gil=True), a_thread(7, ROOT)
    )
    assert [(each.name, each.main) for each in dump.threads] == [
        ("MainThread", True),
        ("holder", False),
        ("b", False),
    ]
    assert dump.whole


def test_in_a_container_the_main_thread_is_known_by_its_name() -> None:
    dump = parse(a_thread(1, ROOT, name="MainThread"), pid=4711)
    assert dump.threads[0].main


def test_without_a_main_thread_a_dump_is_torn() -> None:
    assert not parse(a_thread(8, ROOT, name="other")).whole
    assert not parse().whole


@pytest.mark.parametrize(
    ("root", "whole"),
    [
        (ROOT, True),
        (a_frame("_run_module_as_main", "<frozen runpy>"), True),
        (a_frame("<module>", "<string>"), True),
        (a_frame("_shutdown", "/usr/lib/python3.11/threading.py"), True),
        (a_frame("_shutdown", "/job/mine.py"), False),
        (a_frame("forward", "/job/net.py"), False),
    ],
)
def test_a_stack_is_whole_when_it_begins_where_programs_begin(
    root: dict[str, Any], whole: bool
) -> None:
    assert parse(a_thread(7, a_frame(), root)).whole is whole


def test_the_program_of_a_spawned_process_is_not_code_of_the_user() -> None:
    root = a_frame("<module>", "<string>")
    spawned = a_frame("spawn_main", "/usr/lib/python3.11/multiprocessing/spawn.py")
    for inside, library in ((spawned, True), (a_frame("fit", "/job/fit.py"), False)):
        (stack,) = parse(a_thread(7, a_frame(), inside, root)).stacks
        assert stack.frames[-1].library is library


def test_equal_stacks_cross_once() -> None:
    dump = parse(a_thread(7, a_frame(), ROOT), a_thread(8, a_frame(), ROOT))
    assert len(dump.stacks) == 1
    assert {each.digest for each in dump.threads} == {dump.stacks[0].digest}


def test_a_deep_stack_is_cut_in_the_middle() -> None:
    frames = [a_frame(f"f{i}") for i in range(2000)]
    (stack,) = parse(a_thread(7, *frames, ROOT)).stacks
    assert len(stack.frames) <= MAX_FRAMES
    assert (stack.frames[0].function, stack.frames[-1].function) == ("f0", "<module>")
    assert any("frames cut" in frame.function for frame in stack.frames)


def test_no_more_threads_than_the_wire_allows_and_the_main_one_is_kept() -> None:
    threads = [a_thread(100 + i, a_frame()) for i in range(1000)]
    dump = parse(*threads, a_thread(7, ROOT))
    assert len(dump.threads) == MAX_THREADS
    assert dump.threads[0].main


@pytest.mark.parametrize(
    ("path", "file", "library"),
    [
        ("/v/lib/python3.11/site-packages/torch/nn/x.py", "torch/nn/x.py", True),
        ("/usr/lib/python3/dist-packages/numpy/a.py", "numpy/a.py", True),
        ("/opt/conda/lib/python3.12/queue.py", "queue.py", True),
        ("/usr/lib64/python3.9/multiprocessing/queues.py", "multiprocessing/queues.py", True),
        ("/usr/local/lib/python3.13t/threading.py", "threading.py", True),
        ("/x/lib/python311.zip/os.py", "os.py", True),
        ("/src/heartbeat/watchtower_heartbeat/page.py", "watchtower_heartbeat/page.py", True),
        ("/home/me/watchtower_heartbeat/x/train.py",) * 2 + (False,),
        ("<frozen runpy>", "<frozen runpy>", True),
        ("<string>", "<string>", False),
        ("<eval_with_key>.7 from /home/me/train.py:3 in wrapped", "<generated>", True),
        (f"/tmp/torchinductor_me/ab/c{'ab2' * 17}.py", "<generated>", True),
        ("/home/me/train.py", "/home/me/train.py", False),
        ("train.py", "train.py", False),
    ],
)
def test_library_files_are_named_the_same_on_every_node(
    path: str, file: str, library: bool
) -> None:
    assert canonical_file(path) == (file, library)


def test_names_that_are_no_text_can_be_sent_all_the_same() -> None:
    dump = parse(a_thread(7, a_frame("x" * 5000), ROOT, name="n" * 5000))
    assert len(dump.threads[0].name) == 256


@given(st.binary(max_size=300))
def test_garbage_is_a_bad_dump(raw: bytes) -> None:
    try:
        parse_dump(raw, 7)
    except BadDump:
        return


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["pid", "frames", "name", "line", "filename", "thread_name", "owns_gil"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(json_values)
def test_json_of_any_shape_is_a_dump_or_a_bad_one(value: Any) -> None:
    try:
        parse_dump(json.dumps(value).encode(), 7)
    except BadDump:
        return
