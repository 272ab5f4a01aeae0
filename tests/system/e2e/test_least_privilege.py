"""The agent as its unit runs it, against a job of another user: the verdict of a root agent.

One job hangs under three watches at once: an agent as root, one with the unit's user and
capabilities, and two nodes of which one agent has no capability at all.
"""

from __future__ import annotations

import json
import signal
import socket
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.system.e2e.other_users import (
    AGENT_USER,
    JOB_USER,
    become,
    needs_other_users,
    unit_capabilities,
)
from watchtower.drills.children import Child, wait_for_url
from watchtower.drills.environment import toml_value
from watchtower.drills.launching import PROGRAM
from watchtower.drills.settings import read_config
from watchtower.service.interpreter import module_command

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.ptrace,
    pytest.mark.timeout(240),
    needs_other_users,
]

RANKS, CULPRIT, FAULT_STEP = 4, 1, 12
JOB, HALF = "somebody-elses", "WATCHTOWER_TEST_HALF"
DEADLINE_S = 60.0
ONE_DUMP = "only one dump"
"""On a busy machine an incident may open before the second dumps have come."""

PY_SPY = Path(sysconfig.get_path("scripts")) / "py-spy"


class World:
    """Towers, agents and a job, each process with an owner."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        self.python = python
        self.children: list[Child] = []
        config = read_config(Path(__file__).parent / "fast.toml").detection
        lines = [f"{name} = {toml_value(value)}" for name, value in config.items()]
        (folder / "tower.toml").write_text("\n".join(["[detection]", *lines, ""]))

    def start(self, name: str, words: Sequence[str], **environment: str) -> Child:
        self.children.append(Child(name, words, self.folder, environment=environment))
        return self.children[-1]

    def start_tower(self, name: str) -> str:
        words = ["serve", "--port", "0", "--data-dir", f"data-{name}", "--config", "tower.toml"]
        tower = self.start(name, module_command("watchtower", *words))
        return wait_for_url(tower, DEADLINE_S)

    def start_agent(self, name: str, tower: str, match: str, rights: list[str]) -> Child:
        words = ["run", "--tower", tower, "--node", name, "--port", "0"]
        words += ["--interval", "0.5", "--match", match, "--py-spy", str(PY_SPY)]
        command = module_command("agent", *words, python=self.python)
        return self.start(f"agent-{name}", [*rights, *command])

    def start_job(self) -> list[Child]:
        event = {"act": "slow_storage", "rank": CULPRIT, "when": "before_step", "step": FAULT_STEP}
        plan = {"step_s": 0.2, "jitter": 0.15, "patient": True, "events": [event]}
        (self.folder / "plan.json").write_text(json.dumps(plan))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [str(self.python), str(PROGRAM["data"]["stdlib"]), "--config", "plan.json"]
        return [
            self.start(
                f"rank-{rank}",
                [*become(JOB_USER, []), *command],
                WATCHTOWER_JOB=JOB,
                RANK=str(rank),
                WORLD_SIZE=str(RANKS),
                LOCAL_RANK=str(rank),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                **{HALF: "a" if rank < RANKS // 2 else "b"},
            )
            for rank in range(RANKS)
        ]

    def end(self) -> None:
        for child in reversed(self.children):
            child.end(patience_s=0)


def ask(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=10) as answer:
        return json.loads(answer.read())


def view(url: str) -> dict[str, Any]:
    known = {job["job"] for job in ask(url, "/api/v1/jobs")["items"]}
    return ask(url, f"/api/v1/jobs/{JOB}") if JOB in known else {}


def wait_for(what: str, find: Callable[[], Any], world: World) -> Any:
    until = time.monotonic() + DEADLINE_S
    while not (found := find()):
        told = "\n".join(child.tail() for child in world.children)
        assert time.monotonic() < until, f"no {what} within {DEADLINE_S} s\n{told}"
        time.sleep(0.1)
    return found


@pytest.fixture
def world(shared_folder: Path, shared_python: Path) -> Iterator[World]:
    world = World(shared_folder, shared_python)
    yield world
    world.end()


def test_with_the_unit_s_rights_the_verdict_is_that_of_root_and_without_it_says_what_is_missing(
    world: World,
):
    as_root, least, mixed = (world.start_tower(name) for name in ("root", "least", "mixed"))
    rights = become(AGENT_USER, unit_capabilities())
    whole = f"WATCHTOWER_JOB={JOB}"
    world.start_agent("n0", as_root, whole, [])
    world.start_agent("n1", least, whole, rights)
    world.start_agent("n2", mixed, f"{HALF}=a", rights)
    bare = world.start_agent("n3", mixed, f"{HALF}=b", become(AGENT_USER, []))
    ranks = world.start_job()

    def verdict(url: str) -> dict[str, Any] | None:
        seen = view(url)
        if seen.get("status") != "hung" or ONE_DUMP in str(seen["verdict"]["missing_evidence"]):
            return None
        return seen["verdict"]

    expected = wait_for("verdict from the root agent", lambda: verdict(as_root), world)
    found = wait_for("verdict from the least agent", lambda: verdict(least), world)
    assert expected["cause"] == "dataloader_stall"
    assert expected["suspects"][0]["where"].startswith("data.py:")
    for key in ("cause", "waiting", "step", "missing_evidence"):
        assert found[key] == expected[key], key
    assert accused(found) == accused(expected) == [(CULPRIT, "dataloader_stall", where(expected))]
    assert sources(found) == sources(expected)
    assert {"stacks", "heartbeat"} <= sources(found)
    assert found["missing_evidence"] == []
    assert not [text for text in ask(least, "/readyz")["limits"] if "CAP_" in text]

    lacking = f"finds only ranks of user {AGENT_USER}: for other users it needs CAP_SYS_PTRACE"
    assert lacking in bare.output.read_text()
    assert any(text.startswith(f"n3: {lacking}") for text in ask(mixed, "/readyz")["limits"])
    partial = wait_for("verdict on half a job", lambda: verdict(mixed), world)
    assert any(lacking in text for text in partial["missing_evidence"]), partial

    ranks[CULPRIT].signal(signal.SIGKILL)
    for url in (as_root, least):
        ending = wait_for("ending", lambda url=url: ended(view(url), ranks), world)
        assert (ending["kind"], ending["code"]) == ("signal", signal.SIGKILL)


def accused(verdict: dict[str, Any]) -> list[tuple[int, str, str]]:
    return [(one["rank"], one["cause"], one["where"]) for one in verdict["suspects"]]


def where(verdict: dict[str, Any]) -> str:
    return str(verdict["suspects"][0]["where"])


def sources(verdict: dict[str, Any]) -> set[str]:
    return {one["source"] for one in verdict["evidence"]}


def ended(job: dict[str, Any], ranks: list[Child]) -> dict[str, Any] | None:
    ranks[CULPRIT].exit_code()  # reap, as launchers do
    (one,) = [rank for rank in job["rank_states"] if rank["rank"] == CULPRIT]
    return one["ended"]
