"""The OpenAPI document: examples for every route and error, and the features of the very bundle that is served.

In: the app, and the bundle once it is open. Out: the document, as `/openapi.json` gives it.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from serving.bundle import Bundle
from serving.features import GREATEST, GREATEST_FLOAT32, GREATEST_INT64, HISTORY_KINDS
from serving.manifest import FeatureSpec
from serving.schemas import DEFAULT_K, ErrorResponse, RecallRequest

ERROR_EXAMPLES: dict[int, tuple[str, dict[str, Any]]] = {
    400: (
        "The body is not JSON",
        {"code": "invalid_json", "message": "the body is not valid JSON: EOF", "field": None},
    ),
    405: ("Another method", {"code": "method_not_allowed", "message": "GET is not allowed here", "field": None}),
    413: (
        "The body is too large",
        {"code": "too_large", "message": "the body is larger than 1048576 bytes", "field": None},
    ),
    415: (
        "Not sent as JSON",
        {"code": "unsupported_media_type", "message": "send Content-Type: application/json", "field": None},
    ),
    422: (
        "A field is wrong",
        {
            "code": "invalid_request",
            "message": "user_id: must be a string, got 7; ids are strings, whatever they look like",
            "field": "user_id",
        },
    ),
    500: ("A defect of the service", {"code": "internal", "message": "internal error; see the log", "field": None}),
    503: ("No bundle is loaded yet", {"code": "not_ready", "message": "no bundle is loaded yet", "field": None}),
}

ANSWER_EXAMPLE = {
    "items": [{"id": "318", "score": 0.8125}, {"id": "64", "score": 0.75}],
    "model_version": "20250101-120000-1a2b3c4d",
    "source": "user",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route for these error statuses, with examples."""
    return {
        status: {
            "model": ErrorResponse,
            "description": ERROR_EXAMPLES[status][0],
            "content": {"application/json": {"example": {"error": ERROR_EXAMPLES[status][1]}}},
        }
        for status in statuses
    }


def document(app: FastAPI, bundle: Bundle | None, max_k: int) -> dict[str, Any]:
    """The OpenAPI document; with a bundle it names that bundle's features and shows ids that work."""
    schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    request = RecallRequest.model_json_schema()
    request["properties"]["k"] |= {"maximum": max_k, "default": min(DEFAULT_K, max_k)}
    examples: dict[str, Any] = {"popular": {"value": {"features": {}}}}
    if bundle is not None:
        features = {
            "type": "object",
            "properties": {spec.name: _feature_schema(spec) for spec in bundle.manifest.query_features},
            "additionalProperties": False,
        }
        request["properties"]["features"]["anyOf"] = [features, {"type": "null"}]
        item_ids = bundle.item_ids.head(3).to_list()
        examples["history"] = {"value": {"history": item_ids, "k": 10}}
        if len(bundle.query_ids):
            examples["user"] = {"value": {"user_id": bundle.query_ids[0], "k": 10, "exclude": item_ids[:1]}}
    schema["components"]["schemas"]["RecallRequest"] = request
    schema["paths"]["/recall"]["post"]["requestBody"] = {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/RecallRequest"}, "examples": examples}
        },
    }
    return schema


def _feature_schema(spec: FeatureSpec) -> dict[str, Any]:
    schemas: dict[str, dict[str, Any]] = {
        "string": {"type": "string"},
        "float32": {"type": "number", "minimum": -GREATEST_FLOAT32, "maximum": GREATEST_FLOAT32},
        "int64": {"type": "integer", "minimum": 0, "maximum": GREATEST.get(spec.kind, GREATEST_INT64)},
    }
    value = schemas[spec.dtype]
    if spec.length is not None:
        value = {"type": "array", "items": value}
        if spec.kind not in HISTORY_KINDS:
            value["maxItems"] = spec.length
    return {"anyOf": [value, {"type": "null"}], "description": f"{spec.kind}; null counts as missing"}
