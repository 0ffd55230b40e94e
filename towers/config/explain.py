"""Explains pydantic's errors about a recipe so that its author can fix it: the key, the value, what is allowed."""

import difflib
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

UNIONS = (Union, types.UnionType)
# Pydantic speaks of dictionaries, tuples and instances of its models here; a recipe has tables and lists.
OF_PYTHON = ("dict_type", "model_type", "model_attributes_type", "tuple_type")


def explain(errors: Iterable[Mapping[str, Any]], root: type[BaseModel], whole: str = "a recipe") -> str:
    """Turns `ValidationError.errors()` into one text that names each wrong key; `whole` is what `root` is of."""
    # Pydantic has an error for each member of a union; as texts about the whole union they are the same.
    return "; ".join(dict.fromkeys(filter(None, (_explained(each, root, whole) for each in errors))))


def _explained(detail: Mapping[str, Any], root: type[BaseModel], whole: str) -> str:
    path, found = _walk(root, detail["loc"])
    key, given = ".".join(path), detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            # The walk stops at the section that lacks the key.
            allowed = list(_models(found)[0].model_fields)
            where = ".".join(path[:-1]) or whole
            return f"{key}: no such key; {where} allows {', '.join(allowed)}{_nearest(path[-1], allowed)}"
        case "union_tag_invalid" | "union_tag_not_found":
            tag = _tag(_models(found)[0])
            tags = [value for model in _models(found) for value in _tags(model)]
            given = detail["ctx"].get("tag")
            given = "nothing" if given is None else repr(given)
            return f"{key}.{tag}: must be one of {', '.join(tags)}; got {given}{_nearest(given.strip(chr(39)), tags)}"
        case "value_error":
            message = str(detail["msg"]).removeprefix("Value error, ")
            return f"{key}: {message}" if key else message
        case "missing":
            return f"{key}: missing; must be {_told(_allowed(found))}"
        case kind if _is_union(found) or kind in OF_PYTHON:
            if isinstance(given, Mapping) and _is_union(found) and _models(found):
                return ""  # it is meant as the section, whose own errors say what is wrong in it
            words = [text for each in _members(found) for text in _literals(each) if isinstance(text, str)]
            return f"{key}: must be {_told(_allowed(found, given))}; got {given!r}{_nearest(str(given), words)}"
        case "literal_error":
            allowed = detail["ctx"]["expected"].split("'")[1::2]
            return f"{key}: must be one of {', '.join(allowed)}; got {given!r}{_nearest(str(given), allowed)}"
        case _:
            return f"{key}: {detail['msg']}; got {given!r}"


def _told(alternatives: Sequence[str]) -> str:
    *most, last = alternatives
    return f"{', '.join(most)} or {last}" if most else last


def _nearest(given: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(given, allowed, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _walk(root: type[BaseModel], loc: Sequence[Any]) -> tuple[list[str], Any]:
    """Follows an error's location through the models.

    Returns:
        The path as the user wrote it, and the type where it ends: pydantic puts the member of a union ("id", "float",
        "PriorConfig") into the location, a level that the recipe does not have.
    """
    path: list[str] = []
    found: Any = root
    for place, part in enumerate(loc):
        kind, _ = _bare(found)
        if _is_union(kind):
            sections = [model for model in _models(kind) if part in (model.__name__, *_tags(model))]
            # Where the location ends, the value is no such section, and the error is about the union.
            if not sections or place == len(loc) - 1:
                break
            found = sections[0]
            continue
        if part == "[key]":  # the error is about the name of the entry itself
            break
        path.append(str(part))
        if _models(kind) == [kind]:
            if part not in kind.model_fields:
                break
            field = kind.model_fields[part]
            found = Annotated[field.annotation, field]
        elif get_origin(kind) in (dict, tuple):
            found = get_args(kind)[get_origin(kind) is dict]
    return path, found


def _tag(model: type[BaseModel]) -> str:
    """The field that distinguishes the members of a union: `kind` for features, `name` for losses and samplers."""
    return "kind" if "kind" in model.model_fields else "name"


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get(_tag(model))
    return () if field is None else _literals(field.annotation)


def _bare(annotation: Any) -> tuple[Any, list[Any]]:
    """A type without its annotations and a None beside it, and what the annotations hold: bounds, say."""
    notes: list[Any] = []
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            for note in more:
                notes += note.metadata if isinstance(note, FieldInfo) else [note]
        elif get_origin(annotation) in UNIONS and len(some := _but_none(annotation)) == 1:
            (annotation,) = some
        else:
            return annotation, notes


def _is_union(annotation: Any) -> bool:
    return get_origin(_bare(annotation)[0]) in UNIONS


def _members(annotation: Any) -> list[Any]:
    """The members of a union but None, or the type itself."""
    kind, _ = _bare(annotation)
    return _but_none(kind) if _is_union(kind) else [kind]


def _but_none(union: Any) -> list[Any]:
    return [each for each in get_args(union) if each is not type(None)]


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The sections among the members of a type."""
    kinds = [_bare(each)[0] for each in _members(annotation)]
    return [each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel)]


def _literals(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _allowed(annotation: Any, given: Any = None) -> list[str]:
    """What a type allows, one text for each alternative; a list takes `given` as an example if it fits."""
    kind, notes = _bare(annotation)
    if _is_union(kind):
        alternatives = [text for each in _members(kind) for text in _allowed(each, given)]
        return ["a table"] if len(_models(kind)) > 1 else alternatives
    if _models(kind):
        return [f"a table of {', '.join(kind.model_fields)}"]
    match get_origin(kind) or kind:
        case origin if origin is Literal:
            return [str(each).lower() if isinstance(each, bool) else repr(each) for each in get_args(kind)]
        case origin if origin is tuple:
            item = get_args(kind)[0]
            return [f"a list, such as {[given]!r}" if _fits(item, given) else f"a list, each item {_allowed(item)[0]}"]
        case origin if origin is bool:
            return ["true", "false"]
        case origin if origin in (int, float):
            return [f"a {'whole ' if origin is int else ''}number{_bounds(notes)}"]
        case origin:
            return ["a table" if origin is dict else "text"]


def _fits(annotation: Any, given: Any) -> bool:
    try:
        TypeAdapter(annotation).validate_python(given, strict=True)
    except ValidationError:
        return False
    return not isinstance(given, Mapping)  # a table is too long for an example


def _bounds(notes: list[Any]) -> str:
    """The bounds of a number in words: " from 0 and below 1"."""
    words = {"ge": "from", "gt": "above", "le": "up to", "lt": "below"}
    told = [f"{word} {getattr(each, name)}" for name, word in words.items() for each in notes if hasattr(each, name)]
    text = f" {' and '.join(told)}".rstrip()
    return text.replace(" and up to ", " to ") if text.startswith(" from") else text
