"""Fixtures that tests of drills share in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.e2e.drilled import SharedEnvironment
from tests.system.e2e.other_users import shared_folder, shared_python  # noqa: F401 - fixtures


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedEnvironment]:
    """Tower and agents for drills, started when the first drill needs them.

    They end when the process turns to the tests of other folders: idle ones use the processor, too.
    """
    made = SharedEnvironment(tmp_path_factory)
    yield made
    made.close()
