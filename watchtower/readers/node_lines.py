"""What commands and services print about nodes and processes: `nvidia-smi -q`, `ip link`, `ibstat`,
srun, sacct, scontrol, JAX, vLLM, Ray, DeepSpeed.

Some of these lines name a rank: srun the tasks that ended, JAX the tasks that did not come. Others
are about a node or a service, so they name no rank and are only shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from watchtower.readers.findings import (
    BarrierFound,
    EndFound,
    Finding,
    Known,
    ObservedFound,
    Owner,
    Place,
)
from watchtower.readers.text_lines import Line
from watchtower.wire.bounds import MAX_RANK
from watchtower.wire.observations import NODE, Observation, name_pci
from watchtower.writing.printable import printable

MAX_SHOWN = 160
"""Characters of a line that is shown."""

MAX_TASKS = 4096
"""Tasks that one line names."""

# --- commands -------------------------------------------------------------------------------------

GPU_WORDS = (b"GPU 0000",)
GPU_LINES = 500
"""Lines of one GPU in `nvidia-smi -q`: 350 with the newest driver, and two for each process."""

PORT_WORDS = (b"CA '",)
PORT_LINES = 24
"""Lines of one adapter with two ports in `ibstat`."""

LINK_WORDS = (b" state DOWN",)

_GPU = re.compile(r"GPU (0000[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)$")
_VALUE = re.compile(r"\s{2,40}([A-Z][\w ./()-]{1,60}?)\s{1,60}: (.{1,80})$")
_LINK = re.compile(
    r"\d{1,5}: (?P<name>[\w.@-]{1,32}): <(?P<flags>[\w,-]{0,120})>.{0,200} state DOWN"
)
_ADAPTER = re.compile(r"\s{0,8}CA '([\w.-]{1,32})'")
_PORT = re.compile(r"\s{0,16}Port (\d{1,3}):")
_STATE = re.compile(r"\s{0,16}(State|Physical state): (\w{1,32})")

_BAD_GPU = {
    ("Reset Required", "Yes"): ("gpu_reset_required", "it needs a reset"),
    ("Remapping Failure Occurred", "Yes"): ("gpu_remap", "a damaged row was not replaced"),
    ("State", "In Progress"): ("gpu_fabric", "it has not joined its NVLink fabric"),
    ("State", "Not Started"): ("gpu_fabric", "the fabric manager has not set it up"),
}
"""Lines of `nvidia-smi -q` that show a fault, and what they show."""

_COUNTED = ("SRAM Uncorrectable", "DRAM Uncorrectable")
_DATED = frozenset({"gpu_reset_required"})
"""These cannot be older than the processes on the GPU."""


def read_gpu(lines: Sequence[Line], place: Place, owner: Owner) -> Iterator[Finding]:
    """Yield what `nvidia-smi -q` shows of the GPU that begins with the first of these lines."""
    head = _GPU.match(lines[0].text)
    if head is None:
        return
    found: dict[str, str] = {}
    pids: list[int] = []
    for line in takewhile(lambda line: not _GPU.match(line.text), lines[1:]):
        if value := _VALUE.match(line.text):
            _take_value(value[1].strip(), value[2].strip(), found, pids)
    for name, text in found.items():
        for pid in pids if name in _DATED and pids else [None]:
            yield _observe(place, "nvml", name, f"GPU {head[1]}: {text}", name_pci(head[1]), pid)


def _take_value(name: str, text: str, found: dict[str, str], pids: list[int]) -> None:
    """Add a fault that a line shows, or a process."""
    is_number = text.isdecimal() and len(text) <= 10
    if name == "Process ID" and is_number:
        pids.append(int(text))
    elif name in _COUNTED and is_number and int(text) > 0:
        found["gpu_ecc"] = f"{text} {name} errors"
    elif fault := _BAD_GPU.get((name, text)):
        found[fault[0]] = fault[1]


def read_link(lines: Sequence[Line], place: Place, owner: Owner) -> Iterator[Finding]:
    """Yield a network interface that is up and has no carrier, by `ip link`."""
    found = _LINK.match(lines[0].text)
    if found and "UP" in found["flags"].split(","):
        text = f"{found['name']} is switched on and has no carrier"
        yield _observe(place, "network", "nic_down", text, f"nic:{found['name']}")


def read_ports(lines: Sequence[Line], place: Place, owner: Owner) -> Iterator[Finding]:
    """Yield the ports of an adapter that are not active, by `ibstat`."""
    head = _ADAPTER.match(lines[0].text)
    if head is None:
        return
    port = ""
    states: dict[str, list[str]] = {}
    for line in lines[1:]:
        if _ADAPTER.match(line.text):
            break
        if found := _PORT.match(line.text):
            port = found[1]
        elif port and (state := _STATE.match(line.text)):
            states.setdefault(port, []).append(state[2])
    for port, words in states.items():
        if words[0] != "Active":
            text = f"port {port} of {head[1]} is {' / '.join(words)}"
            yield _observe(place, "infiniband", "nic_down", text, f"nic:{head[1]}:{port}")


# --- schedulers -----------------------------------------------------------------------------------

TASK_WORDS = (b"srun: error: ",)

_TASKS = re.compile(
    r"srun: error: (?P<node>[\w.-]{1,128}): tasks? (?P<tasks>\d{1,7}(?:[,-]\d{1,7}){0,400}): "
    r"(?P<how>Out Of Memory|Exited with exit code (?P<code>\d{1,3})|Segmentation fault|Bus error"
    r"|Illegal instruction|Aborted)"
)
_SIGNALS = {"Out Of Memory": -9, "Segmentation fault": -11, "Bus error": -7, "Aborted": -6}


def read_tasks(lines: Sequence[Line], place: Place, owner: Owner) -> Iterator[Finding]:
    """Yield how tasks ended, as srun writes it. A task is a rank. Those that it killed or
    terminated itself are left out: they ended because of another one."""
    found = _TASKS.search(lines[0].text)
    if found is None:
        return
    code = int(found["code"]) if found["code"] else _SIGNALS.get(found["how"], -4)
    for rank in _parse_tasks(found["tasks"]):
        yield EndFound(
            place=place,
            owner=Owner(rank, Known.CONTENT),
            code=code,
            node=found["node"],
            is_oom=found["how"] == "Out Of Memory",
        )


def _parse_tasks(text: str) -> list[int]:
    """Return the numbers of "0-3,7"."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        end = int(last.partition("-")[0] or first)
        ranks += range(int(first), min(end, int(first) + MAX_TASKS, MAX_RANK) + 1)
    return [rank for rank in ranks[:MAX_TASKS] if rank <= MAX_RANK]


# --- JAX ------------------------------------------------------------------------------------------

JAX_WORDS = (b"task names:", b"stopped sending heartbeats", b" heartbeat timeout")
JAX_LINES = 24
"""Lines with the names of tasks after such a line: JAX names a few."""

JAX_BARRIER = "JAX coordination service"

_LATE = re.compile(
    r"timed[- ]out task names:|stopped sending heartbeats\)?:?|(?=/job:\S{1,80} heartbeat timeout)"
)
_TASK = re.compile(r"/job:[\w-]{1,64}/replica:\d{1,6}/task:(\d{1,7})")


def read_jax(lines: Sequence[Line], place: Place, owner: Owner) -> Iterator[Finding]:
    """Yield the tasks that JAX's coordination service waited for. A task is a process of JAX."""
    begin = _LATE.search(lines[0].text)
    if begin is None:
        return
    missing: set[int] = set()
    for text in (lines[0].text[begin.end() :], *(line.text for line in lines[1:])):
        named = [int(each) for each in _TASK.findall(text)[:MAX_TASKS]]
        if not named and text is not lines[0].text and missing:
            break
        missing |= {rank for rank in named if rank <= MAX_RANK}
    if missing:
        first = next(rank for rank in range(len(missing) + 1) if rank not in missing)
        kept = tuple(sorted(missing))
        who = Owner(first, Known.CONTENT)
        yield BarrierFound(place=place, owner=who, missing=kept, name=JAX_BARRIER)


# --- services -------------------------------------------------------------------------------------


class _Note(NamedTuple):
    """A line that shows who waits or what ended, without a rank."""

    mark: bytes
    name: str
    means: str


_NOTES = (
    _Note(
        b"No available shared memory broadcast block found", "vllm",
        "vLLM's engine and a worker wait for each other: one of them hangs, or still compiles",
    ),
    _Note(b"RPC call to ", "vllm", "a worker of vLLM did not answer its engine"),
    _Note(b"has been marked dead because", "ray", "Ray has lost a node"),
    _Note(b"A worker died or was killed", "ray", "a worker of Ray has ended"),
    _Note(b"exits with return code = ", "deepspeed", "DeepSpeed's launcher saw a rank end"),
    _Note(b"DUE TO NODE FAILURE", "slurm", "Slurm has lost a node"),
    _Note(b"DUE TO TIME LIMIT", "slurm", "Slurm ended the job at its time limit"),
    _Note(b"DUE TO PREEMPTION", "slurm", "Slurm preempted the job"),
    _Note(b"JobState=NODE_FAIL", "slurm", "Slurm has lost a node"),
    _Note(b" NODE_FAIL ", "slurm", "Slurm has lost a node"),
    _Note(b"JobState=OUT_OF_MEMORY", "slurm", "Slurm saw the job use more memory than allowed"),
    _Note(b" OUT_OF_ME", "slurm", "Slurm saw a step use more memory than allowed"),
    _Note(b"OOMKilled", "kubernetes", "Kubernetes ended a container that used too much memory"),
    _Note(b"The node was low on resource", "kubernetes", "Kubernetes evicted a pod"),
)  # fmt: skip

NOTE_WORDS = tuple(note.mark for note in _NOTES)


def read_note(lines: Sequence[Line], place: Place, owner: Owner) -> Iterator[Finding]:
    """Yield what a line of a service shows."""
    raw = f" {lines[0].text} ".encode()
    for note in _NOTES:
        if note.mark in raw:
            text = f"{note.means}: {lines[0].text.strip()}"
            yield _observe(place, "log", f"{note.name}.line", text)
            return


def _observe(
    place: Place, source: str, name: str, text: str, subject: str = NODE, pid: int | None = None
) -> ObservedFound:
    return ObservedFound(
        place=place,
        owner=Owner(),
        node="",
        observation=Observation(
            source=source,
            subject=subject,
            name=name,
            age_s=0.0,
            pid=pid,
            text=printable(text, MAX_SHOWN),
        ),
    )
