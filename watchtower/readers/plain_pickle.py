"""Reads pickles that contain nothing but plain values. Nothing in them is ever called.

A pickle is a program. Its operations are read twice: first each of them must be in a list of those
that make numbers, texts, lists, tuples and dictionaries, and the numbers of memory places must be
small. Only then the standard unpickler runs, and it may find no class either.
"""

from __future__ import annotations

import io
import pickle
import pickletools

MAX_BYTES = 64 << 20
"""Bytes of a pickle. A flight recorder of 20,000 calls with their Python frames has 40 MB."""

MAX_OPERATIONS = 16 << 20
"""Operations of a pickle: one value needs one or two."""

_LINE, _SIZE_1, _SIZE_4, _SIZE_8 = -1, -2, -3, -4

_PLAIN = {
    "MARK": 0, "STOP": 0, "POP": 0, "POP_MARK": 0, "NONE": 0, "NEWTRUE": 0, "NEWFALSE": 0,
    "INT": _LINE, "LONG": _LINE, "FLOAT": _LINE, "BININT": 4, "BININT1": 1, "BININT2": 2,
    "LONG1": _SIZE_1, "LONG4": _SIZE_4, "BINFLOAT": 8,
    "STRING": _LINE, "BINSTRING": _SIZE_4, "SHORT_BINSTRING": _SIZE_1,
    "UNICODE": _LINE, "BINUNICODE": _SIZE_4, "SHORT_BINUNICODE": _SIZE_1, "BINUNICODE8": _SIZE_8,
    "BINBYTES": _SIZE_4, "SHORT_BINBYTES": _SIZE_1, "BINBYTES8": _SIZE_8,
    "EMPTY_LIST": 0, "APPEND": 0, "APPENDS": 0, "LIST": 0,
    "EMPTY_TUPLE": 0, "TUPLE": 0, "TUPLE1": 0, "TUPLE2": 0, "TUPLE3": 0,
    "EMPTY_DICT": 0, "DICT": 0, "SETITEM": 0, "SETITEMS": 0,
    "GET": _LINE, "BINGET": 1, "LONG_BINGET": 4, "PUT": _LINE, "BINPUT": 1, "LONG_BINPUT": 4,
    "MEMOIZE": 0, "PROTO": 1, "FRAME": 8,
}  # fmt: skip
"""Operations that make plain values, and the bytes that follow: a number, the rest of a line, or a
length of 1, 4 or 8 bytes and as many bytes."""

_BY_CODE = {ord(each.code): each.name for each in pickletools.opcodes}
_FOLLOWS = tuple(_PLAIN.get(_BY_CODE.get(code, "")) for code in range(256))
_STOP, _LONG_PUT, _PUT = ord("."), ord("r"), ord("p")


class RefusedPickle(Exception):
    """The pickle is not read; the message has the reason."""


def load_plain(raw: bytes) -> object:
    """Return the value of a pickle. Raises RefusedPickle."""
    _check(raw)
    try:
        return _Plain(io.BytesIO(raw), encoding="utf-8", errors="replace").load()
    except RefusedPickle:
        raise
    except Exception as error:
        raise RefusedPickle(f"it is damaged ({type(error).__name__})") from None


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        """Refuse every class."""
        raise RefusedPickle(f"it wants to build {module[:40]}.{name[:40]}")


def _check(raw: bytes) -> None:
    """Raise RefusedPickle if any operation is not one that makes plain values."""
    at, end, count = 0, len(raw), 0
    while at < end:
        code = raw[at]
        follows = _FOLLOWS[code]
        count += 1
        if follows is None:
            name = _BY_CODE.get(code, f"0x{code:02x}")
            raise RefusedPickle(f"operation {name} may build an object, so it is not read")
        if count > MAX_OPERATIONS:
            raise RefusedPickle(f"it has more than {MAX_OPERATIONS} operations")
        if code == _STOP:
            return
        after = at + 1 + follows if follows >= 0 else _skip(raw, at + 1, follows)
        if code in (_LONG_PUT, _PUT) and _place(raw[at + 1 : after], code) > count:
            raise RefusedPickle("it uses a place in memory that does not fit its length")
        at = after
    raise RefusedPickle("it is cut off")


def _skip(raw: bytes, at: int, follows: int) -> int:
    if follows == _LINE:
        found = raw.find(b"\n", at)
        return found + 1 if found >= 0 else len(raw)
    width = {_SIZE_1: 1, _SIZE_4: 4, _SIZE_8: 8}[follows]
    return at + width + int.from_bytes(raw[at : at + width], "little")


def _place(text: bytes, code: int) -> int:
    if code == _LONG_PUT:
        return int.from_bytes(text, "little")
    digits = text.strip()
    return int(digits) if digits.isdigit() and len(digits) < 10 else MAX_OPERATIONS + 1
