"""The API as /openapi.json describes it: complete, and one type for each field name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from tests.diagnosers import in_thread
from watchtower.api.openapi import COMMON, EXAMPLES
from watchtower.app import make_app
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower

OPEN = ("GET /healthz", "GET /readyz")
PAGES = ("/", "/nodes", "/incidents", "/login", "/logout")
PAGES_BELOW = ("/incidents/", "/jobs/", "/static/")
"""Pages and forms for browsers, which are no part of the API."""

OF_A_STANDARD = {("Problem", "status")}
"""RFC 9457 says what this field is."""


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[TestClient]:
    store = SqliteStore(tmp_path_factory.mktemp("api") / "watchtower.db")
    with TestClient(make_app(Tower(Policy(), store, store.recall(), Clock(), in_thread))) as client:
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


def test_every_operation_is_described_completely(document):
    seen, tags = set(), {tag["name"] for tag in document["tags"]}
    for call, operation in operations(document):
        assert operation["summary"], call
        assert len(operation["description"]) > 20, call
        assert re.fullmatch("[a-z_]+", operation["operationId"]), call
        assert operation["operationId"] not in seen, call
        seen.add(operation["operationId"])
        assert len(operation["tags"]) == 1, call
        assert set(operation["tags"]) <= tags, call
        done = operation["responses"]["200"]
        assert done["description"] != "Successful Response", call
        assert done["content"], call
        for kind, content in done["content"].items():
            assert content["example"], (call, kind)
            assert content["schema"], (call, kind)


def test_fields_of_answers_have_the_texts_of_the_source(document):
    schemas = document["components"]["schemas"]
    for name, field, text in (
        ("IncidentSummary", "suspect_ranks", 'Rank set, such as "0-6,8".'),
        ("IncidentList", "next_cursor", "For the next page"),
        ("VerdictView", "shared_with", "Number of other open incidents"),
        ("Suspect", "gpu", "NVML index"),
    ):
        assert schemas[name]["properties"][field]["description"].startswith(text)


def test_every_error_is_a_problem_with_an_example(document):
    for call, operation in operations(document):
        errors = {
            status: each for status, each in operation["responses"].items() if status != "200"
        }
        is_open = call in OPEN
        assert {"500"} if is_open else {"401", "403", "421", "500", "503"} <= errors.keys(), call
        assert ("404" in errors) == ("{" in call), call
        assert ("409" in errors) == ("{incident}" in call), call
        has_input = "parameters" in operation or "requestBody" in operation
        assert ("422" in errors) == has_input, call
        for status, each in errors.items():
            if (call, status) == ("GET /readyz", "503"):
                continue
            assert len(each["description"]) > 20, (call, status)
            content = each["content"]["application/problem+json"]
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
            assert content["example"]["status"] == int(status), call


def test_every_route_that_people_and_bots_read_is_described(client, document):
    for route in client.app.routes:
        path = re.sub(r"{(\w+):\w+}", r"{\1}", route.path)
        if path.startswith("/ingest/") or path in PAGES or path.startswith(PAGES_BELOW):
            continue
        for method in route.methods - {"HEAD"}:
            assert method.lower() in document["paths"].get(path, {}), f"{method} {path}"


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


def test_every_field_of_an_answer_is_described(document):
    found = {
        f"{name}.{field}": each.get("description", "")
        for name, schema in document["components"]["schemas"].items()
        for field, each in schema.get("properties", {}).items()
    }
    assert {field for field, text in found.items() if len(text) < 3} == set()
    assert found["NodeSummary.rank_count"] == "Number of ranks that it monitors."  # its docstring
    assert found["AckView.by"] == COMMON["by"]


def test_every_common_text_is_needed(document):
    used = {
        each.get("description")
        for schema in document["components"]["schemas"].values()
        for each in schema.get("properties", {}).values()
    }
    assert {name for name, text in COMMON.items() if text not in used} == set()


def test_an_example_is_a_whole_answer_of_its_type(client, document):
    """It lacks no field: defaults are filled in, and a field without one is an error."""
    found = 0
    for route in client.app.routes:
        kind = getattr(route, "response_model", None)
        if isinstance(kind, type) and is_dataclass(kind):
            path = document["paths"][re.sub(r"{(\w+):\w+}", r"{\1}", route.path)]
            (operation,) = (path[method.lower()] for method in route.methods)
            example = operation["responses"]["200"]["content"]["application/json"]["example"]
            whole = msgspec.json.encode(msgspec.convert(EXAMPLES[kind.__name__], kind))
            assert example == msgspec.json.decode(whole)
            assert example.keys() == {each.name for each in fields(kind)}
            found += 1
    assert found > 20


def test_every_example_is_needed(client):
    routes = [route for route in client.app.routes if hasattr(route, "response_model")]
    names = {name for route in routes for name in (route.name, str(route.response_model))}
    kinds = {getattr(route.response_model, "__name__", "") for route in routes}
    assert EXAMPLES.keys() - names - kinds == {"verdict_texts"}


def test_the_page_has_every_call_with_its_body_and_its_example(client, document):
    page = client.get("/docs").text
    for call, operation in operations(document):
        assert call in page
        assert operation["summary"] in page
    for name in ("for_s", "reason", "by", "note"):
        assert f"<code>{name}</code>" in page
    for tag in document["tags"]:
        assert f"<h2 id='{tag['name']}'>" in page
    assert "all_reduce" in page
    assert "<script" not in page
