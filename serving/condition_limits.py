"""What a filter on item attributes may be made of in JSON, before its columns are known: sizes, operators, values.

In: what JSON holds. Out: the same, or a Pydantic error whose text says what is allowed.
"""

import re
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args

from pydantic_core import PydanticCustomError

Operator = Literal["eq", "in", "not_in", "lt", "lte", "gt", "gte", "has"]

OPERATORS: tuple[str, ...] = get_args(Operator)
GREATEST_DEPTH = 8
GREATEST_NODES = 64
GREATEST_VALUES = 1_000


def refused(rule: str) -> PydanticCustomError:
    """The error of a condition that breaks a rule; the rule reads on after "filter: "."""
    # No field of the text is a placeholder: braces in it would be taken for one.
    return PydanticCustomError("filter", "{rule}", {"rule": rule})


def check_size(given: dict[str, Any]) -> None:
    """Refuses a condition that is too deep or made of too many."""
    level, nodes = [given], 0
    for _ in range(GREATEST_DEPTH):
        nodes += len(level)
        level = [each for condition in level for each in _inside(condition)]
        if nodes + len(level) > GREATEST_NODES:
            raise refused(f"must hold at most {GREATEST_NODES} conditions")
    if level:
        raise refused(f"must be at most {GREATEST_DEPTH} conditions deep")


def _inside(condition: Any) -> Iterator[Any]:
    if isinstance(condition, dict):
        for key in ("and", "or"):
            yield from condition[key] if isinstance(condition.get(key), list) else ()
        if "not" in condition:
            yield condition["not"]


def checked_conditions(given: Any) -> Any:
    """What `and` and `or` take."""
    if not isinstance(given, list) or not given:
        raise refused("must be a list of at least one condition")
    return given


def checked_operator(given: Any) -> Any:
    """An operator by name."""
    if given not in OPERATORS:
        raise refused(f"must be one of {', '.join(OPERATORS)}")
    return given


def checked_value(given: Any) -> Any:
    """A value, or several: strings and finite numbers."""
    if isinstance(given, list):
        if len(given) > GREATEST_VALUES:
            raise refused(f"must hold at most {GREATEST_VALUES:,} values, not {len(given):,}")
        if not all(_is_single(each) for each in given):
            raise refused("must hold strings or finite numbers only")
    elif not _is_single(given):
        raise refused("must be a string, a finite number, or a list of them")
    return given


def _is_single(given: Any) -> bool:
    if isinstance(given, str):
        # A lone surrogate is no text: nothing can be equal to it, and Polars would fail on it.
        return given.isascii() or not re.search("[\ud800-\udfff]", given)
    # Also refuses whole numbers that no float64 holds.
    return isinstance(given, int | float) and not isinstance(given, bool) and abs(given) <= sys.float_info.max
