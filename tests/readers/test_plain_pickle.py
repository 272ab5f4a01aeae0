"""Pickles of strangers: plain values are read, and nothing else is."""

from __future__ import annotations

import contextlib
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchtower.readers.plain_pickle import RefusedPickle, load_plain

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch /tmp/readers-was-here",)


@given(PLAIN, st.integers(0, 5))
def test_plain_values_are_read(value, protocol):
    if protocol in (3, 4, 5) or not isinstance(value, bytes):
        assert load_plain(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_an_object_is_refused_with_the_name_of_its_operation(protocol):
    with pytest.raises(RefusedPickle, match=r"operation (STACK_)?GLOBAL"):
        load_plain(pickle.dumps({"entries": [Evil()]}, protocol))
    assert not os.path.exists("/tmp/readers-was-here")


@pytest.mark.parametrize(
    "operation", [b"R", b"b", b"\x81", b"\x82\x01", b"Q", b"P0\n", b"ios\nx\n"]
)
def test_operations_that_build_or_call_are_refused(operation):
    with pytest.raises(RefusedPickle, match="may build an object"):
        load_plain(b"\x80\x02]" + operation + b".")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a place in memory of 16 GB
        b"\x80\x02]p99999999\n.",
        b"\x80\x02X\xff\xff\xff\x7fab.",
        b"\x80\x02",
        b"",
        b"\x80\x02(((((.",
        b"\x80\x02a.",
    ],
)
def test_a_damaged_pickle_is_refused(raw):
    with pytest.raises(RefusedPickle):
        load_plain(raw)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(raw):
    with contextlib.suppress(RefusedPickle):
        load_plain(b"\x80\x02" + raw)
