"""Defines the search space of `towers tune`: families of models, their recipes, and what a recipe fixes of them.

A point of a family becomes the sections of a recipe. The settings that the user's recipe fixes are in every trial, and
only the rest is searched.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipelines.tuning.settings import GIVEN, USERS, Value, Values, settings
from pipelines.tuning.starts import Point, starts
from pipelines.tuning.traits import Raw, Traits, fixes_rate
from towers.config.features import WINDOW
from towers.config.recipe import Config, parse_config
from towers.errors import ConfigError

WIDE = 5  # a first step goes over a fifth of a setting's values
ADAGRAD = 250.0  # its rate in one of Adam: 0.5 for the 0.002 that starts have; weights decay by their product
USER_BATCH = 256  # a few thousand users are few steps an epoch
ONE_CHOICE = ("features", "loss", "sampler", "contrast")  # sections fixed as a whole


@dataclass(frozen=True)
class Family:
    """Models with one kind of user vector.

    Attributes:
        name: "users", "ids", "graph", "history", "sequence" or "given".
        settings: what is searched, each with its values in order; the most important setting first.
        starts: points to begin with; they name settings that are not searched, too.
    """

    name: str
    settings: Mapping[str, Values]
    starts: tuple[Point, ...]

    def places(self, point: Point) -> dict[str, int]:
        """Returns the place of each of a point's values."""
        return {name: values.index(point[name]) for name, values in self.settings.items()}

    def point(self, places: Mapping[str, int]) -> Point:
        """Returns the point at these places."""
        return {**self.starts[0], **{name: values[places[name]] for name, values in self.settings.items()}}

    def steps(self, best: Point, last: tuple[str, int], tries: Mapping[str, int]) -> Iterator[tuple[str, int, Point]]:
        """Yields the points one step from the best: a setting, by how many values it moves, and the point.

        First `last`, the step that led to the best, if one did; then the settings in turn, in wide steps up and down,
        later in small ones. `tries` counts the trials that moved a setting.
        """

        def moves(name: str, size: int) -> list[int]:
            if name != "dimension":
                return [size, -size]
            # The user named each, and none is nearer than another.
            return [place - self.settings[name].index(best[name]) for place in range(len(self.settings[name]))]

        def turn(name: str) -> int:
            at_a_bound = best[name] in (self.settings[name][0], self.settings[name][-1])
            in_a_turn = len(self.settings[name]) - 1 if name == "dimension" else 1 if at_a_bound else 2
            return tries.get(name, 0) // max(1, in_a_turn)

        order = sorted(self.settings, key=turn)
        sizes = [(name, 1 if turn(name) else max(1, len(self.settings[name]) // WIDE)) for name in order]
        small = [(name, 1) for name in order]
        around = ((name, by) for name, size in sizes + small for by in moves(name, size))
        for name, by in (last, *around):
            if by:
                values = self.settings[name]
                yield name, by, {**best, name: values[min(len(values) - 1, max(0, values.index(best[name]) + by))]}


def families(traits: Traits, dimensions: Values, without: Collection[str] = ()) -> list[Family]:
    """Returns the families that fit the data, the cheapest first; see `starts` for `without`."""
    whole, ordered = [USERS] if traits.whole_users else [], ["sequence"] if traits.timed else []
    return [
        Family(name, {"dimension": dimensions} | settings(name, traits), starts(name, traits, dimensions[0], without))
        for name in (*whole, "ids", "graph", "history", *ordered)
    ]


def canonical(raw: Raw) -> str:
    """Formats settings as text; equal settings give equal text."""
    return json.dumps(raw, sort_keys=True)


def sections(family: str, point: Point, traits: Traits) -> Raw:
    """Returns the recipe of a point: features, model, loss, sampler, optimizer, train."""

    def given(*names: str) -> Raw:
        return {name: point[name] for name in names if name in point}

    raw: Raw = {
        "features": _features(family, point, traits),
        "model": {"similarity": "cosine", "norm_exponent": "validation", **given("dimension", "temperature")},
        "loss": {"name": point["loss"]},
        "optimizer": {"name": "adam", **given("learning_rate", "weight_decay", "average")},
        "train": given("batch_size", "balance", "recency"),
    }
    if family == USERS:
        raw["loss"] = {"name": "full_softmax", "per_user": True}
        # A user's row is updated once an epoch, too seldom for Adam's momentum.
        rate, decay = (float(point[name]) for name in ("learning_rate", "weight_decay"))
        raw["optimizer"] |= {"name": "adagrad", "learning_rate": ADAGRAD * rate, "weight_decay": decay / ADAGRAD}
        raw["train"]["batch_size"] = USER_BATCH
    raw["model"] |= {"query_dropout": point["dropout"], "prior": "validation"}
    if raw["loss"]["name"] != "full_softmax":
        raw["loss"] |= given("correction") | (given("known_positives") if point["known_positives"] else {})
        drawn = {"name": "uniform", "negatives": point["negatives"]}
        mixed = {"name": "mixed", "parts": [{"name": "in_batch"}, drawn]}
        raw["sampler"] = mixed if point["negatives"] else {"name": "in_batch"}
    if point.get("contrast"):
        raw["contrast"] = {"weight": point["contrast"], "window": _window(traits)}
    return raw


def _window(traits: Traits) -> int | str:
    return WINDOW if traits.timed else "list"


def _features(family: str, point: Point, traits: Traits) -> Raw:
    query: Raw = {}
    candidate: Raw = {"item_id": {"kind": "id"}}
    window = _window(traits)
    if point.get("item_rows", "random") != "random":
        candidate["item_id"] |= {"start": point["item_rows"], "start_window": window}
    if point.get("user_id", "yes") != "no":
        query["user_id"] = {"kind": "id", **({"mask_share": 0.5} if point.get("user_id") == "masked" else {})}
    if point.get("neighbours"):
        query["taken"] = {"kind": "neighbours", "window": "all", "weight": point["neighbours"]}
        if "neighbours_recency" in point:
            query["taken"]["recency"] = point["neighbours_recency"]
        if point.get("cooccurrence"):
            query["taken"] |= {"cooccurrence": point["cooccurrence"], "cooccurrence_window": window}
        candidate["takers"] = {"kind": "neighbours", "weight": point["neighbours"]}
    if family == "history":
        names = ("pooling", "max_length", "share_item_table")
        query["history"] = {"kind": "history", **{name: point[name] for name in names if name in point}}
    if family == "sequence":
        query["history"] = {"kind": "sequence", "max_length": point["max_length"], "blocks": point["blocks"]}
        query["history"] |= {"dropout": point["sequence_dropout"], "time_gaps": point.get("time_gaps", False)}
        if point["pooled"]:
            query["pooled"] = {"kind": "history", "max_length": point["max_length"]}
    if point.get("cooccurrence"):
        candidate["companions"] = {"kind": "cooccurrence", "weight": point["cooccurrence"], "window": window}
    if point.get("attributes"):
        # If a column has the name of a feature above, that feature wins.
        query, candidate = {**traits.query, **query}, {**traits.candidate, **candidate}
    return {"query": query, "candidate": candidate}


class FixedSettings:
    """The settings fixed by the user's recipe.

    Args:
        config: the recipe; None fixes nothing.

    Raises:
        ConfigError: tune cannot search its task or its epochs, or it has teachers.
    """

    def __init__(self, config: Config | None) -> None:
        self.config = config or Config()
        if self.config.task != "retrieval":
            raise ConfigError(f"task: tune searches recipes of task = 'retrieval'; got {self.config.task!r}")
        if not self.config.train.choose_epoch:
            raise ConfigError("train.choose_epoch: tune finds the epochs by validation; leave it out")
        for name in ("models", "ease"):
            if getattr(self.config.distillation, name):
                remedy = "add it to the recipe that it writes"
                raise ConfigError(f"distillation.{name}: tune searches without teachers; {remedy}")
        if self.config.optimizer.schedule != "constant" and "epochs" not in self.config.train.model_fields_set:
            raise ConfigError("optimizer.schedule: it falls over all epochs; fix train.epochs, too, or leave it out")
        self.raw: Raw = {} if config is None else config.model_dump(mode="json", exclude_unset=True, exclude_none=True)

    def families(self, found: Sequence[Family], traits: Traits) -> list[Family]:
        """Returns the families without the fixed settings; a recipe with its own features leaves a single family."""
        fitting = [each for each in found if not self.config.loss.of_users or each.name == USERS]
        if "features" in self.raw:
            every = (start for family in fitting for start in family.starts)
            own = starts(GIVEN, traits, fitting[0].starts[0]["dimension"])
            searched = {name: values for name, values in fitting[0].settings.items() if name in own[0]}
            fitting = [Family(GIVEN, searched, (*own, *every))]
        free, reasons = list[Family](), list[ConfigError]()
        for each in fitting:
            try:
                free.append(self._free(each, traits))
            except ConfigError as error:
                reasons.append(error)
        if not free:
            raise reasons[0]
        if not any(family.settings for family in free):
            raise ConfigError("--config fixes every setting that tune searches; leave some of them out")
        return free

    def sections(self, family: str, point: Point, traits: Traits) -> Raw:
        """Returns a point's sections with the fixed settings applied."""
        loss = self.config.loss
        if loss.of_users or family == GIVEN:
            family = USERS if loss.of_users and not fixes_rate(self.config) else "ids"
        raw = sections(family, point, traits)
        # An event's weight is its label, and weighs nothing; of whole users none is early or late.
        useless = ("balance", "recency") if loss.graded else ("recency",) if loss.of_users else ()
        raw["train"] = {name: value for name, value in raw["train"].items() if name not in useless}
        for name, section in self.raw.items():
            whole = name in ONE_CHOICE or not isinstance(section, Mapping)
            raw[name] = section if whole else raw.get(name, {}) | section
        if not loss.samples:
            raw.pop("sampler", None)
        if not loss.contrasts:
            raw.pop("contrast", None)
        if loss.own_scale:
            raw["model"].pop("temperature")
        return raw

    def _free(self, family: Family, traits: Traits) -> Family:
        """Returns the family with the settings that make a difference, those of a hop with one, and their values that
        the fixed settings allow; of the others its starts take the nearest allowed one."""

        def refusal(point: Point) -> str:
            try:
                parse_config(self.sections(family.name, point, traits))
            except ConfigError as error:
                return str(error)
            return ""

        base = {**family.starts[0], **({"neighbours": 1.0} if "neighbours" in family.settings else {})}
        if reason := refusal(base):  # most often one value is at fault
            others = ({**base, name: each} for name, values in family.settings.items() for each in values)
            changed = next((point for point in others if not refusal(point)), None)
            if changed is None:
                raise ConfigError(f"no start of tune fits --config: {reason}")
            base = changed
        free: dict[str, Values] = {}
        points = family.starts
        for name, values in family.settings.items():
            allowed = tuple(each for each in values if not refusal({**base, name: each}))
            texts = {canonical(self.sections(family.name, {**base, name: each}, traits)) for each in allowed}
            points = tuple({**each, name: _nearest(each[name], values, allowed)} for each in points)
            if name not in self.raw and len(texts) > 1:  # "loss" may be a section as well
                free[name] = allowed
        return replace(family, settings=free, starts=points)


def _nearest(value: Value, values: Values, allowed: Values) -> Value:
    return min(allowed, key=lambda each: abs(values.index(each) - values.index(value)))
