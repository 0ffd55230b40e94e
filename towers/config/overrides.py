"""`--set section.key=value`: changes one setting of a recipe from the command line.

The recipe, as TOML gives it, is changed in place and not checked yet.
"""

import tomllib
from collections.abc import Iterable
from typing import Any

from towers.config.feature_sides import DERIVE, SIDES
from towers.errors import ConfigError

WHOLE = ("loss", "sampler", "contrast", "distillation")
DEFAULT_NAMES = {"loss": "sampled_softmax", "sampler": "in_batch"}
NAMES = ("loss.name", "sampler.name")
TABLES = [["data", "lists"], *(["features", side] for side in SIDES)]  # whose keys are of the data


def ordered(overrides: Iterable[str]) -> list[str]:
    """Puts the names of loss and sampler first, because another one clears the options of the one before; but not
    before the removal of their section."""
    found: list[str] = []
    for override in overrides:
        key = override.partition("=")[0].strip()
        place = len(found)
        if key in NAMES:
            before = {*NAMES, *(f"{name}=" for name in NAMES), f"{key.partition('.')[0]}="}
            place = max((n + 1 for n, each in enumerate(found) if _head(each) in before), default=0)
        found.insert(place, override)
    return found


def _head(override: str) -> str:
    """The key, with ``=`` if it is removed."""
    key, _, value = (part.strip() for part in override.partition("="))
    return key if value else f"{key}="


def apply_override(raw: dict[str, Any], override: str) -> list[str] | None:
    """Changes `raw` in place.

    An empty value removes a key, a feature, or a section of `WHOLE` or ``features.SIDE``. A feature of a
    side that the recipe does not hold changes the derived side (`Features`); the other derived features stay.

    Args:
        raw: the sections of a recipe.
        override: ``section.key=value``, the value in TOML syntax; a bare word is a string.

    Returns:
        The parts of the key if it was to be removed and is not there: it may be misspelt.

    Raises:
        ConfigError: the override has another form, or removes what cannot be removed.
    """
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if len(parts) == 1 and parts[0] in WHOLE and equals and not text.strip():
        raw.pop(parts[0], None)
        return None
    if not equals or not all(parts) or (len(parts) < 2 and parts != ["task"]):
        raise ConfigError(f"--set {override!r}: expected section.key=value, for example train.epochs=5")
    try:
        value, *more = tomllib.loads(f"value = {text}").values()
    except tomllib.TOMLDecodeError:
        value, more = text.strip(), []
    if more:
        raise ConfigError(f"--set {override!r}: expected one value; give each key a --set of its own")
    node = raw
    for depth, part in enumerate(parts[:-1]):
        derived = parts[:depth] == ["features"] and part in SIDES
        node = node.setdefault(part, {DERIVE: True} if derived else {})
        if not isinstance(node, dict):
            raise ConfigError(f"--set {override!r}: {part!r} is a value, not a section")
    if key.strip() in NAMES and value != node.get("name", DEFAULT_NAMES[parts[0]]):
        node.clear()
    if text.strip():
        node[parts[-1]] = value
    elif _is_derived(raw, parts):
        _leave_out(node, parts, override)
    elif parts[-1] in node:
        del node[parts[-1]]
    elif parts[:-1] in TABLES:
        table, there = ".".join(parts[:-1]), ", ".join(key for key in node if key != DERIVE) or "nothing"
        text = f"; an empty text needs its quotes: --set '{key}=\"\"'" if table == "data.lists" else ""
        raise ConfigError(f"--set {override!r}: there is no such key to take out; {table} holds {there}{text}")
    else:
        return parts
    return None


def _is_derived(raw: dict[str, Any], parts: list[str]) -> bool:
    """Whether `parts` name a feature, or a setting of one, on a derived side."""
    return parts[0] == "features" and len(parts) > 2 and raw["features"][parts[1]].get(DERIVE) is True


def _leave_out(node: dict[str, Any], parts: list[str], override: str) -> None:
    """Takes a setting out of the recipe, or marks a derived feature, which is not in the recipe, as left out."""
    if len(parts) > 3:
        if node.pop(parts[-1], None) is not None:
            return
        feature = ".".join(parts[:3])
        raise ConfigError(
            f"--set {override!r}: a derived feature has no such setting to take out; give a value, or leave the whole "
            f"feature out by --set {feature}="
        )
    node[parts[-1]] = False
