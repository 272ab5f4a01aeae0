"""Started processes end with their drill; what they print is read line by line."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from watchtower.drills.errors import DrillError
from watchtower.drills.launching import (
    PORT_RANGE,
    Layout,
    choose_backend,
    free_port,
    node_name,
)
from watchtower.drills.parts import LEASH, Part, wait_for_url
from watchtower.drills.program_log import ProgramLog
from watchtower.drills.stage import toml_value

SLEEPER = (
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
)


def until(condition, deadline_s=10.0):
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_ending_a_part_ends_its_children_too(tmp_path):
    part = Part("sleeper", [sys.executable, "-c", SLEEPER], tmp_path)
    until(lambda: children(part.pid))
    [child] = children(part.pid)
    part.end(patience_s=0)
    assert part.exit_code() == -signal.SIGKILL
    until(lambda: not is_running(child))


def test_a_stopped_part_is_ended(tmp_path):
    part = Part("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)
    part.signal(signal.SIGSTOP)
    part.end(patience_s=0.05)
    assert part.exit_code() is not None


def test_a_command_on_the_leash_dies_with_its_parent():
    parent_code = (
        "import subprocess, sys, time, os;"
        f"leash = [sys.executable, '-I', {str(LEASH)!r}, '9', str(os.getpid())];"
        "child = subprocess.Popen([*leash, sys.executable, '-c',"
        " 'print(1, flush=True); import time; time.sleep(60)'], stdout=subprocess.PIPE);"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True
    ) as parent:
        child = int(parent.stdout.readline())
        assert is_running(child)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        until(lambda: not is_running(child))


def test_the_address_is_the_first_line(tmp_path):
    code = "print('watchtower on http://127.0.0.1:4242/', flush=True); import time; time.sleep(60)"
    part = Part("tower", [sys.executable, "-c", code], tmp_path)
    try:
        assert wait_for_url(part, 10) == "http://127.0.0.1:4242"
    finally:
        part.end(patience_s=0)


def test_a_part_that_dies_at_once_is_quoted(tmp_path):
    part = Part("tower", [sys.executable, "-c", "raise SystemExit('no such setting')"], tmp_path)
    with pytest.raises(DrillError) as caught:
        wait_for_url(part, 10)
    assert "no such setting" in caught.value.help_text
    part.end()


def test_half_a_line_is_read_when_it_is_whole(tmp_path):
    path, log = tmp_path / "out", ProgramLog()
    path.write_text('started {"rank": 1, "pid": 10}\nnoise\nstep {"step"')
    log.read([path])
    assert (log.pids, log.step) == ({1: 10}, None)
    with path.open("a") as file:
        file.write(': 7, "loss": 1.5}\nfault {"monotonic_s": 3.5}\nfault {"monotonic_s": 9}\n')
    log.read([path])
    assert (log.step, log.fault_at) == (7, 3.5)


def test_ranks_are_laid_out_in_blocks():
    layout = Layout(ranks=7, nodes=3)
    assert [layout.local_ranks(node) for node in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [node_name(0), node_name(1), node_name(30)] == ["drill-a", "drill-b", "drill-30"]


def test_a_backend_the_drill_does_not_have_is_refused():
    assert choose_backend("auto", ("stdlib",)) == "stdlib"
    with pytest.raises(DrillError, match="exists for stdlib"):
        choose_backend("torch", ("stdlib",))


def test_a_drill_that_cuts_links_is_refused_where_there_are_no_namespaces(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert choose_backend("auto", ("stdlib", "torch"), networked=("torch",)) == "stdlib"
    with pytest.raises(DrillError, match="not with stdlib here: `ip` is not installed"):
        choose_backend("auto", ("stdlib", "torch"), networked=("stdlib", "torch"))
    with pytest.raises(DrillError) as caught:
        choose_backend("torch", ("stdlib", "torch"), networked=("torch",))
    assert caught.value.help_text == "use --backend stdlib"


@pytest.mark.parametrize("value", [True, 3, 0.25, 'a "b" \\ \n\x07é', [1, "x"], {"a b": 1.5}])
def test_settings_survive_being_written_as_toml(value):
    assert tomllib.loads(f"key = {toml_value(value)}")["key"] == value


def test_a_free_port_is_none_that_a_connection_could_get():
    first = int(PORT_RANGE.read_text().split()[0])
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 1
    assert all(1024 <= port < first or first <= 1024 for port in ports)
