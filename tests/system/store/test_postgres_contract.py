"""What every store does, what a list of it contains, and what it deletes: on PostgreSQL."""

from tests.store.test_contract import *  # noqa: F403
from tests.store.test_incident_filter import (
    test_a_corrected_verdict_is_found_by_its_new_node_only,
    test_store_and_memory_agree_on_what_a_list_contains,
)
from tests.store.test_retention import *  # noqa: F403

__all__ = [
    "test_a_corrected_verdict_is_found_by_its_new_node_only",
    "test_store_and_memory_agree_on_what_a_list_contains",
]
