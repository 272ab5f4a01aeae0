"""Many files are shared among processes, in their order, with a bar of progress."""

from __future__ import annotations

import io

from tests.field.field_case import watchdog
from watchtower.commands import evidence_files
from watchtower.commands.evidence_files import find_files, read_files


def test_processes_find_what_one_process_finds(tmp_path, monkeypatch):
    for rank in range(12):
        (tmp_path / f"rank{rank}.log").write_text("step 1\n" * 900 + watchdog(rank, 808))
    alone = list(read_files(find_files([tmp_path]), root=tmp_path))
    monkeypatch.setattr(evidence_files, "LEAST_SHARED_BYTES", 1)
    monkeypatch.setattr(evidence_files, "_count_cpus", lambda: 2)
    terminal = io.StringIO()
    shared = list(read_files(find_files([tmp_path]), root=tmp_path, terminal=terminal))
    assert shared == alone
    assert [each.owner.rank for each in shared] == [0, 1, 10, 11, *range(2, 10)]
    shown = terminal.getvalue().split("\r\x1b[K")
    assert "6 of 12 files" in shown[6]
    assert shown[-1] == ""
