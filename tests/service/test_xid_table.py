"""The table of Xid errors, and the one of an operator that comes before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchtower.service.toml_tables import parse_toml
from watchtower.service.xid_table import explain_xid, read_meanings, read_override

ENTRY = """[[xid]]
codes = [{codes}]
means = "{means}"
class = "{kind}"
action = "{action}"
"""


def entry(codes: str = '"79"', means: str = "x", kind: str = "pcie", action: str = "ignore") -> str:
    return ENTRY.format(codes=codes, means=means, kind=kind, action=action)


def test_the_table_of_an_operator_replaces_single_codes(tmp_path: Path):
    file = tmp_path / "xids.toml"
    file.write_text(entry('"79", "200-202"', "ours", "gpu", "reset_gpu") + entry('"13"'))
    found = read_override(str(file))
    assert found.keys() == {79, 200, 201, 202, 13}
    assert (found[79].means, found[79].action, found[79].is_fault) == ("ours", "reset_gpu", True)
    assert not found[13].is_fault


def test_without_a_file_nothing_is_replaced():
    assert read_override("") == {}
    assert explain_xid(79).action == "reboot_node"


@pytest.mark.parametrize(
    "text",
    [
        "codes",
        entry(kind="container"),
        entry(action="sing"),
        entry('"x"'),
        "[[xid]]\ncodes = ['1']\n",
        "xid = 3\n",
        entry('"0-99999999999999"', action="sing"),
    ],
)
def test_a_wrong_table_ends_the_program_with_the_reason(tmp_path: Path, text: str):
    file = tmp_path / "xids.toml"
    file.write_text(text)
    with pytest.raises(SystemExit, match="WATCHTOWER_XIDS_FILE"):
        read_override(str(file))


def test_a_missing_file_ends_the_program():
    with pytest.raises(SystemExit, match="No such file"):
        read_override("/nowhere/xids.toml")


def test_a_range_is_bounded():
    assert len(read_meanings(parse_toml(entry('"0-99999999999999"')))) <= 100_001
