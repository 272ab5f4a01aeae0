"""A redacted export gives the same rank and cause, and contains no name of the original."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.test_properties import verdict_of
from tests.properties import examples
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Case
from watchtower.incidents.redaction.redactor import Redactor, redact_value
from watchtower.incidents.redaction.words import Words
from watchtower.tower.export import BUNDLE_FORMAT, Bundle, StoredDumps, redact_export
from watchtower.views.people import AckView, FeedbackView
from watchtower.wire.collectives import (
    CollectiveRecord,
    ProcessGroup,
    RankCollectives,
    make_group_log,
)
from watchtower.wire.dumps import (
    ChildDump,
    DumpBatch,
    DumpFailure,
    FailureKind,
    KernelWait,
    Mount,
    NativeKind,
    NativePlace,
)
from watchtower.wire.report import AgentGaps, Beat, Ending, EndingKind
from watchtower.wire.verdict import Aftermath, Cause, Doubt, SharedCause, VerdictEntry

DIAGNOSIS = Path(__file__).parents[1] / "diagnosis"
GOLDENS = sorted(path.parent for path in DIAGNOSIS.glob("goldens/*/truth.json"))


def a_bundle(case: Case, **changes) -> Bundle:
    values = {
        "format": BUNDLE_FORMAT,
        "watchtower": "0.1.0",
        "exported_at": "2026-11-22T16:03:12.000Z",
        "id": "01KAPY3V7QH8M2T4W6Z9B1C5D7",
        "job": case.job,
        "generation": 1,
        "opened_at": "2026-11-22T16:03:12.000Z",
        "closed_at": None,
        "ack": None,
        "verdict": verdict_of(case),
        "case": case,
        "dumps": (),
        "dumps_are_all": True,
    } | changes
    return Bundle(status=values["verdict"].status, **values)


def redacted(bundle: Bundle) -> Bundle:
    body = redact_export(msgspec.json.encode(bundle))
    return msgspec.json.decode(body, type=Bundle)


@pytest.mark.long
@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_the_replay_of_a_redacted_golden_names_the_same_rank_and_cause(folder):
    case = msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)
    truth = json.loads((folder / "truth.json").read_text("utf-8"))
    found = redacted(a_bundle(case))
    again = diagnose(found.case)
    assert again.cause.value == found.verdict.cause.value == truth["cause"]
    assert sorted(suspect.rank for suspect in again.suspects) == truth["suspects"]
    assert again.domain.value == truth["domain"]
    before = diagnose(case)
    assert again.confidence == pytest.approx(before.confidence)
    assert again.waiting == before.waiting


PLANTED = st.text("qzxjvk", min_size=6, max_size=12)
"""Names without a public word in them. Equal letters make no word of ours."""

SAFE_FIELDS = {
    # Times and ids that the tower makes.
    ("Bundle", "format"),
    ("Bundle", "watchtower"),
    ("Bundle", "exported_at"),
    ("Bundle", "id"),
    ("Bundle", "opened_at"),
    ("Bundle", "closed_at"),
    ("AckView", "at"),
    ("FeedbackView", "at"),
}


class Planter:
    """Replaces the texts of an export by random names."""

    def __init__(self, draw) -> None:
        self._draw = draw
        self.names: set[str] = set()

    def plant(self, value, field=("", "")):
        if isinstance(value, str) and not isinstance(value, Enum):
            return value if field in SAFE_FIELDS else self._name(value)
        if isinstance(value, tuple):
            return tuple(self.plant(each, field) for each in value)
        if is_dataclass(value) and not isinstance(value, type):
            kind = type(value).__name__
            new = {
                each.name: self.plant(getattr(value, each.name), (kind, each.name))
                for each in fields(value)
            }
            return replace(value, **new)
        return value

    def _name(self, value: str) -> str:
        shape = self._draw(st.sampled_from(["{}", "{}.{}", "/{}/{}/{}.py", "{} {}", "{}_{}-{}"]))
        found = [self._draw(PLANTED) for _ in range(shape.count("{}"))]
        self.names.update(found)
        return shape.format(*found)


def a_whole_case() -> Case:
    """A case with a value in every text field."""
    folder = next(path for path in GOLDENS if path.name == "gpu_fault_idle_gpu_queued")
    case = msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)
    first, *others = case.ranks
    dump = first.dumps[-1]
    kernel = KernelWait(
        wchan="a",
        syscall="b",
        target="c",
        tracer_name="d",
        mounts=(Mount(kind="nfs", source="nfs1:/d", point="/d"),),
    )
    child = ChildDump(
        pid=1,
        kernel=kernel,
        command="rsync",
        threads=dump.threads[:1],
        failure=DumpFailure(kind=FailureKind.GONE, help_text="help"),
    )
    whole = replace(
        dump,
        kernel=kernel,
        children=(child,),
        failure=child.failure,
        native=NativePlace(kind=NativeKind.NATIVE, library="l", thread="t", libraries=("l",)),
        collectives=RankCollectives(logs=("1",), failure="f"),
    )
    beat = Beat(step=1, age_s=1, phase="p", exception_type="E", exception_text="t")
    ended = Ending(kind=EndingKind.EXIT, age_s=1, exception_type="E", exception_text="t")
    evidence = replace(
        first, dumps=(whole,), wchan="w", beat=beat, ended=ended, rivals=("node 12345",)
    )
    gaps = AgentGaps(**{each.name: "gap" for each in fields(AgentGaps)})
    nodes = tuple(replace(node, limits=gaps, unwatched=("gap",)) for node in case.nodes)
    record = CollectiveRecord(number=1, operation="all_reduce", signature="float32[1]")
    log = make_group_log(group="g", called=1, entered=1, completed=0, records=(record,))
    group = ProcessGroup(id="g", members="0-1", name="tensor")
    return replace(
        case,
        ranks=(evidence, *others),
        nodes=nodes,
        groups=(*case.groups, group),
        group_logs=(*case.group_logs, log),
    )


def a_whole_bundle() -> Bundle:
    case = a_whole_case()
    batch = DumpBatch(
        version=1,
        id="b",
        node="n",
        job=case.job,
        round=1,
        reason="r",
        held_s=0,
        ranks=case.ranks[0].dumps,
        stacks=case.stacks,
        groups=case.groups,
        group_logs=case.group_logs,
        owner="uid:1000",
    )
    verdict = replace(
        verdict_of(case),
        incident="01K",
        opened_at="2026",
        aftermath=(Aftermath(at="2026", ranks="0", text="ended by SIGTERM"),),
        shared_cause=SharedCause(kind="mount", name="nfs1:/data"),
        doubts=(Doubt(kind="presumed", text="t"),),
        missing_evidence=("m",),
        hung_because="h",
        progress_text="p",
    )
    entry = VerdictEntry(at="2026", cause=Cause.UNKNOWN, confidence=0, suspects="0", summary="s")
    return a_bundle(
        case,
        dumps=(StoredDumps(batch=batch, taken_at=1.0),),
        ack=AckView(at="2026", by="bob", note="n"),
        verdict=verdict,
        verdicts=(entry,),
        feedback=FeedbackView(
            at="2026",
            right=True,
            rank=None,
            cause=None,
            by="ann",
            note="n",
            verdict_cause=Cause.UNKNOWN,
            confidence=0.5,
        ),
    )


@examples(60)
@given(st.data())
def test_no_planted_name_survives(data):
    planter = Planter(data.draw)
    bundle = planter.plant(a_whole_bundle())
    body = redact_export(msgspec.json.encode(bundle)).decode()
    assert planter.names
    for name in planter.names:
        assert name not in body


def test_a_redacted_export_is_marked():
    assert redacted(a_whole_bundle()).redacted


@dataclass(frozen=True)
class NewEvidence:
    line: str
    words: tuple[str, ...]
    settings: dict[str, str]
    count: int


def test_a_new_form_of_evidence_needs_no_rule():
    found = NewEvidence("by qzxjvk", ("zzxxqq",), {"kvqxzj": "jjqqxx"}, 7)
    text = repr(redact_value(Redactor({}), found))
    assert not any(name in text for name in ("qzxjvk", "zzxxqq", "kvqxzj", "jjqqxx"))
    assert text.endswith("count=7)")


def test_equal_names_stay_equal_and_different_ones_differ():
    bundle = a_whole_bundle()
    found = redacted(bundle)
    before = [rank.node for rank in bundle.case.ranks]
    after = [rank.node for rank in found.case.ranks]
    assert len(set(before)) == len(set(after))
    assert dict(zip(before, after, strict=True)) == {
        node: after[before.index(node)] for node in before
    }
    assert {rank.node for rank in found.case.ranks} <= {node.node for node in found.case.nodes}
    digests = {stack.digest for stack in found.case.stacks}
    assert len(digests) == len({stack.digest for stack in bundle.case.stacks})
    assert {stack.digest for stack in found.dumps[0].batch.stacks} == digests
    assert found.case.job == found.job == found.verdict.job == found.dumps[0].batch.job


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("save_acme_checkpoint", "save_x1_checkpoint"),
        ("AcmeDataLoader.__next__", "x1DataLoader.__next__"),
        ("/home/ann/job/data.py", "/x1/x2/x3/data.py"),
        ("tcp 10.1.2.3:29500 -> 127.0.0.1:80", "tcp 198.18.0.1:1000 -> 127.0.0.1:80"),
        ("[fd00::7]:80", "[2001:db8::1]:80"),
        ("pipe:[31456]", "pipe:[1000]"),
        ("[Errno 5] Input/output error", "[Errno 5] Input/output error"),
        ("/dev/nvidia0", "/dev/nvidia0"),
    ],
)
def test_only_public_words_stay(text, shown):
    assert Words().redact(text) == shown


@examples(200)
@given(st.lists(st.text(max_size=40), max_size=8))
def test_equal_texts_get_equal_placeholders(texts):
    words = Words()
    first = [words.redact(text) for text in texts]
    assert [words.redact(text) for text in texts] == first
