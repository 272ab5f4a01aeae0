"""Lines of the kernel log: recorded shapes, forgeries, floods, lost lines, ages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.collectors.kernel_log import (
    MAX_NAMES,
    MAX_OF_FAMILY,
    MAX_RECORDS_PER_TICK,
    KernelLog,
    OomReport,
    parse_record,
)
from watchtower.readers.kernel_lines import read_line
from watchtower.wire.observations import Observation

XID_79 = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
KILLED = (
    "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9000kB, anon-rss:800kB, "
    "file-rss:4kB, shmem-rss:0kB, UID:1000 pgtables:64kB oom_score_adj:0"
)
SEGFAULT = "python[{pid}]: segfault at 0 ip 00007f00 sp 00007ffd error 4 in libnccl.so.2[7f00+1000]"


class Kmsg:
    """A kernel log below a root of its own."""

    def __init__(self, root: Path) -> None:
        self.path = root / "dev/kmsg"
        self.path.parent.mkdir()
        self.path.touch()
        self.sequence = 0
        self.log = KernelLog(str(root))

    def write(self, text: str, *, at_s: float = 100.0, facility: int = 0, skip: int = 0) -> None:
        self.sequence += 1 + skip
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{facility << 3 | 4},{self.sequence},{int(at_s * 1e6)},-;{text}\n")
            file.write(" SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n")

    def collect(self, now: float = 110.0) -> list[Observation]:
        return list(self.log.collect(now))


@pytest.fixture
def kmsg(tmp_path: Path) -> Kmsg:
    return Kmsg(tmp_path)


@pytest.mark.parametrize(
    ("line", "name", "subject", "pid"),
    [
        (XID_79, "xid.79", "pci:0000:3b:00", None),
        ("NVRM: Xid (0000:03:00): 14,", "xid.14", "pci:0000:03:00", None),
        ("NVRM: Xid (PCI:0000:05:00): 46", "xid.46", "pci:0000:05:00", None),
        ("NVRM: Xid (PCI:0000:00:08.0): 145", "xid.145", "pci:0000:00:08", None),
        (
            "NVRM: Xid (PCI:0000:3b:00): 13, pid=1234, name=python3, Ch 00000008",
            "xid.13",
            "pci:0000:3b:00",
            1234,
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 63, pid=1896, Row Remapper: New row marked",
            "xid.63",
            "pci:0000:3b:00",
            1896,
        ),
        (
            "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
            "gpu_lost",
            "pci:0000:3b:00",
            None,
        ),
        (
            "NVRM: GPU at PCI:0000:3b:00 has fallen off the bus.",
            "gpu_lost",
            "pci:0000:3b:00",
            None,
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
            "sxid.20034",
            "pci:0000:c2:00",
            None,
        ),
        (KILLED, "oom_kill", "pid:4711", 4711),
        (
            "Out of memory: Killed process 99 (my) prog), UID 7, total-vm:1kB",
            "oom_kill",
            "pid:99",
            99,
        ),
        (
            "INFO: task python:4711 blocked for more than 122 seconds.",
            "hung_task",
            "pid:4711",
            4711,
        ),
        (
            "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]",
            "soft_lockup",
            "pid:4711",
            4711,
        ),
        (SEGFAULT.format(pid=4711), "segfault", "pid:4711", 4711),
        (
            "pcieport 0000:00:01.0: AER: Uncorrectable (Fatal) error message received from "
            "0000:3b:00.0",
            "pcie_error",
            "pci:0000:3b:00",
            None,
        ),
        (
            "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
            "pcie_error",
            "pci:0000:3b:00",
            None,
        ),
        (
            "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: id=0018",
            "pcie_error",
            "pci:0000:00:01",
            None,
        ),
        (
            "nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), "
            "type=Transaction Layer, (Requester ID)",
            "pcie_error",
            "pci:0000:3b:00",
            None,
        ),
        (
            "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Unaccessible",
            "pcie_error",
            "pci:0000:3b:00",
            None,
        ),
        ("{1}[Hardware Error]: event severity: fatal", "machine_check", "node", None),
        (
            "mlx5_core 0000:5e:00.0: device's health compromised - reached miss count",
            "nic_fault",
            "pci:0000:5e:00",
            None,
        ),
        ("mlx5_core 0000:5e:00.0 eth2: Link down", "nic_link_down", "nic:eth2", None),
        (
            "nfs: server fs1.example not responding, still trying",
            "nfs_not_responding",
            "nfs:fs1.example",
            None,
        ),
        ("I/O error, dev sda, sector 17 op 0x0:(READ) flags 0x0", "disk_error", "disk:sda", None),
    ],
)
def test_a_line_of_the_kernel_is_recognised(
    line: str, name: str, subject: str, pid: int | None
) -> None:
    found = read_line(line)
    assert found is not None
    assert (found.name, found.subject, found.pid) == (name, subject, pid)


@pytest.mark.parametrize(
    "line",
    [
        "usb 1-1: new device",
        "pcieport 0000:00:01.0: AER: Corrected error message received from 0000:3b:00.0",
        "nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        "{1}[Hardware Error]: event severity: corrected",
        # A user chooses the name of a process: 15 characters in a line that begins otherwise.
        "NVRM: Xid (1:0)[7]: segfault at 0 ip 00 sp 00 error 4",
        "audit: type=1400 msg=NVRM: Xid (PCI:0000:3b:00): 79",
        "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Severity 5 Engine instance 00",
        "",
        "NVRM: Xid (PCI:0000:3b:00): 123456789012",
    ],
)
def test_other_lines_are_not_an_xid(line: str) -> None:
    found = read_line(line)
    assert found is None or found.name == "segfault"


def test_a_line_written_by_a_process_does_not_count(kmsg: Kmsg) -> None:
    kmsg.write(XID_79, facility=1)
    assert kmsg.collect() == []


def test_an_observation_has_the_age_of_its_line(kmsg: Kmsg) -> None:
    kmsg.write(XID_79, at_s=100)
    [found] = kmsg.collect(110)
    assert (found.source, found.name, found.age_s, found.text) == (
        "kernel_log",
        "xid.79",
        10.0,
        XID_79,
    )
    [later] = kmsg.collect(170)
    assert later.age_s == 70.0
    assert kmsg.collect(100 + 901) == []


def test_a_line_read_at_once_is_not_older_than_the_last_read(kmsg: Kmsg) -> None:
    """The clock of the kernel log may be minutes behind."""
    kmsg.collect(1000)
    kmsg.write(XID_79, at_s=500)
    [found] = kmsg.collect(1001)
    assert found.age_s == 1.0


def test_the_newest_line_of_a_subject_replaces_the_older(kmsg: Kmsg) -> None:
    kmsg.write(XID_79, at_s=100)
    kmsg.write(XID_79, at_s=105)
    [found] = kmsg.collect(110)
    assert found.age_s == 5.0


def test_a_server_that_answers_again_is_no_trouble(kmsg: Kmsg) -> None:
    kmsg.write("nfs: server fs1 not responding, still trying")
    assert [each.subject for each in kmsg.collect()] == ["nfs:fs1"]
    kmsg.write("nfs: server fs1 OK")
    assert kmsg.collect() == []


def test_the_crashes_of_a_user_do_not_displace_an_xid(kmsg: Kmsg) -> None:
    kmsg.write(XID_79)
    for pid in range(1, 200):
        kmsg.write(SEGFAULT.format(pid=pid))
    found = kmsg.collect()
    assert [each.name for each in found].count("segfault") == MAX_OF_FAMILY
    assert "xid.79" in [each.name for each in found]


def test_the_oom_kills_of_one_user_do_not_displace_those_of_another(kmsg: Kmsg) -> None:
    kmsg.write(KILLED.replace("UID:1000", "UID:2000"))
    for pid in range(5000, 5200):
        kmsg.write(KILLED.replace("4711", str(pid)))
    assert "pid:4711" in [each.subject for each in kmsg.collect()]


def test_a_flood_is_read_in_parts(kmsg: Kmsg, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    real = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: reads.append(fd) or real(fd, 64))
    for _ in range(MAX_RECORDS_PER_TICK):
        kmsg.write("usb 1-1: new device")
    kmsg.write(XID_79)
    assert kmsg.collect() == []
    assert len(reads) == MAX_RECORDS_PER_TICK
    assert any(kmsg.collect() for _ in range(3))


def test_lost_lines_are_reported_for_a_while(kmsg: Kmsg) -> None:
    kmsg.write("usb 1-1: new device")
    kmsg.write("usb 1-1: new device", skip=7)
    kmsg.collect(110)
    assert kmsg.log.gap() == "kernel log: 7 lines were overwritten before they could be read"
    kmsg.collect(1100)
    assert kmsg.log.gap() == ""


def test_a_log_that_cannot_be_read_is_a_gap(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path))
    assert list(log.collect(1.0)) == []
    assert "give the agent CAP_SYSLOG" in log.gap()
    log.stop()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b";",
        b"1,2;x",
        b"a,b,c,-;x",
        b" SUBSYSTEM=pci",
        b"-1,2,3,-;x",
        b"9" * 5000 + b",1,1,-;x",
        b"\xff\xfe,\x00;",
    ],
)
def test_text_that_is_not_a_record_is_skipped(raw: bytes) -> None:
    assert parse_record(raw) is None


def values_of(kmsg: Kmsg, name: str) -> dict[tuple[str, ...], float]:
    samples = kmsg.log.samples(1_000_000.0)
    return {each.labels: each.value for each in samples if each.spec.name == f"watchtower_{name}"}


def test_metrics_count_xids_and_oom_kills_and_show_when_the_last_xid_came(kmsg: Kmsg) -> None:
    for pid in (4711, 4712):
        kmsg.write(KILLED.replace("4711", str(pid)))
    kmsg.write(XID_79, at_s=90)
    kmsg.write(XID_79, at_s=100)
    kmsg.write("NVRM: Xid (PCI:0000:3b:00): 13, pid=7, name=x", at_s=100)
    kmsg.collect(110)
    gpu = "0000:3b:00"
    assert values_of(kmsg, "xids_total") == {(gpu, "79"): 2, (gpu, "13"): 1}
    assert values_of(kmsg, "oom_kills_total") == {(): 2}
    assert values_of(kmsg, "xid_last_timestamp_seconds") == {
        (gpu, "79", "true", "reboot_node"): 999_990.0,
        (gpu, "13", "false", "restart_app"): 999_990.0,
    }


def test_a_log_that_cannot_be_read_has_no_metrics_instead_of_zeros(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path))
    list(log.collect(1.0))
    assert list(log.samples(1.0)) == []


OOM_REPORT = (
    "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "memory: usage 65536kB, limit 65536kB, failcnt 33",
    "Tasks state (memory values in pages):",
    "[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents "
    "oom_score_adj name",
    "[   4700]     0  4700    23740      256      200       56         0   233472        0"
    "             0 python",
    "[   4711]     0  4711    23740     9216     9000      216         0   233472        0"
    "             0 pt_data_worker",
    "[   4712]     0  4712    23740     6144     6000      144         0   233472        0"
    "             0 pt_data_worker",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/pod,task=python,pid=4711,uid=0",
)
"""Lines of a real OOM kill of Linux 6.8 and later, with other numbers."""


def test_an_oom_kill_reports_the_memory_and_who_used_it(kmsg: Kmsg, pages_of_4_kib: None):
    for line in (*OOM_REPORT, KILLED):
        kmsg.write(line)
    (killed,) = kmsg.collect()
    assert killed.text.startswith(
        "its memory cgroup was full (64 MiB of 64 MiB: 2 pt_data_worker 60 MiB, 1 python "
        "1.0 MiB). "
        "Memory cgroup out of memory: Killed process 4711 (python)"
    )
    assert killed.pid == 4711


def test_an_oom_kill_of_the_node_and_of_an_older_kernel(kmsg: Kmsg, pages_of_4_kib: None):
    for line in (
        "cat invoked oom-killer: gfp_mask=0x0(), order=0, oom_score_adj=0",
        "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name",
        *(
            f"[{pid:>7}]  1000 {pid}    11357  {pid * 256}   126976        0          -998 p{pid}"
            for pid in range(10, 15)
        ),
        KILLED,
    ):
        kmsg.write(line)
    (killed,) = kmsg.collect()
    assert killed.text.startswith(
        "the memory of the node was full (1 p14 14 MiB, 1 p13 13 MiB, 1 p12 12 MiB, others 21 "
        "MiB). "
    )


def test_the_report_of_one_kill_says_nothing_about_the_next_one(kmsg: Kmsg):
    for line in (*OOM_REPORT, KILLED, KILLED.replace("4711", "4712")):
        kmsg.write(line)
    by_pid = {each.pid: each.text for each in kmsg.collect()}
    assert by_pid[4712].startswith("Memory cgroup out of memory: ")


def test_a_process_cannot_write_a_report(kmsg: Kmsg):
    for line in OOM_REPORT:
        kmsg.write(line, facility=1)
    kmsg.write(KILLED)
    (killed,) = kmsg.collect()
    assert killed.text == KILLED


def test_a_report_with_thousands_of_names_is_bounded(kmsg: Kmsg):
    report = OomReport()
    for pid in range(MAX_NAMES * 4):
        report.take(f"[{pid:>7}]  0 {pid} 11357  256 126976 0 0 n{pid}")
    assert len(report._held) <= MAX_NAMES + 1
    assert report.finish().count(",") == 3


@pytest.fixture
def pages_of_4_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.collectors.kernel_log.PAGE_BYTES", 4096)
