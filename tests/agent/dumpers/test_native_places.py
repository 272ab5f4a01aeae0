"""Where threads are in native code, by value: what mappings, samples and stacks mean."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.children import ANY_TOOL, ChildRunner, Ended, Outcome
from agent.dumpers import native_child
from agent.dumpers.native_child import MAX_CHAIN, merge
from agent.dumpers.native_libraries import class_of
from agent.dumpers.native_places import NativePlaces, ThreadSamples, classify, find_place
from agent.memory import GENERATED, Maps
from agent.procfs import Proc
from watchtower.readers.canonical import parse_dump
from watchtower.wire.dumps import MAX_LIBRARIES, KernelWait, NativeKind, NativePlace

MAPS = """\
00400000-00500000 r-xp 00000000 08:01 11 /usr/bin/python3.11
00500000-00600000 rw-p 00100000 08:01 11 /usr/bin/python3.11
7f0000000000-7f0000100000 r-xp 00000000 08:01 12 /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000200000-7f0000300000 r-xp 00000000 08:01 13 /opt/env/numpy.libs/libopenblas64_p-r0-1a2b.so
7f0000400000-7f0000500000 r-xp 00000000 08:01 14 /usr/lib/libcuda.so.550.54.15 (deleted)
7f0000600000-7f0000700000 rwxp 00000000 00:00 0
7f0000800000-7f0000900000 r-xp 00000000 00:01 15 /memfd:doublemapper (deleted)
7f0000a00000-7f0000b00000 r-xp 00000000 00:00 0 [anon:libcuda.so.1]
7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0 [vdso]
7ffc10000000-7ffc10001000 rw-p 00000000 00:00 0 [stack]
"""


def running(leaves: dict[str, int], *chain: str, **values: object) -> NativePlace | None:
    return classify(ThreadSamples(tid=1, running=True, leaves=leaves, chain=list(chain), **values))


def blocked(*chain: str, **values: object) -> NativePlace | None:
    return classify(ThreadSamples(tid=1, leaves={chain[0]: 1}, chain=list(chain), **values))


class TestMaps:
    @pytest.mark.parametrize(
        ("address", "name"),
        [
            (0x400000, "python3.11"),
            (0x4FFFFF, "python3.11"),
            (0x500000, ""),  # data
            (0x7F0000000010, "libc.so.6"),
            (0x7F0000200010, "numpy.libs/libopenblas64_p-r0-1a2b.so"),
            (0x7F0000400010, "libcuda.so.550.54.15"),
            (0x7F0000600010, GENERATED),
            (0x7F0000800010, GENERATED),
            (0x7F0000A00010, GENERATED),
            (0x7FFC00000010, "[vdso]"),
            (0x7FFC10000010, ""),
            (0, ""),
            (2**64 - 1, ""),
        ],
    )
    def test_an_address_is_in_the_mapping_that_may_be_executed(self, address, name):
        assert Maps(MAPS).name_of(address) == name

    def test_the_beginning_of_a_file_is_where_its_headers_are(self):
        text = (
            "7f0000000000-7f0000001000 r--p 00000000 08:01 12 /usr/lib/liba.so\n"
            "7f0000001000-7f0000009000 r-xp 00001000 08:01 12 /usr/lib/liba.so\n"
        )
        assert Maps(text).find(0x7F0000001008).base == 0x7F0000000000
        assert Maps(text.partition("\n")[2]).find(0x7F0000001008).base == 0

    def test_a_chain_has_no_repeats_and_is_bounded(self):
        assert merge(["a", "a", "b", "a"]) == ["a", "b", "a"]
        assert len(merge(str(number) for number in range(1000))) == MAX_CHAIN

    @given(st.text(), st.integers(0, 2**64 - 1))
    def test_any_text_is_read(self, text, address):
        assert isinstance(Maps(text).name_of(address), str)


class TestClasses:
    @pytest.mark.parametrize(
        ("library", "kind"),
        [
            ("libpython3.11.so.1.0", "python"),
            ("python3.11", "python"),
            ("python3.13t", "python"),
            ("libc.so.6", "libc"),
            ("libc-2.31.so", "libc"),
            ("ld-linux-x86-64.so.2", "libc"),
            ("[vdso]", "libc"),
            ("libstdc++.so.6.0.30", "glue"),
            ("_ctypes.cpython-311-x86_64-linux-gnu.so", "glue"),
            ("libcuda.so.550.54.15", "device"),
            ("libnccl.so.2", "device"),
            ("libcudart-a1b2.so.12", "device"),
            ("nvidia.libs/libnccl.so.2", "device"),
            ("libnvrtc.so.12", "compiler"),
            ("xla_extension.so", "device_or_work"),
            (GENERATED, "generated"),
            ("libtorch_cpu.so", "native"),
            ("libcublas.so.12", "native"),
            ("mylibcuda.so", "native"),
            ("", "native"),
        ],
    )
    def test_base_names_have_classes(self, library, kind):
        assert class_of(library) == kind


class TestRunning:
    def test_samples_in_the_interpreter_are_python(self):
        place = running({"python3.11": 8, "libc.so.6": 2}, "libc.so.6", "python3.11")
        assert place.kind is NativeKind.PYTHON

    def test_a_spin_in_the_driver_is_a_wait_for_the_device(self):
        place = running({"[vdso]": 20, "libcuda.so.1": 4}, "[vdso]", "libcuda.so.1")
        assert (place.kind, place.library) == (NativeKind.DEVICE_WAIT, "libcuda.so.1")

    def test_clock_reads_that_the_driver_called_are_one(self):
        assert running({"[vdso]": 24}, "[vdso]", "libcuda.so.1").kind is NativeKind.DEVICE_WAIT

    def test_clock_reads_of_others_are_not(self):
        place = running({"[vdso]": 24}, "[vdso]", "_poller.so")
        assert (place.kind, place.library) == (NativeKind.NATIVE, "_poller.so")

    def test_work_between_calls_of_the_driver_is_work(self):
        place = running({"libtorch_cpu.so": 14, "libcuda.so.1": 10}, "libcuda.so.1")
        assert (place.kind, place.library) == (NativeKind.NATIVE, "libtorch_cpu.so")

    def test_compiling_is_not_waiting(self):
        place = running({"libnvrtc.so.12": 20, "libcuda.so.1": 4}, "libnvrtc.so.12")
        assert (place.kind, place.library) == (NativeKind.COMPILER, "libnvrtc.so.12")

    def test_one_sample_in_the_driver_is_no_wait_for_the_device(self):
        place = running({"libc.so.6": 23, "libcuda.so.1": 1}, "libc.so.6", "_numpy.so")
        assert (place.kind, place.library) == (NativeKind.NATIVE, "_numpy.so")

    def test_some_samples_in_a_compiler_are_not_compiling(self):
        leaves = {"libtorch_cpu.so": 12, "libnvrtc.so.12": 5, GENERATED: 7}
        place = running(leaves, "libtorch_cpu.so")
        assert (place.kind, place.library) == (NativeKind.NATIVE, "libtorch_cpu.so")

    def test_the_compiler_with_most_samples_is_named(self):
        place = running({"libnvrtc.so.12": 5, "libLLVM.so.17": 19}, "libLLVM.so.17")
        assert (place.kind, place.library) == (NativeKind.COMPILER, "libLLVM.so.17")

    def test_generated_code_is_work(self):
        assert running({GENERATED: 24}, GENERATED).kind is NativeKind.GENERATED

    def test_too_few_samples_show_nothing(self):
        assert running({"libcuda.so.1": 3}, "libcuda.so.1") is None
        assert running({}) is None


class TestBlocked:
    @pytest.mark.parametrize(
        ("chain", "kind", "library"),
        [
            (("libc.so.6", "libcuda.so.1", "libtorch.so"), NativeKind.DEVICE_WAIT, "libcuda.so.1"),
            (("libc.so.6", "python3.11", "libcuda.so.1"), NativeKind.PYTHON, "python3.11"),
            (("libc.so.6", "libstdc++.so.6", "_db.so"), NativeKind.NATIVE, "_db.so"),
            (("libc.so.6", "xla_extension.so"), NativeKind.DEVICE_WAIT, "xla_extension.so"),
            (("libc.so.6",), NativeKind.LIBC, "libc.so.6"),
        ],
    )
    def test_the_first_caller_of_the_c_library_decides(self, chain, kind, library):
        place = blocked(*chain)
        assert (place.kind, place.library) == (kind, library)

    def test_counters_and_name_are_kept(self):
        place = blocked("libc.so.6", "python3.11", name="\x1b[2Jmain", run_ns=5, switches=7)
        assert (place.run_ns, place.switches, place.running) == (5, 7, False)
        assert "\x1b" not in place.thread


class TestBackward:
    """torch runs backward in threads of its own, and the main thread sleeps in the engine."""

    main = ThreadSamples(tid=1, leaves={"libc.so.6": 1}, chain=["libc.so.6", "libtorch_cpu.so"])
    waiting = ThreadSamples(
        tid=2, name="pt_autograd_0", running=True, leaves={"libcuda.so.1": 24}, chain=[]
    )
    without_work = ThreadSamples(
        tid=3, name="pt_autograd_1", leaves={"libc.so.6": 1}, chain=["libc.so.6", "libtorch_cpu.so"]
    )

    def test_the_thread_of_backward_with_work_is_the_training_thread(self):
        place = find_place([self.main, self.without_work, self.waiting])
        assert (place.kind, place.thread) == (NativeKind.DEVICE_WAIT, "pt_autograd_0")

    def test_main_decides_where_it_is_not_in_the_engine(self):
        main = ThreadSamples(tid=1, leaves={"libc.so.6": 1}, chain=["libc.so.6", "python3.11"])
        assert find_place([main, self.waiting]).kind is NativeKind.PYTHON

    def test_threads_of_other_names_do_not_count(self):
        other = ThreadSamples(tid=2, name="loader", running=True, leaves={"libcuda.so.1": 24})
        assert find_place([self.main, other]).library == "libtorch_cpu.so"

    def test_nothing_sampled_is_not_known(self):
        assert find_place([]) is None


class TestOtherThreads:
    """Main waits for another thread, which py-spy names: one of them may train."""

    def test_those_with_user_code_are_sampled_first_and_then_those_with_a_task_of_a_library(self):
        frames = [{"name": "train", "filename": "/home/ann/main.py", "line": 3}]
        library = [{"name": "wait", "filename": "/usr/lib/python3.11/threading.py", "line": 3}]
        saver = "/venv/lib/python3.11/site-packages/torch/serialization.py"
        saves = [{"name": "save", "filename": saver, "line": 9}, *library]
        threads = [
            {"os_thread_id": 7, "thread_name": "MainThread", "frames": frames},
            {"os_thread_id": 8, "thread_name": "watchdog", "frames": library},
            {"os_thread_id": 6, "thread_name": "saver", "frames": saves},
            {"os_thread_id": None, "thread_name": "old", "frames": frames},
            {"os_thread_id": -4, "thread_name": "odd", "frames": frames},
            {"os_thread_id": 9, "thread_name": "trainer", "frames": frames},
            {"os_thread_id": 10, "thread_name": "loader", "frames": frames},
        ]
        found = parse_dump(json.dumps(threads).encode(), 7)
        assert found.waited_for(8) == (9, 10, 6)
        assert found.waited_for(1) == (9,)
        place = NativePlace(kind=NativeKind.DEVICE_WAIT, library="libcuda.so.1", running=True)
        kernel = KernelWait(syscall="read")
        placed = found.with_waits({9: place}, {9: kernel, 10: kernel}).threads
        assert {each.name: each.native for each in placed if each.native} == {"trainer": place}
        assert [each.name for each in placed if each.kernel] == ["trainer", "loader"]

    def test_the_child_is_asked_for_these_threads_of_each_process(self):
        asked = []

        class Runner(ChildRunner):
            def run(self, command, deadline_s, owner="", tool=ANY_TOOL):
                asked.extend(command[-2:])
                threads = [{"tid": 9, "leaves": {"libc.so.6": 1}, "chain": ["libc.so.6"]}]
                lines = [{"pid": 7, "threads": threads}, {"pid": 11, "threads": []}]
                output = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
                return Outcome(code=0, output=output, errors=b"", ended=None)

        places = NativePlaces(Proc(), Runner())
        found = places.sample_threads({7: (9, 10), 11: (12,)}, "")
        assert asked == ["7:9,10", "11:12"]
        assert found[7].keys() == {9}
        assert found[11] == {}
        assert places.sample_threads({}, "") == {}

    def test_a_process_that_hangs_the_child_costs_no_other_one_its_place(self):
        asked = []
        thread = {"tid": 1, "leaves": {"libcuda.so.1": 1}, "chain": ["libcuda.so.1"]}

        class Runner(ChildRunner):
            def run(self, command, deadline_s, owner="", tool=ANY_TOOL):
                asked.append(pids := [int(word) for word in command if word in {"7", "8", "9"}])
                lines = []
                for pid in pids:
                    lines.append({"pid": pid})
                    if pid == 8:
                        break
                    lines.append({"pid": pid, "threads": [thread]})
                output = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
                ended = Ended.DEADLINE if 8 in pids else None
                return Outcome(code=None, output=output, errors=b"", ended=ended)

        places = NativePlaces(Proc(), Runner()).sample([7, 8, 9], "")
        assert asked == [[7, 8, 9], [9]]
        assert places.keys() == {7, 9}


names = st.sampled_from(
    ["libc.so.6", "python3.11", "libcuda.so.1", "libnccl.so.2", "a.so", "x" * 600]
)
samples = st.builds(
    ThreadSamples,
    tid=st.integers(1, 9),
    name=st.text(max_size=300),
    running=st.booleans(),
    leaves=st.dictionaries(names | st.text(max_size=300), st.integers(1, 100), max_size=12),
    chain=st.lists(names | st.text(max_size=300), max_size=20),
)


@given(st.lists(samples, max_size=5))
def test_whatever_a_child_prints_is_a_valid_place_or_none(threads):
    place = find_place(threads)
    assert place is None or len(place.libraries) <= MAX_LIBRARIES


def test_states_in_which_a_read_may_hang_are_never_read():
    assert "D" not in native_child.READABLE
    assert "T" not in native_child.READABLE
