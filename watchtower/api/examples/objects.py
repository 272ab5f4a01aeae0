"""Examples of jobs, incidents, nodes and what people do with them."""

from __future__ import annotations

from typing import Any

import msgspec

from watchtower.incidents.calibration import Judged, calibrate
from watchtower.tower.health import Health
from watchtower.tower.similar_incidents import NodeHistory, SimilarIncident, SimilarList
from watchtower.views.fleet import JobSummary
from watchtower.views.incident import (
    IncidentDetail,
    IncidentSummary,
    OutputView,
    StackView,
    VerdictEntryView,
)
from watchtower.views.job import DumpsView, JobView, NodeView, RankView
from watchtower.views.node import AgentList, AgentView, NodeList, NodeSummary
from watchtower.views.outage import OutageIncident, OutageView
from watchtower.views.people import AckView, Calibration, CauseCount, FeedbackView, SilenceView
from watchtower.views.verdict import view_verdict
from watchtower.wire.stacks import Frame
from watchtower.wire.verdict import (
    Alternative,
    Cause,
    Domain,
    Doubt,
    Evidence,
    KillLoss,
    Progress,
    SharedCause,
    Status,
    Suspect,
    Verdict,
)

JOB, INCIDENT, NODE = "slurm-48213.0", "01KAPY3V7QH8M2T4W6Z9B1C5D7", "gpu-042"
OPENED_AT = "2026-11-22T02:16:26.184Z"
SUMMARY = (
    "Rank 37 is stuck reading /mnt/shards/0042.tar. 511 ranks are waiting for it in all_reduce."
)
_LABELS = {
    "scheduler": "slurm",
    "scheduler_id": "48213",
    "name": "llama-70b-pt",
    "user": "alice",
    "partition": "train",
}
_MOUNT = SharedCause(kind="mount", name="nfs1:/data")
_ACK = AckView(at="2026-11-22T02:20:00.000Z", by="bob", note="checking NFS")
_FEEDBACK = FeedbackView(
    at="2026-11-22T09:12:00.000Z",
    right=True,
    rank=None,
    cause=None,
    by="bob",
    note="nfs1 was down",
    verdict_cause=Cause.DATALOADER_STALL,
    confidence=0.85,
)
_SILENCE = SilenceView(
    id="01KAPXC4M2G5R8T1V3X6Z9B2D4",
    job=None,
    node=NODE,
    user=None,
    since="2026-11-22T02:00:00.000Z",
    until="2026-11-22T04:00:00.000Z",
    by="bob",
    reason="new switch",
)
_VERDICT = Verdict(
    job=JOB,
    generation=2,
    status=Status.HUNG,
    summary=SUMMARY,
    incident=INCIDENT,
    cause=Cause.DATALOADER_STALL,
    domain=Domain.STORAGE,
    confidence=0.85,
    suspects=(
        Suspect(
            rank=37,
            node=NODE,
            cause=Cause.DATALOADER_STALL,
            why="it reads a file and no other rank does",
            pid=4711,
            where="data.py:88 in __next__",
        ),
    ),
    waiting="0-36,38-39,41-511",
    step=1233,
    stalled_for_s=15.2,
    evidence=(Evidence(source="stacks", text="unchanged in two dumps", ranks="0-511", weight=0.6),),
    alternatives=(Alternative(cause=Cause.UNINTERRUPTIBLE_IO, suspects=(37,), confidence=0.01),),
    doubts=(
        Doubt(
            kind="stack_missing",
            text="the position of rank 40 is unknown, and the cause may be there",
        ),
    ),
    next_steps=("check /mnt/shards/0042.tar and its mount on gpu-042",),
    lasting_steps=("check /mnt/shards/0042.tar and its mount on gpu-042",),
    opened_at=OPENED_AT,
    diagnosed_at="2026-11-22T02:16:17.900Z",
    progress=Progress.NONE,
    progress_text="no step for 15 s, 0.8 s is usual",
    shared_cause=_MOUNT,
    collective_timeout_s=600.0,
    kill=KillLoss(
        loses_evidence=False,
        lost_steps=33,
        evidence_text="A kill loses no evidence (stacks of 512 of 512 ranks are collected).",
        steps_text="It loses up to 33 steps (26 s of training): checkpoint at step 1200.",
        timeout_text="The job's own timeout (10 min) should end it at about 02:26 UTC.",
    ),
)
_RANK = RankView(
    rank=37,
    node=NODE,
    pid=4711,
    local_rank=5,
    gpu=None,
    step=1233,
    age_s=15.2,
    phase="",
    state="S",
    ended=None,
)


OUTPUT = OutputView(
    rank=37,
    node=NODE,
    stream="stderr",
    lines=["step 1233 loss 2.41", "reading /mnt/shards/0042.tar"],
    written_at="2026-11-22T02:16:11.100Z",
)


def plain(value: Any) -> Any:
    """Return an answer as JSON has it: lists, mappings, texts and numbers."""
    return msgspec.to_builtins(value)


VERDICT = plain(view_verdict(_VERDICT))
TEXTS = {"text/plain": f"llama-70b: hung\n{SUMMARY}\n", "text/markdown": f"**{SUMMARY}**\n"}
AGENTS = plain(
    AgentList(
        items=[AgentView(node=NODE, silent_for_s=0.4, rank_count=8, limits=[])],
        connected=1,
        silent=0,
        rank_count=8,
    )
)
NODES = plain(
    NodeList(
        items=[
            NodeSummary(
                node=NODE,
                has_agent=True,
                is_silent=False,
                silent_for_s=0.4,
                release="0.1.0",
                rank_count=8,
                job_names=[JOB],
                limits=["py-spy is not installed"],
                incident_count=9,
                named_count=11,
            )
        ],
        connected=1,
        silent=0,
        rank_count=8,
    )
)
JOBS = {
    "items": [
        plain(
            JobSummary(
                job=JOB,
                labels=_LABELS,
                owner="uid:1000",
                generation=2,
                status=Status.HUNG,
                detail=SUMMARY,
                world_size=512,
                step=1233,
                progress=Progress.NONE,
                progress_text=_VERDICT.progress_text,
                not_judged=None,
                incident=INCIDENT,
                silenced_until=None,
            )
        )
    ]
}
JOB_VIEW = plain(
    JobView(
        job=JOB,
        labels=_LABELS,
        owner="uid:1000",
        generation=2,
        status=Status.HUNG,
        detail=SUMMARY,
        world_size=512,
        step=1233,
        typical_step_s=0.8,
        progress=Progress.NONE,
        progress_text=_VERDICT.progress_text,
        not_judged=None,
        rank_states=[_RANK],
        rivals=[],
        nodes=[NodeView(node=NODE, silent_for_s=0.4, limits=[])],
        dumps=DumpsView(have=512, want=512),
        silence=None,
        verdict=view_verdict(_VERDICT),
    )
)
INCIDENTS = {
    "items": [
        plain(
            IncidentSummary(
                id=INCIDENT,
                job=JOB,
                generation=2,
                status=Status.HUNG,
                cause=Cause.DATALOADER_STALL,
                suspect_ranks="37",
                summary=SUMMARY,
                opened_at=OPENED_AT,
                closed_at=None,
                ack=_ACK,
                shared_cause=_MOUNT,
                shadow=False,
                silence=None,
                outage=INCIDENT,
            )
        )
    ],
    "next_cursor": "MHgxLmE0ODY4NWQ4MDAwMDBwKzMwIDAxS0FQWTNWN1FIOE0yVDRXNlo5QjFDNUQ3",
}
OUTAGES = {
    "items": [
        plain(
            OutageView(
                id=INCIDENT,
                shared_cause=_MOUNT,
                domain=Domain.STORAGE,
                opened_at=OPENED_AT,
                closed_at=None,
                open_count=2,
                rank_count=576,
                incidents=[
                    OutageIncident(
                        id=INCIDENT,
                        job=JOB,
                        status=Status.HUNG,
                        rank_count=512,
                        opened_at=OPENED_AT,
                        closed_at=None,
                        acknowledged=False,
                    ),
                    OutageIncident(
                        id="01KAPY3VZK5N8R1T4W7Y0B3D6F",
                        job="slurm-48219.0",
                        status=Status.HUNG,
                        rank_count=64,
                        opened_at="2026-11-22T02:16:27.031Z",
                        closed_at=None,
                        acknowledged=False,
                    ),
                ],
            )
        )
    ]
}
INCIDENT_DETAIL = plain(
    IncidentDetail(
        id=INCIDENT,
        job=JOB,
        generation=2,
        status=Status.HUNG,
        opened_at=OPENED_AT,
        closed_at=None,
        ack=_ACK,
        shadow=False,
        silence=None,
        outage=INCIDENT,
        verdict=view_verdict(_VERDICT),
        verdicts=[
            VerdictEntryView(
                at="2026-11-22T02:16:17.900Z",
                cause=Cause.DATALOADER_STALL,
                confidence=0.99,
                suspect_ranks="37",
                summary=SUMMARY,
            )
        ],
        stacks=[
            StackView(ranks="37", frames=[Frame(function="__next__", file="data.py", line=88)])
        ],
        feedback=_FEEDBACK,
        outputs=[OUTPUT],
    )
)
SIMILAR = plain(
    SimilarList(
        items=[
            SimilarIncident(
                id="01KA7RD1N5W8B2E4H6K9M1Q3S5",
                job="slurm-47002.0",
                status=Status.RECOVERED,
                cause=Cause.DATALOADER_STALL,
                suspect_ranks="5",
                summary="Rank 5 is stuck reading /mnt/shards/0017.tar.",
                opened_at="2026-11-16T11:03:09.501Z",
                closed_at="2026-11-16T11:21:44.009Z",
                same_nodes=[NODE],
                same_lines=["data.py:88 in __next__"],
                same_cause=True,
                why=f"same node {NODE}, same line data.py:88 in __next__, same cause",
            )
        ],
        node_counts=[
            NodeHistory(
                node=NODE,
                incident_count=9,
                same_line_count=2,
                same_cause_count=2,
                text=f"{NODE}: 9 earlier incidents in 30 days, 2 at the same line, "
                "2 with the same cause",
            )
        ],
    )
)
_POSTMORTEM = """# Post-mortem: job slurm-48213.0 hung on 2026-11-22

## Summary

Job slurm-48213.0 made no step after 2026-11-22 02:16:11 UTC. Rank 37 on gpu-042 was the cause:
dataloader_stall (85%). At 2026-11-22 02:16:26 UTC the incident was still open.
"""
POSTMORTEM = {
    "text/markdown": _POSTMORTEM,
    "text/html": "<!doctype html><html lang=en><title>Post-mortem: job slurm-48213.0</title>",
}
EXPORT = {"format": "watchtower-incident-1", "id": INCIDENT, "job": JOB, "verdict": VERDICT}
ACK = plain(_ACK)
FEEDBACK = plain(_FEEDBACK)
CALIBRATION = plain(
    Calibration(
        items=calibrate(
            [Judged(confidence=0.85, is_right=True)] * 9
            + [Judged(confidence=0.85, is_right=False), Judged(confidence=0.97, is_right=True)]
        ),
        causes=[CauseCount(cause=Cause.DATALOADER_STALL, right_count=10, wrong_count=1)],
        right_count=10,
        wrong_count=1,
    )
)
SILENCE = plain(_SILENCE)
SILENCES = {"items": [SILENCE]}
ALIVE = {"status": "alive"}
HEALTH = plain(
    Health(
        ready=True,
        detail="able to decide",
        store="works",
        agents=64,
        agents_silent=0,
        limits=[],
        notes=[],
    )
)
