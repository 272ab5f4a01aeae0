"""The kernel's list of mounts, and which of them a blocked thread may be on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.dumpers.kernel_state import read_kernel_wait
from agent.mounts import MAX_LINES, MountTables, find_storage, parse_mount
from agent.procfs import Proc
from watchtower.wire.bounds import MAX_MOUNTS
from watchtower.wire.dumps import Mount

NFS = b"40 30 0:53 / /mnt/my\\040data rw,relatime shared:9 - nfs4 nfs1:/data rw,hard\n"
DISK = b"30 1 98:0 / / rw shared:1 - ext4 /dev/sda1 rw\n"
BIND = b"31 30 98:0 /x /x rw - ext4 /dev/sda1 rw\n"
MEMORY = b"32 30 0:24 / /dev/shm rw - tmpfs tmpfs rw\n"
UNNAMED = b"33 30 0:60 / /mnt/a rw - fuse.x  rw,user_id=0\n"
URL = b"34 30 0:61 / /mnt/b rw - fuse https://ann:secret@host/dav?key=1 rw\n"

PID = 4711


class OneProcess(Proc):
    """A process whose files a test writes."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        super().__init__(str(folder))
        for name, content in files.items():
            path = folder / "proc" / str(PID) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def point_descriptor(self, number: int, target: str, mount: int) -> None:
        process = Path(self.path) / str(PID)
        for folder in ("fd", "fdinfo"):
            (process / folder).mkdir(exist_ok=True)
        (process / "fd" / str(number)).symlink_to(target)
        (process / "fdinfo" / str(number)).write_text(f"pos:\t0\nmnt_id:\t{mount}\n")


@pytest.mark.parametrize(
    ("line", "mount"),
    [
        (NFS, Mount(kind="nfs4", source="nfs1:/data", point="/mnt/my data")),
        (DISK, Mount(kind="ext4", source="/dev/sda1", point="/")),
        (UNNAMED, Mount(kind="fuse.x", source="", point="/mnt/a")),
        # A password in the source stays on the node.
        (URL, Mount(kind="fuse", source="https://host/dav", point="/mnt/b")),
        (b"", None),
    ],
)
def test_a_mount_is_parsed_as_the_kernel_writes_it(line: bytes, mount: Mount | None):
    assert parse_mount(line.rstrip(b"\n")) == mount


@given(st.binary(max_size=200))
def test_any_bytes_give_mounts_or_none(raw: bytes):
    find_storage(raw)


def test_of_a_table_that_was_cut_no_mount_is_the_only_one():
    assert [mount.kind for mount in find_storage(NFS + MEMORY)] == ["nfs4"]
    assert find_storage(NFS + DISK[:-9]) == ()


def test_what_the_kernel_says_of_this_process_is_parsed():
    mounts = MountTables(Proc()).find(os.getpid(), -1)
    with open(__file__, "rb") as file:
        (mine,) = MountTables(Proc()).find(os.getpid(), file.fileno())
    assert mine.point.startswith("/")
    assert mine.kind in {mount.kind for mount in mounts} | {"overlay", "tmpfs"}


def stat(state: str) -> bytes:
    return f"{PID} (python) {state} ".encode() + b" ".join([b"1"] * 49)


def blocked(
    folder: Path, state: str, syscall: bytes, mounts: bytes = NFS + DISK + MEMORY
) -> OneProcess:
    return OneProcess(folder, {"stat": stat(state), "syscall": syscall, "mountinfo": mounts})


def sources(proc: Proc) -> list[str]:
    return [mount.source for mount in read_kernel_wait(proc, PID).mounts]


# The numbers of x86_64 are not those of every machine: read is 63 on aarch64.
READ = b"0 0x3 0x1 0x1 0x0 0x0 0x0 0x7ffd 0x7f00\n"
OPENAT = b"257 0xffffffffffffff9c 0x7f00 0x0 0x0 0x0 0x0 0x7ffd 0x7f00\n"
FUTEX = b"202 0x7f00 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f00\n"
PAGE_FAULT = b"-1 0x7ffd 0x7f00\n"


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def test_a_read_is_on_the_mount_of_its_descriptor(tmp_path):
    proc = blocked(tmp_path, "D", READ)
    proc.point_descriptor(3, "/mnt/my data/0042.tar", 40)
    assert sources(proc) == ["nfs1:/data"]


def test_a_call_with_a_path_may_be_on_each_mount_with_storage(tmp_path):
    proc = blocked(tmp_path, "S", OPENAT, NFS + DISK + BIND + MEMORY)
    assert sources(proc) == ["nfs1:/data", "/dev/sda1"]


def test_a_page_fault_may_be_on_each_mount_with_storage(tmp_path):
    assert sources(blocked(tmp_path, "D", PAGE_FAULT)) == ["nfs1:/data", "/dev/sda1"]


def test_a_thread_that_waits_for_no_file_is_on_no_mount(tmp_path):
    assert sources(blocked(tmp_path / "a", "S", FUTEX)) == []
    proc = blocked(tmp_path / "b", "S", READ)
    proc.point_descriptor(3, "pipe:[31]", 13)
    assert sources(proc) == []


def test_of_more_mounts_than_a_message_has_room_for_none_is_named(tmp_path):
    many = b"".join(
        NFS.replace(b"40 30", b"%d 30" % n).replace(b"nfs1", b"nfs%d" % n)
        for n in range(MAX_MOUNTS + 1)
    )
    assert sources(blocked(tmp_path, "D", PAGE_FAULT, many)) == []


def test_a_namespace_with_more_mounts_than_are_parsed_still_names_that_of_a_descriptor(tmp_path):
    many = MEMORY * MAX_LINES + NFS
    assert sources(blocked(tmp_path / "a", "D", PAGE_FAULT, many)) == []
    assert sources(blocked(tmp_path / "b", "D", PAGE_FAULT, MEMORY * (MAX_LINES - 1) + NFS)) == [
        "nfs1:/data"
    ]
    proc = blocked(tmp_path / "c", "D", READ, many)
    proc.point_descriptor(3, "/mnt/my data/0042.tar", 40)
    assert sources(proc) == ["nfs1:/data"]
