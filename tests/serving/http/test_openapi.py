"""The HTTP interface changes only on purpose: the document is the committed one. A bundle's names nobody."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from serving.bundle.manifest import FeatureSpec
from serving.bundle.reader import Bundle
from serving.catalogue.item_columns import attribute_json_schema
from serving.http import openapi, responses
from serving.http.app import create_app
from serving.http.json_schemas import condition_schemas
from serving.http.route_table import ROUTES
from serving.settings import Settings
from tests.support.worlds.serving import FEATURES, USERS, write_world
from tools.openapi import COMMITTED, document


def test_the_document_is_the_committed_one() -> None:
    now, committed = json.loads(document()), json.loads(COMMITTED.read_text(encoding="utf-8"))
    changed = {
        path for path in now["paths"] | committed["paths"] if now["paths"].get(path) != committed["paths"].get(path)
    }
    schemas = now["components"]["schemas"], committed["components"]["schemas"]
    changed |= {name for name in schemas[0] | schemas[1] if schemas[0].get(name) != schemas[1].get(name)}
    assert not changed, "callers would notice; if that is meant: python tools/openapi.py, and say so in CHANGELOG.md"
    assert now == committed


def test_every_example_of_an_error_is_of_a_route() -> None:
    declared = {status for route in ROUTES for status in route.errors}
    assert openapi.ERROR_EXAMPLES.keys() == declared | {401, 403}, "those two are of services that ask for keys"


def test_every_example_of_an_answer_fits_its_schema() -> None:
    settings = Settings(bundle=Path("bundle"), keys=Path("keys"))
    shown = openapi.document(create_app(settings), None, settings)
    contents = [
        answer["content"]["application/json"]
        for methods in shown["paths"].values()
        for operation in methods.values()
        for answer in operation["responses"].values()
        if "application/json" in answer["content"]
    ]
    assert len(contents) > 90
    for content in contents:
        model = getattr(responses, content["schema"]["$ref"].rpartition("/")[2])
        model.model_validate(content["example"])


def test_every_operation_may_refuse_an_upgrade() -> None:
    paths = json.loads(document())["paths"]
    operations = [operation for each in paths.values() for operation in each.values()]
    assert len(operations) == len(ROUTES)
    for operation in operations:
        answer = operation["responses"]["400"]
        told = answer["description"], answer["content"]["application/json"]["example"]["error"]["code"]
        of_body = ("The body is not JSON, or (invalid_http) the request asks to switch protocols", "invalid_json")
        of_none = ("The request asks to switch protocols", "invalid_http")
        assert told == (of_body if "requestBody" in operation else of_none)


def test_numbers_that_need_64_bits_say_so() -> None:
    schemas = json.loads(document())["components"]["schemas"]
    for model, field in (("Event", "time"), ("Impression", "time"), ("Written", "seq")):
        assert schemas[model]["properties"][field]["format"] == "int64", "generated clients of Java and Go: 32 bits"
    # A float32 of Go turns the year 2026 in seconds into another minute, and the filter finds other items.
    wide = {"type": "number", "format": "double"}
    values = schemas["Comparison"]["properties"]["value"]["anyOf"]
    assert wide in values and {"type": "array", "items": wide} in values
    several, single = condition_schemas({"made": "number"})["Comparison"]["anyOf"]
    assert several["properties"]["value"]["items"] == single["properties"]["value"] == wide
    assert attribute_json_schema(pl.Int64())["format"] == attribute_json_schema(pl.UInt32())["format"] == "int64"
    assert "format" not in attribute_json_schema(pl.UInt64()), "its upper half is none of int64"
    assert attribute_json_schema(pl.Float64()) == wide


def test_an_error_that_has_several_causes_names_the_code_of_each() -> None:
    answers = json.loads(document())["paths"]["/items"]["put"]["responses"]
    for status, codes in {
        "400": ("invalid_json", "invalid_http"),
        "409": ("no_state", "not_recallable"),
        "503": ("not_ready", "stopping", "timeout"),
    }.items():
        assert all(code in json.dumps(answers[status]) for code in codes)
    assert "of a PUT" in answers["409"]["description"], "other routes have the same text"
    assert "not_written" in answers["503"]["description"], "the one that a caller of a change must send again"


def test_lists_of_strings_among_features_have_the_limit_of_lists(tmp_path: Path) -> None:
    features = (*FEATURES, FeatureSpec(name="look", kind="vector", dtype="float32", length=64))
    write_world(tmp_path / "bundle", features=features)
    for most, tags in ((50, 3), (2, 2)):
        settings = Settings(bundle=tmp_path / "bundle", max_list=most)
        shown = openapi.document(create_app(settings), Bundle.open(tmp_path / "bundle"), settings)
        for model in ("RecallRequest", "EmbedQuery"):
            its = shown["components"]["schemas"][model]["properties"]["features"]["anyOf"][0]["properties"]
            limits = {name: its[name]["anyOf"][0]["maxItems"] for name in ("history", "tags", "look")}
            assert limits == {"history": most, "tags": tags, "look": 64}


def test_every_list_says_what_it_holds(tmp_path: Path) -> None:
    """Without that, openapi-python-client leaves the whole route out."""
    write_world(tmp_path / "bundle", features=(FeatureSpec(name="look", kind="vector", dtype="float32", length=4),))
    settings = Settings(bundle=tmp_path / "bundle")
    shown = openapi.document(create_app(settings), Bundle.open(tmp_path / "bundle"), settings)
    lists = [each for each in parts(shown) if each.get("type") == "array"]
    assert len(lists) > 10 and all("items" in each for each in lists)


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(each)


def test_the_user_of_the_example_is_none_of_the_bundle(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", query_ids=[f"user-{number}" for number in range(USERS)])
    settings = Settings(bundle=tmp_path / "bundle")
    shown = openapi.document(create_app(settings), Bundle.open(tmp_path / "bundle"), settings)
    examples = shown["paths"]["/recall"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    assert examples["user"]["value"]["user_id"] == "user-100"
