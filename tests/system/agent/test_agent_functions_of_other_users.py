"""Native functions of another user's process, for an agent with the rights of its unit or none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.dumpers.python_stacks import REFUSED_HELP, find_py_spy
from agent.procfs import Proc
from tests.agent.agent_scene import PATIENCE_S, wait_until
from tests.system.agent.agent_processes import PROGRAMS, Victim
from tests.system.agent.test_agent_native_places import (  # noqa: F401 - fixtures
    shared_folder,
    shared_python,
    victim,
)
from tests.system.e2e.other_users import AGENT_USER, become, needs_other_users, unit_capabilities
from watchtower.drills.compiling import compile_library, find_compiler

pytestmark = [
    needs_other_users,
    pytest.mark.ptrace,
    pytest.mark.usefixtures("ptrace"),
    pytest.mark.timeout(4 * PATIENCE_S),
    pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler"),
    pytest.mark.skipif(not find_py_spy(), reason="py-spy is not installed: pip install py-spy"),
]
LIBRARY = "libnccl.so.2"


@pytest.fixture
def blocked(victim: Victim, shared_folder: Path) -> Victim:  # noqa: F811
    """A process of another user than the agent's, which waits in a library."""
    path = shared_folder / LIBRARY
    if not path.exists():
        compile_library(PROGRAMS / "waits.c", path, "-lpthread")
        path.chmod(0o755)
    code = f"import ctypes; ctypes.CDLL({str(path)!r}).sleep_in_condition()"
    victim.begin(f"print('begun', flush=True); exec({code!r})")
    victim.wait_for("begun")
    wait_until(lambda: "futex" in Proc().try_read(victim.pid, "wchan").decode(), "it waits")
    return victim


def read(blocked: Victim, python: Path, capabilities: Sequence[str]) -> dict[str, Any]:
    stat = Proc().stat(blocked.pid)
    assert stat is not None
    words = [*become(AGENT_USER, list(capabilities)), str(python), "-I"]
    words += [str(PROGRAMS / "read_functions.py"), str(blocked.pid), str(stat.start_time)]
    done = subprocess.run(
        [*words, find_py_spy()],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        cwd="/",
    )
    return json.loads(done.stdout)


def test_the_capabilities_of_the_unit_are_enough(blocked, shared_python):  # noqa: F811
    found = read(blocked, shared_python, unit_capabilities())
    assert found["failure"] == ""
    assert {"file": LIBRARY, "function": "sleep_in_condition"} in found["calls"]
    assert blocked.is_asleep()


def test_without_them_the_answer_names_what_is_missing(blocked, shared_python):  # noqa: F811
    found = read(blocked, shared_python, [])
    assert found["failure"] == REFUSED_HELP
    assert found["calls"] == []
    assert blocked.is_asleep()
