"""The API as /openapi.json describes it: complete, and one type for each field name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from tests.diagnosers import InThread
from watchtower.api import examples
from watchtower.app import make_app
from watchtower.core.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.health import Health
from watchtower.tower.history import IncidentDetail, IncidentSummary
from watchtower.tower.tower import Tower
from watchtower.tower.views import AgentList, JobSummary, JobView, VerdictView

OF_A_STANDARD = {("Problem", "status")}
"""RFC 9457 says what this field is."""


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[TestClient]:
    store = SqliteStore(tmp_path_factory.mktemp("api") / "watchtower.db")
    with TestClient(make_app(Tower(Policy(), store, store.recall(), Clock(), InThread))) as client:
        yield client
    store.close()


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    return client.get("/openapi.json").json()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def type_of(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    """The JSON type of a field, whether it may be null or not. An enum is a string."""
    if "anyOf" in schema:
        kinds = {type_of(each, schemas) for each in schema["anyOf"]} - {"null"}
        return " or ".join(sorted(kinds))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "string" if "enum" in schemas[name] else name
    if schema.get("type") == "array":
        return f"list of {type_of(schema['items'], schemas)}"
    return schema["type"]


def test_one_field_name_has_one_type_in_all_answers(document):
    schemas = document["components"]["schemas"]
    kinds = defaultdict(lambda: defaultdict(list))
    for name, schema in schemas.items():
        for field, each in schema.get("properties", {}).items():
            if (name, field) not in OF_A_STANDARD and field != "items":
                kinds[field][type_of(each, schemas)].append(name)
    assert {field: dict(found) for field, found in kinds.items() if len(found) > 1} == {}


def test_every_operation_has_a_summary_a_description_and_an_example(document):
    for call, operation in operations(document):
        assert operation["summary"], call
        assert len(operation["description"]) > 20, call
        done = operation["responses"]["200"]
        assert done["description"] != "Successful Response", call
        assert done["content"], call
        assert all(content["example"] for content in done["content"].values()), call
        problem = operation["responses"]["4XX"]["content"]["application/problem+json"]
        assert problem["example"], call


def test_every_parameter_and_every_field_of_a_body_is_described(document):
    schemas = document["components"]["schemas"]
    for call, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            assert len(parameter["description"]) > 10, (call, parameter["name"])
        for content in operation.get("requestBody", {}).get("content", {}).values():
            body = schemas[content["schema"]["$ref"].rpartition("/")[2]]
            assert len(body["description"]) > 10, call
            for name, field in body["properties"].items():
                assert len(field["description"]) > 10, (call, name)
                assert field["examples"], (call, name)


@pytest.mark.parametrize(
    ("example", "kind"),
    [
        (examples.AGENTS, AgentList),
        (examples.JOBS["items"][0], JobSummary),
        (examples.JOB_VIEW, JobView),
        (examples.VERDICT, VerdictView),
        (examples.INCIDENTS["items"][0], IncidentSummary),
        (examples.INCIDENT_DETAIL, IncidentDetail),
        (examples.HEALTH, Health),
    ],
)
def test_an_example_is_an_answer(example, kind):
    assert msgspec.convert(example, kind)


def test_the_page_has_every_call_with_its_body_and_its_example(client, document):
    page = client.get("/docs").text
    for call, operation in operations(document):
        assert call in page
        assert operation["summary"] in page
    for name in ("for_s", "reason", "by", "note"):
        assert f"<code>{name}</code>" in page
    assert "all_reduce" in page
    assert "<script" not in page
