"""What errors show, by the type and the text of an exception, or by a line of a log."""

import io
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchtower.evidence.error_texts import (
    ERROR_TEXTS,
    MAX_LOG_TEXT,
    Strength,
    find_error_texts,
    read_error,
    shape_of,
    split_lines,
)
from watchtower.evidence.facts import read_facts
from watchtower.readers import logs

ROWS = read_facts("error_texts")["error"]
FIELDS = {"name", "type", "text", "example", "means", "strength", "blames", "domain", "beside"}
FIELDS |= {"advice", "proof", "ranks", "marks"}

MAX_MEANS = 90
"""Characters: a summary is one line of an alert, which also quotes the error."""

REMOTE = (
    "NCCL error in: a.cpp:1, remote process exited | ncclRemoteError: A call failed | Last error:"
)
CALL = "NCCL error in: a.cpp:1 | ncclSystemError: System call failed | Last error: | Call to"
STORE = "[3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d"
LONG = "NCCL error in: a.cpp:1, unhandled system error" + ", NCCL version 2" * 6


@pytest.mark.parametrize(
    ("kind", "text", "domain"),
    [
        ("OSError", "[Errno 5] Input/output error: '/mnt/a'", "storage"),
        ("OSError", "[Errno 116] Stale file handle", "storage"),
        ("RuntimeError", "write failed: Disk quota exceeded", "storage"),
        ("OSError", "[Errno 113] No route to host", "network"),
        ("requests.exceptions.ConnectTimeout", "HTTPSConnectionPool(...)", "network"),
        ("RuntimeError", "CUDA error: uncorrectable NVLink error detected", "gpu"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'a'", ""),
        ("torch.OutOfMemoryError", "CUDA out of memory", "user_code"),
        ("ValueError", "5", ""),
        (
            "DistBackendError",
            "NCCL error | failed to extend /dev/shm/nccl-a: No space left",
            "node",
        ),
        ("DistBackendError", "NCCL error | NET/IB: completion with status=12 opcode=0", "network"),
        ("DistBackendError", "NCCL error | ncclRemoteError: A call failed", "network"),
        ("DistBackendError", f"{CALL} send to 10.0.0.1<3> failed : Broken pipe", "network"),
        ("DistBackendError", "NCCL error | ncclUnhandledCudaError: Call to CUDA failed", "gpu"),
        ("DistBackendError", "NCCL error | ncclInvalidUsage: This usually reflects", "user_code"),
        ("DistBackendError", "NCCL error | Cuda failure 2 'out of memory'", "user_code"),
        ("DistBackendError", "NCCL error | ncclInternalError: Internal check failed", ""),
    ],
)
def test_a_text_shows_whom_to_call(kind, text, domain):
    found = read_error(kind, text).domain
    assert (found.value if found else "") == domain


@pytest.mark.parametrize(
    ("kind", "text", "is_consequence", "may_follow"),
    [
        ("DistBackendError", REMOTE, True, True),
        (
            "RuntimeError",
            "NCCL error in: a.cpp:1, unhandled system error, NCCL version 2.14",
            False,
            True,
        ),
        ("DistBackendError", f"{LONG} | Call to recv failed: Connection reset by peer", True, True),
        ("DistBackendError", "NCCL error | status=IBV_WC_WR_FLUSH_ERR(5) opcode=1", True, True),
        ("DistBackendError", "NCCL error | status=IBV_WC_RETRY_EXC_ERR(12) opcode=1", False, True),
        ("DistBackendError", f"{REMOTE} | NET/IB: status=12 opcode=1", True, True),
        ("DistBackendError", f"{CALL} send to 10.0.0.1<3> failed : Broken pipe", True, True),
        ("DistBackendError", f"{CALL} connect returned Connection timed out", True, True),
        (
            "DistBackendError",
            f"{CALL} connect failed : Software caused connection abort",
            True,
            True,
        ),
        ("DistBackendError", f"{CALL} bind failed : Permission denied", False, True),
        ("RuntimeError", "connection timed out: the data base", False, False),
        ("DistBackendError", f"{STORE}, but got error: wait timeout after 600000ms", True, False),
        ("DistBackendError", f"{STORE}, but got error: Connection reset by peer", True, True),
        ("DistBackendError", "NCCL communicator was aborted on rank 3.", True, False),
        (
            "DistBackendError",
            "[1] is setting up NCCL communicator: Connection was reset",
            True,
            True,
        ),
        ("DistNetworkError", "The client socket has timed out after 60000ms", True, False),
        ("DistNetworkError", "failed to listen (errno: 98 - Address already in use)", False, False),
        (
            "RuntimeError",
            "[../gloo/transport/tcp/b.cc:78] Timed out waiting 9ms for recv",
            True,
            False,
        ),
        ("RuntimeError", "[../gloo/transport/tcp/pair.cc:5] Connection closed by peer", True, True),
        ("TimeoutError", "barrier of rank 3 timed out", True, False),
        ("TimeoutError", "object store request timed out", False, False),
        ("ValueError", "bad shard 7", False, False),
    ],
)
def test_consequences_and_errors_of_a_ranks_own_are_told_apart(
    kind, text, is_consequence, may_follow
):
    found = read_error(kind, text)
    assert (found.is_consequence, found.may_follow) == (is_consequence, may_follow)


def test_the_shape_of_an_error_is_the_same_on_every_rank():
    one = shape_of("E", "rank 3: connection closed by peer n7<41822>, see /tmp/nccl-Xa")
    assert one == shape_of("E", "rank 12: connection closed by peer n9<1>, see /tmp/nccl-Zb")
    assert one != shape_of("F", "rank 3: connection closed by peer n7<41822>, see /tmp/nccl-Xa")
    assert shape_of("E", "bad shard 7") != shape_of("E", "bad index 7")


def test_lines_of_a_message_are_separated():
    assert split_lines("a | b |  | c|d") == ["a", "b", "c|d"]
    assert split_lines(" ") == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_row_is_whole_and_its_example_is_read_as_that_row(row):
    assert row.keys() <= FIELDS
    assert {"name", "example", "means", "strength", "blames"} <= row.keys()
    assert "text" in row or "type" in row
    assert len(row["means"]) <= MAX_MEANS
    assert not row["means"].endswith(".")
    example = row["example"]
    kind, _, text = example.partition(": ") if is_exception(example) else ("", "", example)
    assert read_error(kind, text).name == row["name"], "an earlier row matches, too"
    assert find_error_texts(example)[0].row.name == row["name"]


def is_exception(example):
    return (
        example.partition(":")[0].rpartition(".")[2].isalnum()
        and " " not in (example.partition(":")[0])
    )


def test_no_name_is_used_twice():
    names = [row["name"] for row in ROWS]
    assert len(names) == len(set(names))


@examples(400)
@given(row=st.sampled_from(ROWS), before=st.text(max_size=200), after=st.text(max_size=200))
def test_an_error_is_found_between_any_other_lines(row, before, after):
    text = f"{before}\n[rank3]: {row['example']}\n{after}"
    found = find_error_texts(text)
    assert row["name"] in {match.row.name for match in found}
    assert all(0 <= match.start < match.end <= len(text) for match in found)


@examples(400)
@given(text=st.text(max_size=2_000))
def test_any_text_is_read(text):
    for match in find_error_texts(text):
        assert 0 <= match.start <= match.end <= len(text)
    read_error(text[:80], text)


def test_of_a_line_of_a_log_the_row_and_its_place_are_found():
    text = "n1:7:9 [3] shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Xk to 9 bytes"
    (found,) = find_error_texts(text)
    assert found.row.name == "nccl_shared_memory"
    assert text[found.start : found.end] == "/dev/shm/nccl"


def test_an_error_about_a_type_is_found_behind_the_prefix_of_a_launcher():
    text = "[rank3]: ConnectionResetError: [Errno 104] Connection reset by peer"
    (found,) = find_error_texts(text)
    assert text[found.start :].startswith("ConnectionResetError")
    assert find_error_texts("the ConnectionResetError handler was installed") == ()


def test_an_exception_of_several_lines_is_read_to_its_end():
    text = "torch.distributed.DistBackendError: NCCL error in: a.cpp:1\nncclRemoteError: x\n"
    names = [each.row.name for each in find_error_texts(text)]
    assert names[0] == "nccl_remote"


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "marks" in row], ids=lambda row: row["name"]
)
def test_a_line_of_a_log_with_the_example_of_a_row_is_found(row):
    line = f"[rank3]: 12:00:01 ERROR train: {row['example']}\n".encode()
    errors = [each for each in logs.read("a.log", io.BytesIO(line)).findings if each.is_line]
    assert [find_error_texts(each.text)[0].row.name for each in errors] == [row["name"]]
    assert {each.owner.rank for each in errors} == {3}


def test_a_line_without_an_error_has_none():
    assert find_error_texts("step 41: loss 0.31, 12.5 samples/s") == ()
    assert find_error_texts("") == ()


def test_only_a_bounded_part_of_a_text_of_a_log_is_read():
    assert find_error_texts(" " * MAX_LOG_TEXT + "CUDA error: device-side assert") == ()


def test_consequences_blame_no_rank_that_raises_them():
    own = {"rank", "node", "gpu"}
    for row in ERROR_TEXTS:
        is_own = row.strength in (Strength.DECIDES, Strength.SUPPORTS)
        assert is_own or row.blames.value not in own, row.name


def test_a_hostile_text_of_any_length_costs_little():
    texts = [
        word * 100_000 for word in ("timed out ", "a | ", "NCCL error ", "/9 ", "invalid usage ")
    ]
    began = time.thread_time()
    for text in texts:
        read_error("RuntimeError", text)
        find_error_texts(text)
        shape_of("RuntimeError", text)
    assert time.thread_time() - began < 0.5
