"""Reads what is in archives and compressed files: tar, zip, gzip, bzip2, xz, also in each other.

Nothing is written to the disk: names of members are only shown, links and devices are left out.
What comes out of an archive has a bound, however small it is. A damaged archive, such as one whose
copy was cut off, is read as far as it goes.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO, cast

from watchtower.readers.files import HEAD_BYTES, read_file
from watchtower.readers.findings import FileFound

MAX_UNPACKED_BYTES = 8 << 30
"""Bytes that come out of one archive: 800 logs of 10 MB. A bomb of 10 MB holds any number."""

MAX_MEMBERS = 65_536
"""Files in one archive."""

MAX_LAYERS = 4
"""Archives in each other: a zip file of a tar file that gzip compressed, with a compressed log."""

DAMAGED = (
    OSError, EOFError, ValueError, RuntimeError, ArithmeticError, struct.error, zlib.error,
    lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile,
)  # fmt: skip
"""What Python raises of archives that are damaged, encrypted, or compressed in an unknown way."""

_COMPRESSED: tuple[tuple[bytes, tuple[str, ...], Callable[[BinaryIO], object]], ...] = (
    (b"\x1f\x8b", (".gz", ".tgz"), lambda stream: gzip.GzipFile(fileobj=stream)),
    (b"BZh", (".bz2",), bz2.BZ2File),
    (b"\xfd7zXZ\0", (".xz",), lzma.LZMAFile),
)
_TAR, _TAR_AT = b"ustar", 257
_ZIP = b"PK\3\4"
_CHECKPOINT = "/data.pkl"
"""The first member of a checkpoint of torch, which is a zip file of tensors."""


class _Budget:
    """What may still come out of an archive."""

    def __init__(self) -> None:
        self.bytes = MAX_UNPACKED_BYTES
        self.members = MAX_MEMBERS
        self.trouble = ""


class _Bounded(io.RawIOBase):
    """A stream that ends where its budget ends, or where it is damaged."""

    def __init__(self, source: BinaryIO, budget: _Budget) -> None:
        super().__init__()
        self._source = source
        self._budget = budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        """Read into a buffer; 0 at the end."""
        view = memoryview(cast("bytearray", buffer))
        try:
            data = self._source.read(min(len(view), self._budget.bytes))
        except DAMAGED as error:
            self._budget.trouble = f"is damaged, and was read in part: {error}"
            return 0
        self._budget.bytes -= len(data)
        if self._budget.bytes <= 0:
            self._budget.trouble = f"holds more than {MAX_UNPACKED_BYTES >> 30} GB: read in part"
        view[: len(data)] = data
        return len(data)


def read_all(name: str, stream: io.BufferedReader) -> Iterator[FileFound]:
    """Yield what a reader found in a file, or in each file of an archive."""
    yield from _read(name, stream, _Budget(), MAX_LAYERS)


def _read(
    name: str, stream: io.BufferedReader, budget: _Budget, layers: int
) -> Iterator[FileFound]:
    head = stream.peek(HEAD_BYTES)
    packed = next((each for each in _COMPRESSED if head.startswith(each[0])), None)
    is_tar = head[_TAR_AT:].startswith(_TAR)
    if packed is None and not is_tar and not head.startswith(_ZIP):
        found = read_file(name, stream)
        trouble, budget.trouble = budget.trouble, ""
        yield replace(found, trouble=found.trouble or trouble)
    elif layers <= 0:
        yield FileFound(name=name, form="archive", trouble="is in too many archives")
    elif packed is not None:
        plain = next((name.removesuffix(end) for end in packed[1] if name.endswith(end)), name)
        yield from _read(plain, _bound(packed[2](stream), budget), budget, layers - 1)
    else:
        members = _tar_members(stream) if is_tar else _zip_members(stream)
        yield from _read_members(name, members, budget, layers - 1)


def _bound(source: object, budget: _Budget) -> io.BufferedReader:
    return io.BufferedReader(_Bounded(cast("BinaryIO", source), budget), HEAD_BYTES)


def _read_members(
    name: str, members: Iterator[tuple[str, BinaryIO]], budget: _Budget, layers: int
) -> Iterator[FileFound]:
    trouble = ""
    try:
        for path, stream in members:
            budget.members -= 1
            if budget.members < 0 or budget.bytes <= 0:
                trouble = "has too much in it: the rest is not read"
                break
            yield from _read(f"{name}/{path}", _bound(stream, budget), budget, layers)
    except DAMAGED as error:
        trouble = f"is damaged, and was read in part: {error}"
    if trouble:
        yield FileFound(name=name, form="archive", trouble=trouble)


def _tar_members(stream: io.BufferedReader) -> Iterator[tuple[str, BinaryIO]]:
    """Yield the files of a tar archive. One in another archive is read from begin to end."""
    is_plain = not isinstance(stream.raw, _Bounded)
    with tarfile.open(fileobj=stream, mode="r:" if is_plain else "r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None:
                yield member.name, cast("BinaryIO", content)


def _zip_members(stream: io.BufferedReader) -> Iterator[tuple[str, BinaryIO]]:
    """Yield the files of a zip archive, whose table of contents is at its end."""
    if isinstance(stream.raw, _Bounded):
        raise ValueError("a zip file in another archive: unpack it first")
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        if members and members[0].filename.endswith(_CHECKPOINT):
            return
        for member in members:
            if not member.is_dir():
                with archive.open(member) as content:
                    yield member.filename, cast("BinaryIO", content)
