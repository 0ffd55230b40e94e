"""Builds the OpenAPI document: examples for every route and error, and the features of the served bundle."""

import json
from collections.abc import Sequence
from itertools import count, product
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from starlette.routing import compile_path

from serving.bundle.manifest import FeatureSpec
from serving.bundle.reader import Bundle
from serving.catalogue.item_columns import attribute_json_schema
from serving.http.auth import reads
from serving.http.json_schemas import COMPONENTS, condition_schemas, feature_schema
from serving.http.requests import EmbedQuery, RecallRequest, SimilarRequest
from serving.http.responses import ErrorResponse
from serving.http.route_table import OPEN, ROUTES, UPGRADE
from serving.protocol.limits import NO_UPGRADE
from serving.recall.planner import GREATEST_NUMBER
from serving.search.conditions import kinds
from serving.settings import Settings

FORMS = ("And", "Or", "Not")  # models; in the document each depth of a filter has its own schemas

# By path and method as the document spells them.
BODIES = {(compile_path(each.path)[1], each.method.lower()): each.body for each in ROUTES if each.body is not None}

# By status: its description, and the code and message of an example.
ERROR_EXAMPLES = {
    400: (
        "The body is not JSON, or (invalid_http) the request asks to switch protocols",
        "invalid_json",
        "the body is not valid JSON: EOF",
    ),
    401: ("No key, or one that is not known", "no_key", "send a key: Authorization: Bearer KEY"),
    403: (
        "A key that may only read",
        "read_only",
        "this key may read; for changes and administration another one is needed",
    ),
    408: ("The body came too slowly", "too_slow", "the body of the request did not arrive in time"),
    409: (
        "The service keeps no live changes, or (not_recallable) training learnt nothing about an item of a PUT",
        "no_state",
        "this service keeps no live changes; start it with --state DIR",
    ),
    413: ("The body is too large", "too_large", "the body is larger than 1048576 bytes, got 2000000"),
    415: ("Not sent as JSON", "unsupported_media_type", "send Content-Type: application/json, got none"),
    422: (
        "A field is wrong",
        "invalid_request",
        "user_id: must be a string, got 7; ids are strings, even if they look like numbers",
    ),
    429: (
        "The service is full; Retry-After says when to try again",
        "too_many_requests",
        "too many requests are being processed; try again",
    ),
    500: ("A defect of the service", "internal", "internal error; see the log"),
    503: (
        "Try again: no bundle is loaded yet, the service stops (stopping), was late (timeout), or, where it is asked "
        "for a change, could not keep it (not_written)",
        "not_ready",
        "no bundle is loaded yet",
    ),
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route for these error statuses, with examples."""
    answers: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        description, code, message = ERROR_EXAMPLES[status]
        example = {"code": code, "message": message, "field": "user_id" if status == 422 else None}
        content = {"application/json": {"example": {"error": example}}}
        answers[status] = {"model": ErrorResponse, "description": description, "content": content}
    return answers


def document(app: FastAPI, bundle: Bundle | None, settings: Settings) -> dict[str, Any]:
    """Builds the document; with a bundle it lists the bundle's features and shows ids that exist."""
    schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _restore_examples(schema, app)
    _name_upgrade(schema)
    _, definitions = models_json_schema(
        [(model, "validation") for model in BODIES.values()], ref_template=COMPONENTS + "{model}"
    )
    bodies = definitions["$defs"]
    for name in ("RecallRequest", "SimilarRequest"):
        bodies[name]["properties"]["k"] |= {"maximum": settings.max_k, "default": settings.default_k()}
    for name, field, most in (
        ("RecallBatchRequest", "queries", settings.max_batch),
        ("EmbedRequest", "queries", settings.max_batch),
        ("ItemsRequest", "items", settings.max_items),
        ("EventsRequest", "events", settings.max_events),
        ("ImpressionsRequest", "impressions", settings.max_events),
        ("Impression", "item_ids", settings.max_list),
    ):
        bodies[name]["properties"][field]["maxItems"] = most
    for asked in (RecallRequest, SimilarRequest, EmbedQuery):
        for field in asked.limited:
            value = bodies[asked.__name__]["properties"][field]
            value.get("anyOf", [value])[0]["maxItems"] = settings.max_list
    bodies["RecallBatchRequest"]["properties"]["queries"]["description"] += (
        f"; their different filters may hold {settings.max_conditions} conditions together"
    )
    if bundle is not None:
        _name_features(bodies, ("RecallRequest", "EmbedQuery"), bundle.manifest.query_features, settings.max_list)
        described = [spec for spec in bundle.manifest.candidate_features if spec.kind != "id"]  # which is added
        _name_features(bodies, ("ItemRequest", "NamedItem"), described, None)
        _name_columns(bodies, bundle)
    schema["components"]["schemas"] |= bodies
    examples = _examples(bundle)
    for (path, method), model in BODIES.items():
        content = {"schema": {"$ref": f"{COMPONENTS}{model.__name__}"}}
        if model is RecallRequest:
            content["examples"] = examples
        schema["paths"][path][method]["requestBody"] = {"required": True, "content": {"application/json": content}}
    if settings.keys is not None:
        _ask_for_keys(schema)
    return schema


def _restore_examples(schema: dict[str, Any], app: FastAPI) -> None:
    """Puts the examples of answers back as they were declared: FastAPI drops their nulls, which the schemas require."""
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method, (status, answer) in product(route.methods or (), route.responses.items()):
                shown = schema["paths"][route.path_format][method.lower()]["responses"][str(status)]["content"]
                for media_type, content in answer["content"].items():
                    shown[media_type]["example"] = content["example"]


def _name_upgrade(schema: dict[str, Any]) -> None:
    """Tells of the only cause that status 400 has where there is no body."""
    for path, operations in schema["paths"].items():
        for method in operations.keys() - {taken for at, taken in BODIES if at == path}:
            answer = operations[method]["responses"][str(UPGRADE)]
            answer["description"] = "The request asks to switch protocols"
            # Whole: beside an answer of plain text FastAPI calls the errors plain text, too.
            shown = {"schema": {"$ref": f"{COMPONENTS}ErrorResponse"}, "example": json.loads(NO_UPGRADE)}
            answer["content"] = {"application/json": shown}


def _ask_for_keys(schema: dict[str, Any]) -> None:
    """Adds which routes need a key, and the errors without a valid one."""
    schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            if path not in OPEN:
                operation["security"] = [{"key": []}]
                for status in (401,) if reads(method.upper(), path) else (401, 403):
                    # FastAPI has already replaced models by references: do the same here.
                    response = errors(status)[status]
                    response["content"]["application/json"]["schema"] = {"$ref": f"{COMPONENTS}ErrorResponse"}
                    del response["model"]
                    operation["responses"][str(status)] = response


def _examples(bundle: Bundle | None) -> dict[str, Any]:
    """Working bodies for `POST /recall`."""
    examples: dict[str, Any] = {"popular": {"value": {"features": {}}}}
    if bundle is not None:
        item_ids = bundle.item_names[:3]
        examples["history"] = {"value": {"history": item_ids, "k": 10}}
        # No id of the bundle, which is personal data. Powers of ten: of millions of such ids few are looked up.
        nobody = next(name for power in count() if (name := f"user-{10**power}") not in bundle.query_rows)
        examples["user"] = {"value": {"user_id": nobody, "k": 10, "exclude": item_ids[:1]}}
    return examples


def _name_features(
    bodies: dict[str, Any], models: Sequence[str], specs: Sequence[FeatureSpec], most: int | None
) -> None:
    """Spells out the features in the schemas of these models."""
    features = {
        "type": "object",
        "properties": {spec.name: feature_schema(spec, most) for spec in specs},
        "additionalProperties": False,
    }
    for name in models:
        field = bodies[name]["properties"]["features"]
        if "anyOf" in field:
            field["anyOf"] = [features, {"type": "null"}]
        else:
            field |= features


def _name_columns(bodies: dict[str, Any], bundle: Bundle) -> None:
    """Spells out the item columns, the filters on each, and the dimension of a vector."""
    columns = kinds(bundle.attribute_schema)
    bodies["DiversityRequest"]["properties"]["column"]["enum"] = sorted(columns)
    for name in FORMS:
        del bodies[name]
    bodies |= condition_schemas(columns)
    for name in ("RecallRequest", "SimilarRequest"):
        bodies[name]["properties"]["filter"]["anyOf"] = [{"$ref": f"{COMPONENTS}Condition1"}, {"type": "null"}]
        bodies[name]["properties"]["attributes"]["items"]["enum"] = sorted(columns)
    for name in ("ItemRequest", "NamedItem"):
        bodies[name]["properties"]["attributes"] |= {
            "properties": {
                column: {"anyOf": [attribute_json_schema(dtype), {"type": "null"}]}
                for column, dtype in bundle.attribute_schema.items()
                if column != "item_id"
            },
            "additionalProperties": False,
        }
    vector, dimension = bodies["RecallRequest"]["properties"]["vector"]["anyOf"][0], bundle.manifest.dimension
    vector |= {"minItems": dimension, "maxItems": dimension}
    vector["items"] |= {"minimum": -GREATEST_NUMBER, "maximum": GREATEST_NUMBER}
