"""Commands to copy and links to other systems, with names that nobody reviewed."""

from __future__ import annotations

import pytest

from watchtower.incidents.incident import JobFacts
from watchtower.service.settings import ConfigError
from watchtower.ui.settings import LinkSubject, PageSettings, check_links, fill_links
from watchtower.views.scheduler_commands import write_commands
from watchtower.wire.verdict import Domain

SUBJECT = LinkSubject(job="a/b&c", incident="01A", node="gpu-1", began_at=1.7e9, ended_at=None)


def texts_of(scheduler: str, domain: Domain, node: str = "gpu-1", **more: str) -> list[str]:
    facts = JobFacts(scheduler=scheduler, scheduler_id="48213", **more)
    return [each.text for each in write_commands(facts, domain, node)]


def test_slurm_requeues_a_job_without_the_node():
    assert texts_of("slurm", Domain.DATA) == ["scontrol requeue 48213", "scancel 48213"]
    without = [
        "scontrol requeuehold 48213",
        "scontrol update JobId=48213 ExcNodeList=gpu-1",
        "scontrol release 48213",
    ]
    assert texts_of("slurm", Domain.STORAGE) == [*without, "scancel 48213"]
    drain = "scontrol update NodeName=gpu-1 State=DRAIN Reason=watchtower"
    assert texts_of("slurm", Domain.GPU) == [drain, *without, "scancel 48213"]
    assert texts_of("slurm", Domain.GPU, node="")[0] == "scontrol requeue 48213"


def test_a_jobset_is_suspended_and_resumed_in_its_namespace():
    cordon, end, start, delete = texts_of("jobset", Domain.STORAGE, namespace="team-a")
    assert cordon == "kubectl cordon gpu-1"
    assert end == (
        """kubectl patch jobset 48213 -n team-a --type=merge -p '{"spec":{"suspend":true}}'"""
    )
    assert start == end.replace("true", "false")
    assert delete == "kubectl delete jobset 48213 -n team-a"


def test_a_namespace_that_is_not_known_has_a_placeholder_and_a_reason():
    facts = JobFacts(scheduler="jobset", scheduler_id="48213", namespace="a\x1b")
    *others, delete = write_commands(facts, Domain.USER_CODE, "")
    assert delete.text == "kubectl delete jobset 48213 -n NAMESPACE"
    assert all("replace NAMESPACE: it is not known" in one.purpose for one in (*others, delete))


def test_ray_stops_only_submitted_jobs_and_the_command_says_so():
    facts = JobFacts(scheduler="ray", scheduler_id="48213")
    (stop,) = write_commands(facts, Domain.USER_CODE, "")
    assert "ray job submit" in stop.purpose


def test_pods_without_a_known_controller_have_the_commands_of_their_node():
    facts = JobFacts(namespace="team-a")
    texts = [each.text for each in write_commands(facts, Domain.GPU, "gpu-1")]
    assert texts == [
        "kubectl cordon gpu-1",
        "kubectl get pods -n team-a --field-selector spec.nodeName=gpu-1",
    ]
    assert write_commands(facts, Domain.USER_CODE, "gpu-1") == []


@pytest.mark.parametrize(
    ("scheduler", "texts"),
    [
        ("pbs", ["pbsnodes -o gpu-1", "qrerun 48213", "qdel 48213"]),
        ("lsf", ["badmin hclose gpu-1", "brequeue 48213", "bkill 48213"]),
        ("flux", ["flux resource drain gpu-1", "flux cancel 48213"]),
        ("ray", ["ray job stop 48213"]),
        ("a scheduler of a later release", []),
    ],
)
def test_commands_are_those_of_the_scheduler(scheduler, texts):
    assert texts_of(scheduler, Domain.NODE) == texts


@pytest.mark.parametrize("name", ["", "-x", "1\n2", "\u202e1", "1" * 129, "1\x1b[2J"])
def test_a_name_that_may_deceive_makes_no_command(name):
    assert write_commands(JobFacts(scheduler="slurm", scheduler_id=name), Domain.GPU, "n1") == []


def test_a_name_is_quoted_in_a_command():
    facts = JobFacts(scheduler="slurm", scheduler_id="1; rm -rf /")
    assert write_commands(facts, Domain.DATA, "")[1].text == "scancel '1; rm -rf /'"


def test_values_in_links_are_escaped():
    links = {"logs": "https://logs.example/{job}?n={node}&f={from_ms}&t={to}"}
    (link,) = fill_links(links, SUBJECT)
    assert link.url == (
        "https://logs.example/a%2Fb%26c?n=gpu-1&f=1699999100000&t=2023-11-14T23%3A13%3A20.000Z"
    )


def test_a_link_without_its_value_is_left_out():
    assert fill_links({"user": "https://who.example/{user}"}, SUBJECT) == []


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("javascript:alert({job})", "must begin with"),
        ("https://{job}.example/", "without a placeholder"),
        ("https://x@logs.example/", "a user or a password"),
        ("//logs.example", "must begin with"),
        ("https://logs.example/{pod}", "unknown placeholder {pod}"),
        ("https://logs.example/{job", "a brace"),
        ("https://logs.example/ x", "without spaces"),
        ("https://logs.example:0/", "must begin with"),
        ("https://logs.example/" + "x" * 1024, "1024"),
    ],
)
def test_a_wrong_template_is_refused(template, words):
    with pytest.raises(ConfigError, match=words):
        PageSettings(links={"logs": template})


def test_too_many_links_and_strange_names_are_refused():
    for links in ({str(n): "https://x.example/" for n in range(9)}, {"a\n": "https://x.example/"}):
        with pytest.raises(ConfigError):
            check_links(links)
