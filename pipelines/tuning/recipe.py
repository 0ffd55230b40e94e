"""Writes the recipe that a search ends with: its epochs, its TOML text, and comments on how it was found.

Epochs are chosen to fit the seconds that the recipe may train.
"""

import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from pipelines.console import amount
from pipelines.training.check import check_recipe
from pipelines.tuning.finals import Finalist, Finals
from pipelines.tuning.search import MOST_USERS, PATIENCE
from pipelines.tuning.traits import Raw
from towers.config.recipe import parse_config

WIDTH = 118  # of a comment line
MORE = 1.5  # a recipe that chooses its epoch may train this many times the finalist's best epoch
ORDER = ("data", "features", "model", "loss", "sampler", "optimizer", "train")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def recipe(finals: Finals, finalist: Finalist) -> Raw:
    """Returns the sections of the recipe.

    If the final training includes the validation events and the search has found the best epoch, the recipe trains on
    train + validation at once, for that many epochs. Otherwise training chooses the epoch itself.
    """
    search, refit = finals.search, finals.growth > 1
    raw = finals.settings(finalist)
    at_once = finals.epochs_that_fit(finalist, chosen=False, refit=refit)
    chosen = finals.epochs_that_fit(finalist, chosen=True, refit=refit)
    best = finalist.best_epoch
    more = best if finalist.falling else max(best + PATIENCE, int(MORE * best))
    train: Raw = {"epochs": min(chosen, more), "patience": PATIENCE}
    if refit and not (finalist.rising and search.clock.timed and chosen > best):
        train = {"epochs": min(at_once, best), "choose_epoch": False}
        if raw["model"]["norm_exponent"] == "validation":
            raw["model"] = raw["model"] | {"norm_exponent": finalist.norm_exponent}
        if raw["model"].get("prior") == "validation":
            raw["model"] = raw["model"] | {"prior": finalist.prior or "off"}
    given = raw["train"].get("epochs", train["epochs"])
    own = {"metric": search.asked.metric, "seed": search.asked.seed}
    users = {"validation_users": search.validation_users} if search.validation_users < MOST_USERS else {}
    raw["train"] = users | raw["train"] | train | own | {"epochs": min(given, train["epochs"])}
    prepared = search.data.manifest.config.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    raw["data"] = {**prepared, **raw.get("data", {}), "refit": refit}
    resolved = check_recipe(parse_config(raw), search.data).features
    raw["features"] = resolved.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    return raw


def text(raw: Raw, comments: list[str]) -> str:
    """Formats a recipe as TOML: comments first, one feature per line."""
    lines = [f"# {line}" for each in comments for line in textwrap.wrap(each, WIDTH)]
    for name in sorted(raw, key=ORDER.index):
        sections = {name: raw[name]}
        if name == "features":
            sections = {f"features.{side}": raw[name][side] for side in ("query", "candidate")}
        for title, section in sections.items():
            lines += ["", f"[{title}]", *(f"{_key(key)} = {_value(each)}" for key, each in section.items())]
    return "\n".join(lines) + "\n"


def comments(finals: Finals, finalist: Finalist, raw: Raw, name: str) -> list[str]:
    """Describes how the recipe was found and how long it trains, one paragraph each."""
    search, run = finals.search, finalist.runs[0]
    tried = search.trials.all()
    epochs, refit = raw["train"]["epochs"], raw["data"]["refit"]
    chosen = raw["train"].get("choose_epoch", True)
    epoch_s = (finalist.seconds if chosen else 0.0) + (
        finalist.train_seconds * (finals.growth if refit else 1.0) if refit or not chosen else 0.0
    )
    trained = "at most" if chosen else "for"
    seeds = f", mean of {len(finalist.runs)} seeds" if len(finalist.runs) > 1 else ""
    pruned = sum(each.run.end == "pruned" for each in tried)
    return [
        f"Found by towers tune for {name} (data set {search.data.manifest.fingerprint[:12]}), on its validation events "
        f"alone: {search.asked.metric} {finalist.value:.4f} after {amount(finalist.best_epoch, 'epochs')}{seeds}.",
        f"{amount(len(tried), 'trials')}, {pruned} of them pruned, in {search.clock.used() / 60:.1f} minutes; this is "
        f"trial {finalist.tried.number} of family {finalist.tried.family!r}, which ran for "
        f"{amount(len(run.epochs), 'epochs')}.",
        f"It trains {trained} {amount(epochs, 'epochs')} of about {epoch_s:.1f} s, validation and a second training "
        f"included where there are any: about {epochs * epoch_s / 60:.1f} minutes on the machine of the search.",
    ]


def _key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
