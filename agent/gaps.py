"""Finds what this agent may not do on this node; each sentence contains what to do."""

from __future__ import annotations

import hashlib
import os

from agent.dumpers.perf_clock import find_sampling_error
from agent.dumpers.python_stacks import MISSING_HELP
from agent.procfs import Proc, parse_fields
from watchtower.wire.report import AgentGaps

CAP_DAC_READ_SEARCH = 2
CAP_SYS_PTRACE = 19

MAY_TRACE = "give the agent CAP_SYS_PTRACE"
YAMA_HELP = (
    "Yama (kernel.yama.ptrace_scope=1) allows only a parent to trace: {may_trace}, or start the "
    "training process with WATCHTOWER_PTRACE=any"
)
NEEDED = {CAP_SYS_PTRACE: "CAP_SYS_PTRACE", CAP_DAC_READ_SEARCH: "CAP_DAC_READ_SEARCH"}
"""Both are needed together. Environment, descriptors and system call of another user's process are
files of that user, and the kernel also checks ptrace rights for them.
"""

WHOLE_UID_MAP = ["0", "0", "4294967295"]
"""The uid map of the first user namespace. Capabilities in another one are valid only there."""

CONTAINED_HELP = (
    "sees only the processes of its own container: for all others it needs the host's pid "
    "namespace (hostPID: true, --pid=host)"
)
HOST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h: the inode of the first pid
namespace.
"""


MAX_PERF_PARANOID = 2
"""Up to this value of kernel.perf_event_paranoid, the right to trace a process is also the right to
sample it in user space. Debian and Ubuntu have higher ones."""


def find_gaps(proc: Proc, py_spy: str) -> AgentGaps:
    """Return what Yama, perf, our capabilities and py-spy do not allow."""
    missing = find_missing_rights(proc)
    others = f"finds only ranks of user {os.getuid()}: for other users it needs {missing}"
    return AgentGaps(
        python_stacks=find_gap_of_stacks(proc, py_spy),
        process="; ".join(filter(None, (others if missing else "", find_gap_of_container(proc)))),
        native_places=explain_sampling(find_sampling_error(), read_perf_paranoid(proc)),
    )


def explain_sampling(error: str, perf_paranoid: int) -> str:
    """Return why running threads cannot be sampled, and what to do; empty without an error."""
    if not error:
        return ""
    cause = f"running threads cannot be sampled ({error})"
    if perf_paranoid > MAX_PERF_PARANOID:
        return f"{cause}: kernel.perf_event_paranoid={perf_paranoid} needs CAP_PERFMON"
    return f"{cause}: allow the system call perf_event_open to the agent"


def find_gap_of_stacks(proc: Proc, py_spy: str, may_trace: str = MAY_TRACE) -> str:
    """Return why py-spy cannot dump on this node; empty if it can. `may_trace`: what to do."""
    ptrace_scope = read_ptrace_scope(proc)
    if not py_spy:
        return MISSING_HELP
    if ptrace_scope >= 3:
        return "Yama (kernel.yama.ptrace_scope=3) forbids all tracing until the next boot"
    if has(read_capabilities(proc), CAP_SYS_PTRACE):
        return ""
    if ptrace_scope == 1:
        return YAMA_HELP.format(may_trace=may_trace)
    if ptrace_scope == 2:
        return f"Yama (kernel.yama.ptrace_scope=2) needs CAP_SYS_PTRACE: {may_trace}"
    return ""


def find_gap_of_container(proc: Proc) -> str:
    """Return which processes a container hides; empty if this is not one."""
    return "" if read_pid_namespace(proc) == HOST_PID_NAMESPACE else CONTAINED_HELP


def find_missing_rights(proc: Proc) -> str:
    """Return what is needed to read the processes of other users; empty if it is there."""
    capabilities = read_capabilities(proc)
    missing = [name for number, name in NEEDED.items() if not has(capabilities, number)]
    if missing:
        alone = "" if len(missing) == len(NEEDED) else " too: both are needed together"
        return f"{' and '.join(missing)}{alone}"
    if in_user_namespace(proc):
        return "capabilities outside of a user namespace (rootless container)"
    return ""


def in_user_namespace(proc: Proc) -> bool:
    """Return whether our capabilities are limited to a user namespace."""
    words = proc.try_read(os.getpid(), "uid_map", 4096).decode("ascii", "replace").split()
    return bool(words) and words != WHOLE_UID_MAP


def has(capabilities: int, number: int) -> bool:
    """Return whether a capability is in the set."""
    return bool(capabilities >> number & 1)


def read_capabilities(proc: Proc) -> int:
    """Return our effective capabilities as the kernel's bit set."""
    text = parse_fields(proc.try_read(os.getpid(), "status", 8192)).get("CapEff", "0")
    return int(text, 16)


def read_pid_namespace(proc: Proc) -> int:
    """Return the inode of our pid namespace; if it cannot be read, that of the host."""
    try:
        return os.stat(f"{proc.path}/self/ns/pid").st_ino
    except OSError:
        return HOST_PID_NAMESPACE


def read_boot(proc: Proc) -> str:
    """Return a value that identifies the boot of the kernel; empty if it cannot be read.

    It is a hash, because other programs may use the id itself as a secret.
    """
    try:
        with open(f"{proc.path}/sys/kernel/random/boot_id", "rb") as file:
            boot_id = file.read(64).strip()
    except OSError:
        return ""
    return hashlib.sha256(b"watchtower " + boot_id).hexdigest()[:32] if boot_id else ""


def read_ptrace_scope(proc: Proc) -> int:
    """Return Yama's setting; 0 without Yama."""
    return _read_setting(proc, "yama/ptrace_scope")


def read_perf_paranoid(proc: Proc) -> int:
    """Return how much of perf is for those with CAP_PERFMON only; 0 without perf."""
    return _read_setting(proc, "perf_event_paranoid")


def _read_setting(proc: Proc, name: str) -> int:
    try:
        with open(f"{proc.path}/sys/kernel/{name}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
