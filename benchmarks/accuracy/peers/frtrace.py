"""torch's own analyzer of flight recorder dumps, in a separate process, as a user runs it.

It reads pickles. The pickles made here contain only the ranks' records.
"""

from __future__ import annotations

import copy
import importlib.util
import pickle
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.accuracy.evidence import Evidence, Groups
from benchmarks.accuracy.peers.peer import Opinion, Peer, needs_records
from watchtower.service.interpreter import module_command
from watchtower.wire.collectives import format_members

MODULE = "torch.distributed.flight_recorder.fr_trace"
DEADLINE_S = 120.0
"""Seconds for the analyzer. It takes as long as `import torch`: many seconds on a busy machine."""

MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")
CULPRIT = re.compile(r"Culprit rank (\d+);")
UNDECIDED = re.compile(r"We cannot decide .*")
LONGEST = 300

Dump = dict[str, Any]


def applies(evidence: Evidence) -> str | None:
    if why := needs_records(evidence):
        return why
    return None if importlib.util.find_spec("torch") else "torch is not installed"


def judge_as_shipped(evidence: Evidence) -> Opinion:
    """Run it on the dumps as they are."""
    return analyze(evidence.recorders, ())


def judge_repaired(evidence: Evidence) -> Opinion:
    """Run it on dumps with the names and members of their groups, and allow for ranks without a
    dump.
    """
    repaired = {
        rank: repair(dump, evidence.groups[rank])
        for rank, dump in evidence.recorders.items()
        if rank in evidence.groups
    }
    return analyze(repaired, ("--allow-incomplete-ranks",) if evidence.missing else ())


def repair(dump: Dump, groups: Groups) -> Dump:
    """Return the dump with the true members in `pg_config`, under names equal on all members.

    gloo leaves it without names, and numbers the groups in each process. Entries of groups with
    unknown members are dropped: the analyzer would stop at them.
    """
    named, made = {}, dict[str, int]()
    for name, members in groups:
        text = format_members(members)
        made[text] = made.get(text, -1) + 1
        named[name] = f"{text} #{made[text]}", members
    whole = copy.deepcopy(dump)
    whole["entries"] = [each for each in whole["entries"] if each["process_group"][0] in named]
    for entry in whole["entries"]:
        title, _ = named[entry["process_group"][0]]
        entry["process_group"] = (title, title)
    whole["pg_config"] = {
        title: {"name": title, "desc": title, "ranks": str(list(members))}
        for title, members in named.values()
    }
    return whole


def analyze(dumps: dict[int, Dump], options: tuple[str, ...]) -> Opinion:
    """Run the analyzer on these dumps and return its answer."""
    if not dumps:
        return Opinion(said="no rank gave a dump", failed=True)
    with tempfile.TemporaryDirectory(prefix="watchtower-frtrace-") as folder:
        for rank, dump in dumps.items():
            (Path(folder) / f"rank_{rank}").write_bytes(pickle.dumps(dump))
        command = module_command(MODULE, "--prefix", "rank_", *options, folder)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    return read_answer(done.stdout + done.stderr, done.returncode)


def read_answer(text: str, code: int) -> Opinion:
    """Return the ranks that it calls missing or culprits. An error is an answer too."""
    missing = {int(rank) for found in MISSING.findall(text) for rank in found.split(",")}
    culprits = {int(rank) for rank in CULPRIT.findall(text)}
    said = [line for line in text.splitlines() if _accuses(line)]
    failed = bool(code) and not said
    if failed:
        said = [f"it failed: {(text.strip().splitlines() or ['no word'])[-1]}"]
    said = said or UNDECIDED.findall(text) or ["no mismatch found"]
    return Opinion(
        accused=tuple(sorted(missing | culprits)),
        cause="mismatched_collective" if culprits and not missing else None,
        said="; ".join(said)[:LONGEST],
        failed=failed,
    )


def _accuses(line: str) -> bool:
    return bool(MISSING.search(line) or CULPRIT.search(line))


AS_SHIPPED = Peer(
    name="torchfrtrace",
    about="`torchfrtrace --prefix rank_ FOLDER` of the installed torch, on the flight recorder "
    "dump of every rank, asked from the ranks while they hung. Accused are the ranks that it calls "
    "missing or culprits. About a rank whose dump is missing it reports that it cannot "
    "decide. Where ranks called different operations it calls those culprits that differ from the "
    "rank whose file it happens to read first.",
    applies=applies,
    judge=judge_as_shipped,
)

REPAIRED = Peer(
    name="torchfrtrace_repaired",
    about="The same, with its input repaired: `pg_config`, which gloo leaves empty, has each "
    "group's true members, groups have the same name on all members, and "
    "`--allow-incomplete-ranks` is given where a rank's dump is missing.",
    applies=applies,
    judge=judge_repaired,
)
