"""`watchtower diagnose FOLDER`: what it prints of the files that people have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.field.field_case import FieldCase, watchdog, write
from tests.field.log_cases import LOG_CASES
from tests.field.node_cases import NODE_CASES
from watchtower.cli import main
from watchtower.commands.client import ClientError
from watchtower.commands.diagnosing import diagnose_text

SILENT = next(case for case in LOG_CASES if case.name == "watchdog_silent_rank")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a log per rank, of which rank 7 is silent."""
    return write(SILENT, tmp_path / "job-17")


def test_the_text_names_the_rank_and_has_a_row_for_each_kind_of_rank(folder, capsys):
    assert main(["diagnose", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("job-17: hung, behind_collective (80%)\nRank 7 has not come to the call")
    assert "8 of 8 ranks are in these files" in text
    assert "0-6    -     default_pg  all_reduce 808  808     -        807" in text
    assert "7      807   default_pg  no call" in text
    assert "all have made call 807. Then ranks 0-6 called all_reduce" in text
    assert "Ranks 0-6 (waiting): wait for rank 7 in all_reduce number 808" in text
    assert "to be sure: `py-spy dump --pid PID` of rank 7, a dump of each rank's flight" in text
    assert "8 files: 8 log; 0 lines that were not understood" in text
    assert "export TORCH_FR_BUFFER_SIZE=2000" in text


def test_json_has_the_verdict_and_each_file(folder, capsys):
    assert main(["diagnose", str(folder), "--json", "--exit-code"]) == 1
    page = json.loads(capsys.readouterr().out)
    assert [suspect["rank"] for suspect in page["suspects"]] == [7]
    assert {(file["form"], file["rank_known_by"]) for file in page["files"]} == {
        ("log", "content"),
        ("log", "file_name"),
    }


def test_what_files_about_nodes_show_is_listed(tmp_path, capsys):
    case = next(case for case in NODE_CASES if case.name == "links_of_a_node")
    folder = write(case, tmp_path / "job-17")
    main(["diagnose", str(folder)])
    text = capsys.readouterr().out
    for shown in (
        "node.txt:2: ib0 is switched on and has no carrier",
        "port 1 of mlx5_1 is Down / Polling",
        "GPU 00000000:5E:00.0: it has not joined its NVLink fabric",
    ):
        assert shown in text
    assert "eth0" not in text
    assert "mlx5_0" not in text


def test_json_has_a_row_for_each_rank(folder, capsys):
    main(["diagnose", str(folder), "--json"])
    rows = {row["rank"]: row for row in json.loads(capsys.readouterr().out)["ranks"]}
    assert rows[7]["step"] == 807
    assert rows[7]["waits_in"] == "no call"
    assert (rows[0]["called"], rows[0]["completed"]) == ("808", "807")


def test_the_page_of_html_stands_alone(folder, capsys):
    (folder / "<script>x_rank0.log").write_text("step 1\n")
    assert main(["diagnose", str(folder), "--html"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("<!DOCTYPE html>")
    assert "<h1>job-17: hung" in page
    assert 'src="data:image/svg+xml;base64,' in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_redacted_texts_have_no_names(tmp_path, capsys):
    files = {f"gpu-zeppelin/rank{rank}.log": watchdog(rank, 8) for rank in range(3)}
    files["gpu-zeppelin/rank3.log"] = "step 7 of /home/wilhelmina/secretproject\n"
    folder = write(FieldCase(name="", report="", files=files), tmp_path / "acmejob")
    for form in ([], ["--json"], ["--markdown"], ["--html"]):
        main(["diagnose", str(folder), "--redact", *form])
        text = capsys.readouterr().out
        assert not {w for w in ("zeppelin", "wilhelmina", "secretproject", "acmejob") if w in text}
        assert "job-00001" in text
        assert "rank 3" in text


def test_markdown_may_be_pasted(folder, capsys):
    assert main(["diagnose", str(folder), "--markdown"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("**job-17: hung")
    assert text.count("```") == 4


def test_a_folder_is_searched_without_following_links(tmp_path, capsys):
    write(SILENT, tmp_path / "elsewhere")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "link").symlink_to(tmp_path / "elsewhere")
    assert main(["diagnose", str(tmp_path / "job")]) == 2
    assert "no evidence of a hang was found" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_diagnosed(folder, capsys):
    pickle = b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR."
    (folder / "nccl_trace_rank_3").write_bytes(pickle)
    main(["diagnose", str(folder)])
    out = capsys.readouterr().out
    assert "nccl_trace_rank_3: is not read: operation GLOBAL may build an object" in out
    assert "Rank 7 has not come" in out


def test_a_folder_may_have_other_files(folder, capsys):
    (folder / "README.md").write_text("how to start the job\n")
    (folder / "model.bin").write_bytes(bytes(4096))
    assert main(["diagnose", str(folder)]) == 0
    assert "10 files: 9 log, 1 not known" in capsys.readouterr().out


def test_names_and_lines_cannot_change_the_terminal(tmp_path, capsys):
    for rank in (0, 1):
        (tmp_path / f"a\x1b[2J_rank{rank}.log").write_text(watchdog(rank, 8))
    (tmp_path / "rank2.log").write_text("step\x1b]0;title\x07\n")
    main(["diagnose", str(tmp_path)])
    assert "\x1b" not in "".join(capsys.readouterr())


def test_a_large_log_is_never_in_memory_as_a_whole(tmp_path):
    line = b"2026-06-26 06:14:00 step 807 loss 2.10 tokens 4096 lr 3e-4 of a usual line of a log\n"
    with open(tmp_path / "rank0.log", "wb") as file:
        for _ in range(64):
            file.write(line * 12_000)
        file.write(watchdog(0, 9).encode())
    (tmp_path / "rank1.log").write_text(watchdog(1, 9))
    (tmp_path / "rank2.log").write_text("step 8\n")
    before = os.times()
    assert main(["diagnose", str(tmp_path)]) == 0
    assert os.times().user - before.user < 6


BARRIER = "[rank0]:[E1128 15:59:17] [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 3000 ms"


def test_a_pasted_text_has_the_same_verdict_as_its_file(tmp_path: Path, capsys) -> None:
    (tmp_path / "pasted text").write_text(BARRIER)
    assert main(["diagnose", str(tmp_path / "pasted text"), "--markdown"]) == 0
    of_file = capsys.readouterr().out.strip().split("```")[0]
    assert "Rank 2" in of_file
    assert diagnose_text(BARRIER).split("```")[0] == of_file


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "\x00\x01",
        "\x1b]0;x\x07",
        "world_size=262144\n" + BARRIER,
        "{" * 5000,
        "[rank9]: " * 9999,
    ],
)
def test_a_hostile_text_is_refused_or_answered(text: str) -> None:
    try:
        answer = diagnose_text(text)
    except ClientError:
        return
    assert answer.count("```") % 2 == 0
