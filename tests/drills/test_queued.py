"""The backend `queued`: when it can run, and what its ranks are given."""

from __future__ import annotations

import pytest

from watchtower.drills import launching
from watchtower.drills.compiling import QUEUED, QUEUED_LIBRARIES
from watchtower.drills.errors import DrillError
from watchtower.drills.launching import choose_backend
from watchtower.drills.settings import DrillSettings, parse_settings
from watchtower.drills.setup import plan_of_backend


def test_without_a_compiler_the_reason_is_given(monkeypatch):
    monkeypatch.setattr(launching.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(launching, "find_compiler", lambda: None)
    with pytest.raises(DrillError, match=r"cannot use queued here: no C compiler is installed"):
        choose_backend("queued", ("torch", "queued"))


def test_without_torch_the_reason_is_given(monkeypatch):
    monkeypatch.setattr(launching.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DrillError, match="torch is not installed"):
        choose_backend("queued", ("queued",))


def test_auto_chooses_the_backend_only_if_no_other_can_run(monkeypatch):
    monkeypatch.setattr(launching.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(launching, "find_compiler", lambda: "/usr/bin/cc")
    assert choose_backend("auto", ("stdlib", "torch", "queued")) == "torch"
    assert choose_backend("auto", ("stdlib", "queued")) == "stdlib"
    assert choose_backend("auto", ("queued",)) == "queued"


def test_the_sources_of_all_libraries_exist():
    assert all((QUEUED / source).is_file() for source in QUEUED_LIBRARIES.values())


def test_only_ranks_of_this_backend_get_its_settings():
    settings = DrillSettings(queued_schedule="sleep", queued_log="frozen", queued_engine=True)
    assert plan_of_backend("torch", settings) == {}
    assert plan_of_backend("queued", settings) == {
        "schedule": "sleep",
        "log": "frozen",
        "engine_thread": True,
    }


@pytest.mark.parametrize("section", [{"queued_schedule": "doze"}, {"queued_log": "some"}])
def test_an_unknown_schedule_or_log_is_refused(section):
    with pytest.raises(DrillError, match=next(iter(section))):
        parse_settings(section)
