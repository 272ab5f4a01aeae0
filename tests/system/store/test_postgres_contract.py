"""What every store does, on PostgreSQL."""

from tests.store.test_contract import *  # noqa: F403
