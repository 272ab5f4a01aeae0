"""The record of real GPUs, made of GPUs of ours: that of a real card is not in this repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.system.agent.fake_gpus import SPINS, WORKS, Gpus, gpus  # noqa: F401  # a fixture
from tests.system.gpu.real_gpus import NoGpuError, RealGpus, describe
from tests.system.gpu.record import main, record, replace_measured
from watchtower.drills.compiling import find_compiler

NOTES = Path(__file__).parents[3] / "docs/gpu-notes.md"


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
def test_the_record_has_calls_values_and_the_figures_of_each_load(gpus: Gpus):  # noqa: F811
    def shows(text: str) -> Callable[[], AbstractContextManager[None]]:
        @contextmanager
        def show() -> Iterator[None]:
            gpus.be(text)
            yield None

        return show

    works = "sm 0 91\ntensor 0 32\ndram 0 24\n" + WORKS.format(0)
    gpus.be(SPINS.format(0))
    real = RealGpus(str(gpus.root))
    states = {"spinning": shows(SPINS.format(0)), "working": shows(works)}
    text = record(real, states, seconds=2.0, settles_s=5.5)
    real.stop()
    assert "2 x Stand-in 3000,\ndriver 999.1." in text
    assert "| figure | spinning | working |" in text
    assert "| pattern | spinning | working |" in text
    assert "| utilization | 1 | 0.99 |" in text
    assert "| power, share of the limit | 0.1357 | 0.8714 |" in text
    assert "| tensor cores | - | 0.32 |" in text
    assert "`energy_j`" in text
    assert "| load | " in text


def test_the_page_has_one_place_for_figures():
    page = NOTES.read_text("utf-8")
    new = replace_measured(page, "| a | \\1 |")
    assert new.count("| a | \\1 |") == 1
    assert replace_measured(new, "No figures yet.") == page


def test_a_machine_without_a_driver_keeps_its_page(tmp_path: Path, capsys, monkeypatch):
    page = tmp_path / "notes.md"
    page.write_text("as it is")
    monkeypatch.setattr("tests.system.gpu.real_gpus.DRIVER_FILES", ())
    with pytest.raises(NoGpuError):
        RealGpus(str(tmp_path))
    assert main(page) == 0
    assert page.read_text() == "as it is"
    assert "no GPU was measured" in capsys.readouterr().out


def test_figures_have_their_median_and_range():
    assert describe([]) == "-"
    assert describe([0.5]) == "0.5"
    assert describe([3, 1, 2]) == "2 (1 to 3)"
