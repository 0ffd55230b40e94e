"""JSON schemas of what a bundle's features and item columns accept, for the OpenAPI document.

A `format` says how wide a number is: without it the generated clients of some languages hold 32 bits.
"""

from collections.abc import Mapping
from typing import Any

from serving.bundle.manifest import FeatureSpec
from serving.bundle.request_features import GREATEST, GREATEST_FLOAT32, GREATEST_INT64, HISTORY_KINDS
from serving.search.condition_limits import GREATEST_DEPTH, GREATEST_NODES, GREATEST_VALUES
from serving.search.conditions import OPERATORS_OF, Kind

COMPONENTS = "#/components/schemas/"
SEVERAL = {"in", "not_in"}  # operators whose value is a list


def condition_schemas(columns: Mapping[str, Kind]) -> dict[str, Any]:
    """`Condition1` is a whole filter, `Condition2` is nested in one, and so on; each ends in a `Comparison`."""
    comparisons = [form for kind in dict.fromkeys(columns.values()) for form in _comparisons(kind, columns)]
    # Without columns there is nothing to compare.
    schemas: dict[str, Any] = {"Comparison": {"anyOf": comparisons} if comparisons else {"not": {}}}
    for depth in range(1, GREATEST_DEPTH + 1):
        forms = [{"$ref": f"{COMPONENTS}Comparison"}]
        if depth < GREATEST_DEPTH:
            inner = {"$ref": f"{COMPONENTS}Condition{depth + 1}"}
            several = {"type": "array", "items": inner, "minItems": 1, "maxItems": GREATEST_NODES - 1}
            forms += [_object({"and": several}), _object({"or": several}), _object({"not": inner})]
        schemas[f"Condition{depth}"] = {"anyOf": forms}
    return schemas


def _comparisons(kind: Kind, columns: Mapping[str, Kind]) -> list[dict[str, Any]]:
    """The comparisons for columns of one kind: with a list of values, and with one value."""
    value = {"type": "number", "format": "double"} if kind == "number" else {"type": "string"}
    several = {"type": "array", "items": value, "maxItems": GREATEST_VALUES}
    names = [name for name, each in columns.items() if each == kind]
    forms = []
    for asked, what in ((SEVERAL, several), (set(OPERATORS_OF[kind]) - SEVERAL, value)):
        if operators := [name for name in OPERATORS_OF[kind] if name in asked]:
            forms.append(_object({"column": {"enum": names}, "op": {"enum": operators}, "value": what}))
    return forms


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def feature_schema(spec: FeatureSpec, most: int | None) -> dict[str, Any]:
    """What a request may send for a feature; a list of strings holds at most `most`, where that is given."""
    schemas: dict[str, dict[str, Any]] = {
        "string": {"type": "string"},
        "float32": {"type": "number", "minimum": -GREATEST_FLOAT32, "maximum": GREATEST_FLOAT32},
        "int64": {
            "type": "integer",
            "format": "int64",
            "minimum": 0,
            "maximum": GREATEST.get(spec.kind, GREATEST_INT64),
        },
    }
    value = schemas[spec.dtype]
    missing: list[dict[str, Any]] = [{"type": "null"}]
    if spec.length is not None:
        limits = [None if spec.kind in HISTORY_KINDS else spec.length, None if spec.kind == "vector" else most]
        value = {"type": "array", "items": value}
        if limits := [each for each in limits if each is not None]:
            value["maxItems"] = min(limits)
        if spec.kind == "vector":
            value["minItems"] = spec.length
            # With `items`, without which openapi-python-client leaves the whole route out.
            missing.append({"type": "array", "items": schemas[spec.dtype], "maxItems": 0})
    values, meaning = [value, *missing], spec.kind
    if spec.events:
        meaning = f"{spec.kind} of events of the type {' or '.join(map(repr, spec.events))}"
    if spec.kind in GREATEST:
        values.insert(1, {"type": "string", "format": "date-time"})
        meaning = f"{spec.kind} in the time zone {spec.time_zone or 'UTC'}, or a time, which is read there"
    return {"anyOf": values, "description": f"{meaning}; null counts as missing"}
