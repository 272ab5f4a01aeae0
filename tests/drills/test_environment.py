"""Layouts, backends, ports and settings of a drill; output is read line by line."""

import pytest

from watchtower.drills.environment import toml_value
from watchtower.drills.errors import DrillError
from watchtower.drills.launching import (
    PORT_RANGE,
    Layout,
    choose_backend,
    free_port,
    node_name,
)
from watchtower.drills.program_log import ProgramLog
from watchtower.service.toml_tables import parse_toml


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
    with pytest.raises(DrillError, match="supports stdlib"):
        choose_backend("torch", ("stdlib",))


def test_a_drill_that_cuts_links_is_refused_where_there_are_no_namespaces(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert choose_backend("auto", ("stdlib", "torch"), networked=("torch",)) == "stdlib"
    with pytest.raises(DrillError, match="cannot use stdlib here: `ip` is not installed"):
        choose_backend("auto", ("stdlib", "torch"), networked=("stdlib", "torch"))
    with pytest.raises(DrillError) as caught:
        choose_backend("torch", ("stdlib", "torch"), networked=("torch",))
    assert caught.value.help_text == "use --backend stdlib"


@pytest.mark.parametrize("value", [True, 3, 0.25, 'a "b" \\ \n\x07é', [1, "x"], {"a b": 1.5}])
def test_settings_survive_being_written_as_toml(value):
    assert parse_toml(f"key = {toml_value(value)}")["key"] == value


def test_a_free_port_is_none_that_a_connection_could_get():
    first = int(PORT_RANGE.read_text().split()[0])
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 1
    assert all(1024 <= port < first or first <= 1024 for port in ports)
