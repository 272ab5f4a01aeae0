"""The patches in docs/recipes work as soon as they are applied."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

ASK_CAUSE = """
from dataclasses import replace

from tests.diagnosis.builders import FETCHING, a_case, a_rank, ranks_in, with_rank
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.wire.observations import Observation

case = a_case(with_rank(ranks_in(8), a_rank(3, FETCHING)))
first, *rest = case.nodes
for pid, age_s in ((4003, 1.0), (4003, 60.0), (4002, 1.0)):
    short = Observation(source="memory_limit", subject=f"pid:{pid}", name="memory_limit",
                        age_s=age_s, text="it uses 31.9 GiB of 32 GiB", pid=pid)
    nodes = (replace(first, observations=(short,)), *rest)
    found = diagnose(replace(case, nodes=nodes))
    named = (found.cause.value, found.domain.value, [suspect.rank for suspect in found.suspects])
    print(*named, *found.next_steps, *(e.text for e in found.evidence), sep="|")
"""

ASK_COLLECTOR = """
import sys

from agent.collectors.node import make_collectors
from dashboards import node

(collector,) = (each for each in make_collectors("/") if each.name == "open_files")
sys.modules[type(collector).__module__].FULL = 0.0
(observation,) = collector.collect(1.0)
(sample,) = collector.samples(0.0)
titles = [panel["title"] for each in node.BOARD.rows for _, panel in each.panels]
print(observation.name, observation.text, sample.spec.name, *titles, sep="|")
"""


ASK_EVIDENCE = """
import time
from dataclasses import replace
from pathlib import Path

from agent.delivery.dump_queue import encode_batch
from agent.dumpers.dumper import Target
from agent.dumpers.file_locks import FileLocks
from agent.dumps.round import RoundTaker
from tests.agent.ranks.test_guarded_reads import Node
from tests.diagnosis.builders import IN_ALL_REDUCE, IN_USER_CODE, a_case, a_rank
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.incidents.redaction.redactor import Redactor, redact_value
from watchtower.wire.dumps import DumpBatch

LOCKING = "acquire /home/ann/job/cache.py:7 < <module> /home/ann/job/train.py:9"
node = Node(Path("node"))
node.start(4000)
locks = [f"1: {waits}FLOCK  ADVISORY  WRITE {pid} 08:01:1234 0 EOF" for waits, pid in
         (("", 4003), ("-> ", 4000), ("-> ", 4001))]
Path("node/proc/locks").write_text("\\n".join(locks))
target = Target(rank=0, pid=4000, start_time=4000, read_page=lambda: None)
taken = RoundTaker(node.proc, [FileLocks(node.proc)], lambda _: None).take(
    [target], deadline=time.monotonic() + 30
)
lock = taken.ranks[0].file_lock
print(lock, redact_value(Redactor({}), lock), sep="|")
batch = DumpBatch(version=1, id="b", node="n", job="j", round=1, reason="r", held_s=0.0,
                  ranks=taken.ranks, stacks=())
body = encode_batch(batch)
print(b"08:01:1234" in body, b"08:01:1234" in encode_batch(batch, len(body) - 1), sep="|")

def case(lock):
    built = [a_rank(rank, LOCKING, syscall="flock") for rank in (0, 1)]
    for number, rank in enumerate(built):
        dumps = tuple(replace(dump, file_lock=lock) for dump in rank.evidence.dumps)
        built[number] = replace(rank, evidence=replace(rank.evidence, dumps=dumps))
    return a_case([*built, a_rank(2, IN_ALL_REDUCE), a_rank(3, IN_USER_CODE, state="R", cpu=1.0)])

for found in (lock, None):
    diagnosis = diagnose(case(found))
    edges = [(edge.source, edge.ranks) for edge in take_picture(case(found)).edges]
    print([each.rank for each in diagnosis.suspects], *edges, sep="|")
"""


ASK_ERROR_TEXT = """
from tests.diagnosis.builders import IN_ALL_REDUCE, a_case, a_dead_rank, ranks_in, with_rank
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.error_texts import find_error_texts

ERROR = "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 327680"
found = diagnose(a_case(with_rank(ranks_in(4, IN_ALL_REDUCE), a_dead_rank(3, error=ERROR))))
print(found.cause.value, found.domain.value, [each.rank for each in found.suspects], sep="|")
print(found.summary, found.next_steps[0], sep="|")
print(*(match.row.name for match in find_error_texts("[rank3]: " + ERROR)), sep="|")
"""


ASK_BLAME = """
from dataclasses import replace

from watchtower.readers.kernel_lines import read_line
from tests.diagnosis.causes.test_blamed import diagnose, observed, ranks_of
from watchtower.diagnosis.blame_table import ROWS
from watchtower.wire.observations import Observation

line = read_line("amdgpu 0000:3b:00.0: amdgpu: GPU reset begin!")
(row,) = (each for each in ROWS if each.observed == ("amdgpu_reset",))
case = observed(row)
first, second = case.nodes
(example,) = second.observations
user = replace(example, name="gpu_process.4005", subject=line.subject)
seen = replace(example, name=line.name, subject=line.subject, text=line.text, pid=None)
for pid in (4005, 77):
    nodes = (first, replace(second, observations=(seen, replace(user, pid=pid))))
    found = diagnose(replace(case, nodes=nodes))
    print(found.cause.value, found.domain.value, ranks_of(found), found.summary, *found.next_steps,
          sep="|")
"""


def test_the_patch_of_what_blames_a_device_names_the_rank_that_uses_it(tmp_path: Path) -> None:
    of_rank, of_other = answer(ASK_BLAME, tmp_path, recipe("blame")).splitlines()
    assert of_rank.startswith("gpu_fault|gpu|[5]|Rank 5 (gpu-01, pid 4005) uses GPU 0000:3b:00: ")
    assert "its driver began to reset it 3 s before its last step" in of_rank
    assert "|drain gpu-01; on it: `dmesg | grep amdgpu` shows why GPU 0000:3b:00" in of_rank
    assert of_other.startswith("symmetric_hang|network|[]|")


def test_the_patch_of_an_error_text_makes_a_row_that_is_read_in_errors_and_logs(
    tmp_path: Path,
) -> None:
    named, sentences, in_log = answer(ASK_ERROR_TEXT, tmp_path, recipe("error_text")).splitlines()
    assert named == "exception|user_code|[3]"
    assert "needs more shared memory than the GPU has" in sentences
    assert "num_stages" in sentences
    assert in_log == "triton_shared_memory"


def test_the_patch_of_a_cause_makes_a_cause_that_works(tmp_path: Path) -> None:
    short, old, other = answer(ASK_CAUSE, tmp_path, recipe("cause")).splitlines()
    assert short.startswith(
        "misconfigured|user_code|[3]|raise the memory limit of rank 3 on gpu-00"
    )
    assert "it uses 31.9 GiB of 32 GiB" in short
    assert old.startswith("dataloader_stall|")
    assert other.startswith("dataloader_stall|")


def test_the_patch_of_a_collector_makes_a_collector_with_a_metric_and_a_panel(
    tmp_path: Path,
) -> None:
    (line,) = answer(ASK_COLLECTOR, tmp_path, recipe("collector")).splitlines()
    name, text, metric, *titles = line.split("|")
    assert (name, metric) == ("open_files", "watchtower_open_files_ratio")
    assert text.startswith("the node has ")
    assert "Open files" in titles


def test_the_patch_of_an_evidence_form_makes_one_that_is_read_sent_redacted_and_used(
    tmp_path: Path,
) -> None:
    read, sent, known, unknown = answer(ASK_EVIDENCE, tmp_path, recipe("evidence")).splitlines()
    assert read.startswith("FileLock(holder=4003, file='08:01:1234')|FileLock(holder=4003, file=")
    assert read.count("08:01:1234") == 1, "it is redacted without a rule"
    assert sent == "True|False", "a batch that is too long loses it first"
    assert known == "[3]|('stack', (2,))|('file lock', (0, 1))"
    assert unknown.partition("|")[2] == "('stack', (2,))"


def recipe(name: str) -> str:
    return (ROOT / f"docs/recipes/{name}.patch").read_text("utf-8")


def answer(program: str, folder: Path, patch: str) -> str:
    """The output of a program that runs with a patched copy of the sources."""
    without = shutil.ignore_patterns("__pycache__", "programs")
    for package in ("watchtower", "agent", "dashboards"):
        shutil.copytree(ROOT / package, folder / package, ignore=without)
    # Not in a repository: else git would leave out what lies outside of it.
    git = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(
        ["git", "apply", "--verbose", "-"],
        input=patch,
        text=True,
        cwd=folder,
        env=git,
        check=True,
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
