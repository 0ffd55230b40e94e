"""Explains a pydantic error about a recipe so that its author can fix it: the key, the value, what is allowed."""

import difflib
import types
from collections.abc import Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel


def explain(detail: Mapping[str, Any], root: type[BaseModel], whole: str = "a recipe") -> str:
    """Turns one entry of `ValidationError.errors()` into one line that names the key; `whole` is what `root` is of."""
    models, path = _walk(root, list(detail["loc"]))
    key = ".".join(path)
    match detail["type"]:
        case "extra_forbidden":
            # The walk stops at the section that lacks the key.
            allowed = list(models[0].model_fields)
            where = ".".join(path[:-1]) or whole
            return f"{key}: no such key; {where} allows {', '.join(allowed)}{_nearest(path[-1], allowed)}"
        case "union_tag_invalid" | "union_tag_not_found":
            tag = _tag(models[0])
            tags = [value for model in models for value in _tags(model)]
            came = detail["ctx"].get("tag")
            came = "nothing" if came is None else repr(came)
            return f"{key}.{tag}: must be one of {', '.join(tags)}; got {came}{_nearest(came.strip(chr(39)), tags)}"
        case "value_error":
            message = str(detail["msg"]).removeprefix("Value error, ")
            return f"{key}: {message}" if key else message
        case "literal_error":
            allowed = detail["ctx"]["expected"].split("'")[1::2]
            came = detail["input"]
            return f"{key}: must be one of {', '.join(allowed)}; got {came!r}{_nearest(str(came), allowed)}"
        case _:
            return f"{key}: {detail['msg']}; got {detail['input']!r}"


def _nearest(came: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(came, allowed, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _walk(root: type[BaseModel], loc: list[Any]) -> tuple[list[type[BaseModel]], list[str]]:
    """Follows an error's location through the models.

    Returns:
        The models possible where the known path ends, and the path as the user wrote it: pydantic puts the tag of a
        union ("id", "numeric") into the location, a level that the recipe does not have.
    """
    models: list[type[BaseModel]] = [root]
    in_dict = False
    path: list[str] = []
    for part in loc:
        tagged = [model for model in models if part in _tags(model)]
        if len(models) > 1 and tagged and not in_dict:
            models = tagged
            continue
        if path and not in_dict and not isinstance(part, int) and _is_leaf(models, path[-1]):
            break  # pydantic names the member of a scalar union ("float", "literal['adaptive']")
        path.append(str(part))
        if in_dict:
            in_dict = False
        elif len(models) == 1 and part in models[0].model_fields:
            annotation = models[0].model_fields[str(part)].annotation
            models = _models(annotation) or models
            in_dict = _is_dict(annotation)
    return models, path


def _tag(model: type[BaseModel]) -> str:
    """The field that distinguishes the members of a union: `kind` for features, `name` for losses and samplers."""
    return "kind" if "kind" in model.model_fields else "name"


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    field = model.model_fields.get(_tag(model))
    return get_args(field.annotation) if field is not None else ()


def _is_leaf(models: list[type[BaseModel]], key: str) -> bool:
    """Whether `key` is a field of the only possible model, and holds no model itself."""
    field = models[0].model_fields.get(key) if len(models) == 1 else None
    return field is not None and not _models(field.annotation)


def _is_dict(annotation: Any) -> bool:
    return get_origin(annotation) is dict or any(get_origin(arg) is dict for arg in get_args(annotation))


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Every model that a field's annotation may hold."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _models(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [model for arg in get_args(annotation) for model in _models(arg)]
    if origin is dict:
        return _models(get_args(annotation)[1])
    if origin is tuple:
        return _models(get_args(annotation)[0])
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
