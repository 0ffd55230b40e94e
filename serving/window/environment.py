"""The templates of the window, and how they format numbers."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def environment() -> Environment:
    """The templates; what they are given is escaped."""
    made = Environment(
        loader=PackageLoader("serving.window"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["thousands"] = "{:,}".format
    made.filters["score"] = _score
    return made


def _score(score: float) -> str:
    """Four digits; large ones, as the counts of popular items are, in whole."""
    return f"{score:,.0f}" if abs(score) >= 999.5 else f"{score:.4g}"
