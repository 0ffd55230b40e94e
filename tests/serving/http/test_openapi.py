"""The HTTP interface changes only on purpose: the document is the committed one. A bundle's names nobody."""

import json
from pathlib import Path

from serving.bundle.manifest import FeatureSpec
from serving.bundle.reader import Bundle
from serving.http import openapi
from serving.http.app import create_app
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


def test_the_user_of_the_example_is_none_of_the_bundle(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", query_ids=[f"user-{number}" for number in range(USERS)])
    settings = Settings(bundle=tmp_path / "bundle")
    shown = openapi.document(create_app(settings), Bundle.open(tmp_path / "bundle"), settings)
    examples = shown["paths"]["/recall"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    assert examples["user"]["value"]["user_id"] == "user-100"
