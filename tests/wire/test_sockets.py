"""The text for a socket: what it shows, and a path that contains its words."""

import pytest

from watchtower.wire.sockets import (
    Ends,
    format_connection,
    format_listening,
    format_unix,
    is_listening,
    is_server_end,
    read_ends,
    read_listening_port,
    read_unanswered,
    without_answer,
)


@pytest.mark.parametrize(
    ("target", "is_server"),
    [
        ("tcp 0.0.0.0:8000 listening", True),
        ("unix socket /run/requests", True),
        ("unix socket @requests", True),
        ("unix socket requests", True),
        ("unix socket", False),
        ("tcp 10.0.0.1:2000 -> 10.0.0.2:3000", False),
        ("pipe:[4711]", False),
        ("/mnt/shards/0042.tar", False),
        ("tcp notes listening", False),
        ("", False),
    ],
)
def test_only_a_server_has_a_socket_that_listens_or_a_unix_socket_with_a_path(target, is_server):
    assert is_server_end(target) is is_server


CONNECTION = "tcp 10.0.0.1:2000 -> 10.0.0.2:3000"


@pytest.mark.parametrize(
    ("target", "shown", "address"),
    [
        (f"{CONNECTION} unanswered", CONNECTION, "10.0.0.2:3000"),
        (CONNECTION, CONNECTION, ""),
        ("/data/a -> b unanswered", "/data/a -> b unanswered", ""),
        ("/data/unanswered", "/data/unanswered", ""),
        ("", "", ""),
    ],
)
def test_only_a_connection_is_unanswered_not_a_path_with_these_words(target, shown, address):
    assert (without_answer(target), read_unanswered(target)) == (shown, address)


@pytest.mark.parametrize(
    ("target", "listens"),
    [
        (format_listening("0.0.0.0:8000"), True),
        (format_listening("[::]:8000"), True),
        (format_unix("/run/who is listening"), False),
        (format_unix("tcp 0.0.0.0:8000 listening"), False),
        (f"{CONNECTION} listening", False),
        ("tcp /run/0.0.0.0:8000 listening", False),
        ("tcp 0.0.0.0:port listening", False),
        ("/data/tcp 0.0.0.0:8000 listening", False),
        ("listening", False),
    ],
)
def test_only_a_tcp_socket_listens_not_a_path_with_this_word(target, listens):
    assert is_listening(target) is listens
    assert read_listening_port(target) == (
        int(target.split()[1].rpartition(":")[2]) if listens else None
    )


def test_what_is_written_is_read():
    ends = ("10.0.0.1:2000", "[fd00::2]:3000")
    connection = format_connection(*ends)
    assert read_ends(connection) == Ends("10.0.0.1", "fd00::2")
    assert read_unanswered(connection) == ""
    lost = format_connection(*ends, is_answered=False)
    assert (without_answer(lost), read_unanswered(lost)) == (connection, ends[1])
    assert (format_unix(""), format_unix("@a")) == ("unix socket", "unix socket @a")


@pytest.mark.parametrize("path", ["/a -> b", f"{CONNECTION}", f"{CONNECTION} unanswered"])
def test_the_path_of_a_unix_socket_has_no_ends(path):
    assert read_ends(format_unix(path)) is None
    assert read_unanswered(format_unix(path)) == ""
