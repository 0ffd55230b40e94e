"""The days of a loop: the one of today, the one whose model answers, and the old ones, which are removed."""

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from pipelines.console import amount, say
from pipelines.errors import DataError
from pipelines.launch import gate
from pipelines.launch.daily.day import PLAN, Day
from pipelines.launch.daily.settings import Loop
from pipelines.training.train import SUMMARY
from serving.bundle.manifest import read_manifest
from serving.errors import BundleError
from serving.files.staging import staged

KEY_DIGITS = 8


def today(loop: Loop) -> Day:
    """Finds the day of these inputs and this recipe, or begins it."""
    key, days = loop.key(), all_days(loop)
    begun = next((day for day in days if day.name.endswith(f"-{key[:KEY_DIGITS]}")), None)
    if begun is not None and begun.has_run:
        return begun
    before = _start(loop, [day for day in days if day is not begun]) if loop.settings.warm else None
    if begun is not None:
        day = replace(begun, warm_from=before)
    else:
        now = datetime.now(UTC)
        day = Day(loop, f"{now:%Y-%m-%d}-{key[:KEY_DIGITS]}", now.isoformat(), before)
    day.folder.mkdir(parents=True, exist_ok=True)
    with staged(day.folder / PLAN, overwrite=True) as half:
        plan = {"started": day.started, "warm_from": day.warm_from, "key": key}
        half.write_text(json.dumps(plan) + "\n", encoding="utf-8")
    return day


def _start(loop: Loop, days: list[Day]) -> str | None:
    """The name of the day to start from; warns if its run is gone."""
    # Not the newest: after a rollback its model is a bad start, too. That may come before an interrupted day goes on.
    name = day_that_answers(loop, days)
    if name is not None and not (run := loop.settings.work / name / "run" / SUMMARY).is_file():
        say(f"warning: {run}: missing, so the model of today is trained from scratch")
        return None
    return name


def all_days(loop: Loop) -> list[Day]:
    """The days of a loop, in the order in which they began.

    Raises:
        DataError: the plan of one cannot be read.
    """
    found = []
    for file in loop.settings.work.glob(f"*/{PLAN}"):
        try:
            plan = json.loads(file.read_text(encoding="utf-8"))
            found.append(Day(loop, file.parent.name, plan["started"], plan["warm_from"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file}: damaged ({error}); remove {file.parent}") from None
    return sorted(found, key=lambda day: day.started)


def day_that_answers(loop: Loop, days: list[Day]) -> str | None:
    """The name of the day whose model answers, from its own bundle or one with a renewed prior or with folded items."""
    if (active := loop.active) is None or active in {day.name for day in days}:
        return active
    # If that one cannot be read, it ends here what the gate would end after hours of training.
    model = gate.model_of(read_manifest(loop.settings.root / active))
    for day in days:
        with suppress(BundleError):  # one that cannot be read, of another release perhaps, is no reason to end this day
            if gate.model_of(read_manifest(day.bundle)) == model:
                return day.name
    return None


def remove_old(loop: Loop, day: Day) -> list[str]:
    """Removes all but the newest days; returns their names. What answers, or answered before, stays, and so does `day`.

    Days without a bundle, which failed or were refused, take nobody's place: there is nothing to roll back to.
    """
    kept, removed = {day.name}, []
    try:
        # An operator may have chosen another one in the store since this day began.
        loop.follow()
        days = all_days(loop)
        # The next one starts from it, also where a bundle of its model with another name answers.
        if start := day_that_answers(loop, days):
            kept.add(start)
        published = [each for each in days if each.bundle.is_dir()]
        kept |= {each.name for newest in (days, published) for each in newest[-loop.settings.keep :]}
        for each in days:
            # Asked before each removal, which takes long in a store: an operator may choose a bundle meanwhile.
            if each.name not in kept and each.name not in loop.chosen():
                each.remove()
                removed.append(each.name)
    except BundleError as error:
        say(f"warning: old days stay: {error}")
    if removed:
        say(f"removed {amount(len(removed), 'days')}: {', '.join(removed)}")
    return removed
