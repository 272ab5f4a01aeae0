"""The ends in the description of a socket."""

import pytest

from watchtower.core.reading.sockets import is_server_end, read_unanswered, without_answer


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
