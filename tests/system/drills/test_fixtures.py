"""Fixtures take hold, and let go whether they are ended, orphaned or killed."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from watchtower.drills.children import Child, first_words, start_fixture
from watchtower.drills.errors import DrillError
from watchtower.drills.network import Network, why_no_network
from watchtower.drills.wall_clock import WallClock

FREEZER_V1 = Path("/sys/fs/cgroup/freezer")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def until(condition, deadline_s=60.0):
    end = time.monotonic() + deadline_s
    while not (result := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return result


def state_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.fixture
def set_up(tmp_path):
    fixtures = []

    def start(script, *words):
        fixture = start_fixture(script, words, tmp_path)
        fixtures.append(fixture)
        return fixture, until(lambda: first_words(fixture))

    yield start
    for fixture in fixtures:
        fixture.end()


@pytest.fixture
def sleeper(tmp_path):
    child = Child("sleeper", [sys.executable, "-c", "import time; time.sleep(300)"], tmp_path)
    until(lambda: state_of(child.pid) == "S")
    yield child
    child.end(patience_s=0)


def test_who_spawns_a_reader_of_the_pipe_sleeps_in_d_until_the_fixture_is_ended(set_up, tmp_path):
    pipe, found = set_up("pipe.py", str(tmp_path))
    code = (
        "import os, sys\n"
        f"actions = [(os.POSIX_SPAWN_OPEN, 0, {found['path']!r}, os.O_RDONLY, 0)]\n"
        "os.posix_spawn(sys.executable, [sys.executable, '-c', ''], {}, file_actions=actions)\n"
        "os.wait()\n"
    )
    spawner = Child("spawner", [sys.executable, "-c", code], tmp_path)
    try:
        [child] = until(lambda: state_of(spawner.pid) == "D" and children(spawner.pid))
        until(lambda: state_of(child) == "S")
        pipe.end()
        until(lambda: spawner.exit_code() is not None)
        assert spawner.exit_code() == 0
    finally:
        spawner.end(patience_s=0)


def test_nobody_has_to_wait_at_the_pipe(set_up, tmp_path):
    pipe, _ = set_up("pipe.py", str(tmp_path))
    pipe.end()
    assert pipe.exit_code() == 0


@needs_root
def test_a_frozen_process_is_thawed_and_put_back(set_up, sleeper):
    before = Path(f"/proc/{sleeper.pid}/cgroup").read_text()
    freezer, _ = set_up("control_group.py", "freeze", str(sleeper.pid))
    assert Path(f"/proc/{sleeper.pid}/cgroup").read_text() != before
    freezer.end()
    assert Path(f"/proc/{sleeper.pid}/cgroup").read_text() == before
    sleeper.signal(signal.SIGTERM)
    assert until(lambda: sleeper.exit_code() == -signal.SIGTERM)


@needs_root
@pytest.mark.skipif(not FREEZER_V1.is_dir(), reason="no v1 freezer is mounted")
def test_what_a_killed_freezer_left_is_taken_away_by_the_next(set_up, sleeper, tmp_path):
    killed, _ = set_up("control_group.py", "freeze", str(sleeper.pid))
    killed.end(patience_s=0)
    assert (FREEZER_V1 / f"watchtower-drill-{killed.pid}").is_dir()
    other = Child("other", [sys.executable, "-c", "import time; time.sleep(300)"], tmp_path)
    try:
        again = start_fixture(
            "control_group.py", ["freeze", str(other.pid)], tmp_path, label="again"
        )
        until(lambda: first_words(again))
        again.end()
        assert not (FREEZER_V1 / f"watchtower-drill-{killed.pid}").exists()
    finally:
        other.end(patience_s=0)


@needs_root
def test_a_process_is_killed_at_the_memory_limit_of_its_group(set_up, tmp_path):
    code = "import time; time.sleep(2); held = [b'1' * 2**20 for _ in range(256)]; time.sleep(300)"
    eater = Child("eater", [sys.executable, "-c", code], tmp_path)
    before = Path(f"/proc/{eater.pid}/cgroup").read_text()
    try:
        group, _ = set_up("control_group.py", "limit", str(eater.pid), str(32 << 20))
        assert Path(f"/proc/{eater.pid}/cgroup").read_text() != before
        assert until(eater.exit_code) == -signal.SIGKILL
        group.end()
        assert not any(Path("/sys/fs/cgroup").glob(f"*/watchtower-drill-{group.pid}"))
    finally:
        eater.end(patience_s=0)


@needs_root
@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no /dev/fuse")
def test_a_file_system_that_never_answers_is_gone_when_it_is_ended(set_up, tmp_path):
    mount, found = set_up("fuse_mount.py", str(tmp_path))
    code = f"open({found['path'] + '/checkpoint.bin'!r}, 'wb')"
    writer = Child("writer", [sys.executable, "-c", code], tmp_path)
    try:
        until(lambda: state_of(writer.pid) == "D")
        mount.end()
        assert until(lambda: writer.exit_code() is not None)
        assert found["path"] not in Path("/proc/self/mountinfo").read_text()
    finally:
        writer.end(patience_s=0)


@pytest.mark.skipif(why_no_network() is not None, reason=f"{why_no_network()}")
@pytest.mark.parametrize("cut", [lambda network: network.cut(0), Network.cut_all])
def test_a_cut_link_swallows_what_is_sent_and_the_end_leaves_no_namespace(set_up, cut):
    fixture, text = set_up("network.py", "2")
    network = Network(**text)
    server = (
        "import socket; s = socket.create_server(('', 29500)); print('up', flush=True);"
        "c, _ = s.accept(); c.send(b'1'); c.recv(1); c.send(b'2')"
    )
    asker = (
        f"import socket; s = socket.create_connection(({network.addresses[0]!r}, 29500), 5);"
        "print(s.recv(1), flush=True); input(); s.settimeout(0.5); s.send(b'x')\n"
        "try: print(s.recv(1))\nexcept TimeoutError: print('silence')"
    )

    def start(rank, code):
        command = [*network.enter(rank), sys.executable, "-c", code]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, **pipes)

    with start(0, server) as first, start_after(first, lambda: start(1, asker)) as second:
        assert second.stdout.readline() == "b'1'\n"
        cut(network)
        assert second.communicate("\n", timeout=60)[0] == "silence\n"
        first.kill()
    fixture.end()
    assert all(state_of(pid) in "XZ" for pid in network.pids)


def start_after(first, start):
    assert first.stdout.readline() == "up\n"
    return start()


def test_the_wall_clock_jumps_and_the_monotonic_one_does_not(tmp_path):
    try:
        clock = WallClock(tmp_path)
    except DrillError as error:
        pytest.skip(str(error))
    code = "import time\nwhile input() != 'end': print(time.time(), time.monotonic(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | clock.environment,
    ) as reader:

        def read():
            reader.stdin.write("\n")
            reader.stdin.flush()
            return [float(word) for word in reader.stdout.readline().split()]

        (wall, monotonic), _ = read(), clock.shift(3600)
        (later, soon), _ = read(), clock.shift(-7200)
        earlier, _ = read()
        reader.communicate("end\n")
    assert 3600 <= later - wall < 3610
    assert -3600 <= earlier - wall < -3590
    assert 0 <= soon - monotonic < 10


def test_the_slow_server_takes_its_time_and_keeps_nothing(set_up):
    _, found = set_up("file_server.py")
    started = time.monotonic()
    with urllib.request.urlopen(f"{found['url']}?seconds=0.5", timeout=60) as response:
        assert len(response.read()) >= 32768
    assert 0.5 <= time.monotonic() - started < 5
    request = urllib.request.Request(found["url"], data=iter([b"x" * 70_000] * 3), method="PUT")
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status == 204


def test_a_fixture_that_cannot_start_says_why(tmp_path):
    fixture = start_fixture("tracer.py", ["999999999"], tmp_path)
    with pytest.raises(DrillError, match="cannot trace process 999999999"):
        until(lambda: first_words(fixture))
    fixture.end()


def test_the_folder_of_a_drill_goes_when_the_drill_is_killed(tmp_path):
    drill = (
        "import time\n"
        "from watchtower.drills.runner import _temporary_folder\n"
        "with _temporary_folder() as folder:\n"
        "    while 'ready' not in (folder / 'tidier.out').read_text(): time.sleep(0.01)\n"
        "    print(folder, flush=True); time.sleep(300)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", drill],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:
        folder = Path(parent.stdout.readline().strip())
        assert folder.parent == tmp_path
        parent.kill()
    until(lambda: not folder.exists())


def test_the_sweeper_ends_a_stopped_orphan_when_the_drill_dies(tmp_path):
    word = f"DRILL_TEST={tmp_path}"
    drill = (
        "import pathlib, time\n"
        "from watchtower.drills.children import first_words, start_fixture\n"
        f"fixture = start_fixture('sweeper.py', [{word!r}], pathlib.Path({str(tmp_path)!r}))\n"
        "while first_words(fixture) is None: time.sleep(0.01)\n"
        "print('ready', flush=True); time.sleep(300)\n"
    )
    # Another session, as torchrun's ranks are: no process group of the drill's reaches it.
    stopped = "import os, signal; print(flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    with (
        subprocess.Popen(
            [sys.executable, "-c", drill], stdout=subprocess.PIPE, text=True
        ) as parent,
        subprocess.Popen(
            [sys.executable, "-c", stopped],
            stdout=subprocess.PIPE,
            env=dict([*os.environ.items(), word.split("=")]),
            start_new_session=True,
        ) as orphan,
    ):
        assert parent.stdout.readline() == "ready\n"
        until(lambda: state_of(orphan.pid) == "T")
        parent.kill()
        assert orphan.wait(timeout=60) == -signal.SIGKILL
