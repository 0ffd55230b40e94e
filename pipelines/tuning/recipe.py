"""Writes the recipe that a search ends with: its epochs, its TOML text, and comments on how it was found.

Epochs are chosen to fit the seconds that the recipe may train.
"""

import textwrap

import tomli_w

from pipelines.console import amount
from pipelines.training.check import check_recipe
from pipelines.tuning.finals import Finals
from pipelines.tuning.search import MOST_USERS, PATIENCE
from pipelines.tuning.study import Tried
from pipelines.tuning.traits import Raw, validation
from towers.config.recipe import Config, parse_config

WIDTH = 118  # of a comment line
FOUND_BY = "Found by towers tune"  # starts the first comment
MORE = 1.5  # a recipe that chooses its epoch may train this many times the best epoch of its final


def recipe(finals: Finals, final: Tried) -> Raw:
    """Returns the sections of the recipe.

    If the final training includes the validation events and the search has found the best epoch, the recipe trains on
    train + validation at once, for that many epochs. Otherwise training chooses the epoch itself.
    """
    search, refit, best = finals.search, finals.growth > 1, final.best_epoch
    raw = finals.sections(final)
    at_once, chosen = (finals.epochs_that_fit(final, validated=validated) for validated in (False, True))
    # With a falling rate the last epochs are the best, as long as it may fall.
    patience = raw["train"].get("patience", best if final.falling else PATIENCE)
    # One that diverged would do so again: same recipe, same seed.
    no_more = final.falling or final.run.end == "diverged"
    more = best if no_more else max(best + patience, int(MORE * best))
    train: Raw = {"epochs": min(chosen, more), "patience": patience}
    # More epochs than the search saw may be better; then training finds out.
    open_ended = final.rising and search.clock.timed and chosen > best
    # The user's own schedule falls over the epochs that the user fixed.
    falls = search.fixed.config.optimizer.schedule != "constant"
    if refit and not open_ended and not falls and not raw["train"].get("choose_epoch"):
        train = {"epochs": min(at_once, best), "choose_epoch": False}
        chosen_by = final.run.epochs[best - 1]
        if raw["model"]["norm_exponent"] == "validation":
            raw["model"]["norm_exponent"] = round(chosen_by.norm_exponent, 2)
        if raw["model"].get("prior") == "validation":
            raw["model"]["prior"] = chosen_by.prior or "off"
    given = raw["train"].get("epochs", train["epochs"])
    epochs = given if falls else min(given, train["epochs"])
    own = {"metric": search.asked.metric, "seed": search.asked.seed}
    users = {"validation_users": search.validation_users} if search.validation_users < MOST_USERS else {}
    raw["train"] = users | raw["train"] | train | own | {"epochs": epochs}
    prepared = search.data.manifest.config.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    raw["data"] = {**prepared, **raw.get("data", {}), "refit": refit}
    resolved = check_recipe(parse_config(raw), search.data).features
    raw["features"] = resolved.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    return raw


def text(raw: Raw, comments: list[str]) -> str:
    """Formats a recipe as TOML, comments first."""
    lines = [f"# {line}\n" for each in comments for line in textwrap.wrap(each, WIDTH)]
    return "".join(lines) + "\n" + tomli_w.dumps({name: raw[name] for name in Config.model_fields if name in raw})


def comments(finals: Finals, final: Tried, raw: Raw, name: str) -> list[str]:
    """Describes how the recipe was found and how long it trains, one paragraph each."""
    search, tried = finals.search, finals.search.tried()
    trial = tried[final.number]
    pruned = sum(each.run.end == "pruned" for each in tried)
    longer = f"; its final ran for {amount(len(final.run.epochs), 'epochs')}" if final.run != trial.run else ""
    epochs, chosen = raw["train"]["epochs"], raw["train"].get("choose_epoch", True)
    epoch_s = finals.epoch_s(final, validated=chosen)
    return [
        f"{FOUND_BY} for {name} (data set {search.data.manifest.fingerprint[:12]}), on its validation events "
        f"alone, {validation(search.data.manifest)}: {search.asked.metric} {final.value:.4f} after "
        f"{amount(final.best_epoch, 'epochs')}.",
        f"{amount(len(tried), 'trials')}, {pruned} of them pruned, in {search.clock.used() / 60:.1f} minutes; this is "
        f"trial {trial.number} of family {trial.family!r}, which ran for "
        f"{amount(len(trial.run.epochs), 'epochs')}{longer}.",
        f"It trains {'at most' if chosen else 'for'} {amount(epochs, 'epochs')} of about {epoch_s:.1f} s, with those "
        "of validation and a second training where there are any: about "
        f"{epochs * epoch_s / 60:.1f} minutes on the machine of the search.",
    ]
