"""What `watchtower requeue` reads of Slurm, and which names it gives to it."""

from __future__ import annotations

import pytest

from watchtower.commands import requeueing

SHOWN = (
    "JobId=4711 JobName=llama UserId=al(1000) Requeue=1 ExcNodeList=n3,n[7-9] NumNodes=2 "
    "Comment=watchtower: gpu_fault incident 01K, requeued by al StdErr=/home/al/Comment=no Power=\n"
)


def test_excluded_nodes_and_the_comment_are_found_in_the_line_of_a_job() -> None:
    fields = dict(requeueing._FIELD.findall(SHOWN))
    assert fields["ExcNodeList"] == "n3,n[7-9]"
    assert fields["Comment"] == "watchtower: gpu_fault incident 01K, requeued by al"
    assert dict(requeueing._FIELD.findall("JobId=1 ExcNodeList=(null)")) == {
        "ExcNodeList": "(null)"
    }


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        (requeueing._ID, "4711", True),
        (requeueing._ID, "4711_3", True),
        (requeueing._ID, "4711,4712", False),
        (requeueing._ID, "-M other", False),
        (requeueing._ID, "4711; reboot", False),
        (requeueing._NODE, "gpu-042.cluster", True),
        (requeueing._NODE, "n1,n2", False),
        (requeueing._NODE, "n[1-64]", False),
        (requeueing._NODE, "-n1", False),
        (requeueing._NODE, "", False),
    ],
)
def test_only_one_job_and_one_node_are_named_to_slurm(pattern, text: str, fits: bool) -> None:
    """Both come from environments of processes: a list or an option would reach other jobs."""
    assert bool(pattern.fullmatch(text)) is fits
