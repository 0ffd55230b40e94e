"""Checks a filter's JSON before its columns are known: sizes, operators, values.

A violation is a Pydantic error whose text says what is allowed.
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
    """The error of a condition that breaks a rule; the rule continues the text "filter: "."""
    # The rule is not the template itself, where braces would be placeholders.
    return PydanticCustomError("filter", "{rule}", {"rule": rule})


def check_size(given: dict[str, Any]) -> None:
    """Rejects a condition that is too deep or holds too many."""
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
    """Validates the operand of `and` and `or`."""
    if not isinstance(given, list) or not given:
        raise refused("must be a list of at least one condition")
    return given


def checked_operator(given: Any) -> Any:
    """Validates the name of an operator."""
    if given not in OPERATORS:
        raise refused(f"must be one of {', '.join(OPERATORS)}")
    return given


def checked_value(given: Any) -> Any:
    """Validates one value or a list of them: strings and finite numbers."""
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
        # A lone surrogate is not valid text: nothing can equal it, and Polars fails on it.
        return given.isascii() or not re.search("[\ud800-\udfff]", given)
    # Also rejects integers beyond float64.
    return isinstance(given, int | float) and not isinstance(given, bool) and abs(given) <= sys.float_info.max
