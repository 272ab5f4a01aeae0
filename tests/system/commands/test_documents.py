"""The commands that write documents about an incident of a real tower."""

from __future__ import annotations

import json
from pathlib import Path

from tests.towers import RunningTower
from watchtower.cli import main
from watchtower.commands.client import TowerClient


def test_a_post_mortem_is_written_as_markdown_and_html(hung_tower: RunningTower, tmp_path, capsys):
    (incident,) = TowerClient(hung_tower.url).incidents()
    path = tmp_path / "postmortem.md"
    tower = ["--tower", hung_tower.url]
    assert main(["postmortem", incident["id"][:20], "-o", str(path), *tower]) == 0
    assert f"{path}: " in capsys.readouterr().out
    text = path.read_text("utf-8")
    assert text.startswith("# Post-mortem: job llama hung on 20")
    assert "Rank 1 on node-of-llama was the cause: the process is stopped" in text
    assert "watchtower drill sigstop" in text
    assert main(["postmortem", incident["id"], "--format", "html", *tower]) == 0
    assert "<h2>Timeline</h2>" in capsys.readouterr().out
    for name, begin in (("p.html", "<!doctype html>"), ("p.HTM", "<!doctype html>"), ("p", "# ")):
        path = tmp_path / name
        assert main(["postmortem", incident["id"], "-o", str(path), *tower]) == 0
        assert path.read_text("utf-8").lower().startswith(begin)
    words = ["--format", "markdown", "-o", str(tmp_path / "x.html")]
    assert main(["postmortem", incident["id"], *words, *tower]) == 0
    assert (tmp_path / "x.html").read_text("utf-8").startswith("# ")
    assert main(["postmortem", "01XYZ", *tower]) == 4


def test_a_redacted_export_is_replayed(hung_tower: RunningTower, tmp_path: Path, capsys):
    (incident,) = TowerClient(hung_tower.url).incidents()
    path = tmp_path / "incident.json"
    tower = ["--tower", hung_tower.url]
    assert main(["export", incident["id"], "--redact", "-o", str(path), *tower]) == 0
    assert "llama" not in path.read_text("utf-8")
    assert main(["replay", str(path), "--json"]) == 0
    both = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert both["now"]["cause"] == "process_stopped"
    assert both["now"]["suspects"][0]["node"] == "node-00001"
