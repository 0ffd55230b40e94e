"""Filters as JSON Schema, narrowed to the item columns of one bundle: the document allows what the service does.

In: the kind of each column. Out: definitions for the document's components.
"""

from collections.abc import Mapping
from typing import Any

from serving.condition_limits import GREATEST_DEPTH, GREATEST_NODES, GREATEST_VALUES
from serving.conditions import OPERATORS_OF, Kind

COMPONENTS = "#/components/schemas/"
SEVERAL = {"in", "not_in"}  # operators whose value is a list
FORMS = ("And", "Or", "Not")  # of the models; here each depth has its own


def condition_schemas(columns: Mapping[str, Kind]) -> dict[str, Any]:
    """`Condition1` is a whole filter, `Condition2` stands inside one, and so on; `Comparison` is at the end of each."""
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
    """What may be asked of the columns of one kind: with several values, and with one."""
    value = {"type": "number" if kind == "number" else "string"}
    several = {"type": "array", "items": value, "maxItems": GREATEST_VALUES}
    names = [name for name, each in columns.items() if each == kind]
    forms = []
    for asked, what in ((SEVERAL, several), (set(OPERATORS_OF[kind]) - SEVERAL, value)):
        if operators := [name for name in OPERATORS_OF[kind] if name in asked]:
            forms.append(_object({"column": {"enum": names}, "op": {"enum": operators}, "value": what}))
    return forms


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
