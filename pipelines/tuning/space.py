"""Defines the search space of `towers tune`: families of models, their settings, and what a recipe fixes of them.

A point of a family becomes the sections of a recipe. The settings that the user's recipe fixes are in every trial, and
only the rest is searched.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipelines.tuning.starts import BATCH_SIZES, GIVEN, NEGATIVES, USERS, Point, Value, starts
from pipelines.tuning.traits import SMALL_CATALOGUE, Raw, Traits
from towers.config.features import WINDOW
from towers.config.recipe import Config
from towers.errors import ConfigError

Values = tuple[Value, ...]

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
        """Returns the place of each of a point's values, by the setting's name in the study."""
        return {f"{self.name}.{name}": values.index(point[name]) for name, values in self.settings.items()}

    def point(self, places: Mapping[str, int]) -> Point:
        """Returns the point at these places."""
        return {**self.starts[0], **{name: each[places[f"{self.name}.{name}"]] for name, each in self.settings.items()}}

    def steps(self, best: Point, last: tuple[str, int]) -> Iterator[tuple[str, int, Point]]:
        """Yields the points one step from the best: a setting, by how many values it moves, and the point.

        First `last`, the step that led to the best, if one did; then wide ones, then small ones.
        """
        wide = [(name, max(1, len(values) // WIDE)) for name, values in self.settings.items()]
        small = [(name, 1) for name in self.settings]
        for name, by in [last, *((name, sign * by) for name, by in wide + small for sign in (1, -1))]:
            if by and name in self.settings:
                values = self.settings[name]
                yield name, by, {**best, name: values[min(len(values) - 1, max(0, values.index(best[name]) + by))]}


def families(traits: Traits, dimensions: Values, without: Collection[str] = ()) -> list[Family]:
    """Returns the families that fit the data, the cheapest first; see `starts` for `without`."""
    whole, ordered = [USERS] if traits.whole_users else [], ["sequence"] if traits.timed else []
    return [
        Family(name, _settings(name, traits) | {"dimension": dimensions}, starts(name, traits, dimensions[0], without))
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


def _settings(family: str, traits: Traits) -> dict[str, Values]:
    own: dict[str, Values] = {}
    if family in ("graph", USERS):
        weights: Values = (0.25, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
        own["neighbours"] = (0.0, *weights) if family == USERS else weights
        if traits.timed:
            own["neighbours_recency"] = (1.0, 4.0, 16.0, 64.0, 256.0)
    if family in ("history", "sequence"):
        own["user_id"] = ("no", "masked", "yes")
    if family == "history":
        own |= {"pooling": ("mean", "sqrt", "attention"), "share_item_table": (True, False)}
        own["max_length"] = (10, 20, 50, 100)
    if family == "sequence":
        own |= {"pooled": (False, True), "sequence_dropout": (0.0, 0.1, 0.2, 0.3, 0.5), "blocks": (1, 2, 3)}
        own["max_length"] = (20, 50, 100)
        if traits.clock:
            own["time_gaps"] = (False, True)
    if traits.timed:
        own["recency"] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    if traits.few_pairs:
        own["item_rows"] = ("cooccurrence", "random")
    if traits.attributes:
        own["attributes"] = (False, True)
    # First what differs most between data sets: of temperature and rate all starts have about the same.
    counts: dict[str, Values] = {}
    if traits.timed or traits.few_pairs:
        counts = {"cooccurrence": (0.0, 1.0, 3.0, 6.0), **({} if family == USERS else {"contrast": (0.0, 0.1, 0.3)})}
    losses: Values = ("sampled_softmax", "bsl", *(("full_softmax",) if traits.items <= SMALL_CATALOGUE else ()))
    return {
        **counts,
        "correction": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        "temperature": (0.03, 0.042, 0.05, 0.06, 0.07, 0.085, 0.1, 0.12, 0.14, 0.17, 0.2, 0.24, 0.3, 0.4, 0.5),
        "learning_rate": (1e-4, 2e-4, 3e-4, 5e-4, 7e-4, 1e-3, 1.4e-3, 2e-3, 3e-3, 4e-3, 6e-3, 8e-3, 1.2e-2, 2e-2),
        "batch_size": BATCH_SIZES,
        **own,
        "loss": losses,
        "weight_decay": (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
        "dropout": (0.0, 0.1, 0.2, 0.3, 0.5),
        "negatives": NEGATIVES,
        "balance": (0.0, 0.25, 0.5, 0.75),
        "known_positives": (0, 100, 500),
        "average": (0.0, 0.99, 0.999),
    }


class FixedSettings:
    """The settings fixed by the user's recipe.

    Args:
        config: the recipe; None fixes nothing.

    Raises:
        ConfigError: tune cannot search its task, its epochs or its teachers.
    """

    def __init__(self, config: Config | None) -> None:
        self.config = config or Config()
        if self.config.task != "retrieval":
            raise ConfigError(f"task: tune searches recipes of task = 'retrieval'; got {self.config.task!r}")
        if not self.config.train.choose_epoch:
            raise ConfigError("train.choose_epoch: tune finds the epochs by validation; leave it out")
        if self.config.distillation.models:
            raise ConfigError("distillation.models: tune finds whether teachers help; leave it out, or set 0 for none")
        if self.config.distillation.ease:
            raise ConfigError("distillation.ease: tune searches without EASE; add it to the recipe that it writes")
        if self.config.optimizer.schedule != "constant" and "epochs" not in self.config.train.model_fields_set:
            raise ConfigError("optimizer.schedule: it falls over all epochs; fix train.epochs, too, or leave it out")
        self.raw: Raw = {} if config is None else config.model_dump(mode="json", exclude_unset=True, exclude_none=True)

    def families(self, found: Sequence[Family], traits: Traits) -> list[Family]:
        """Returns the families without the fixed settings; a recipe with its own features leaves a single family."""
        fitting = [each for each in found if not self.config.loss.of_users or each.name == USERS]
        free = [replace(each, settings=self._free(each, traits)) for each in fitting]
        if "features" in self.raw:
            own = starts(GIVEN, traits, free[0].starts[0]["dimension"])
            free = [Family(GIVEN, free[0].settings, own + tuple(start for family in free for start in family.starts))]
        if not any(family.settings for family in free):
            raise ConfigError("--config fixes every setting that tune searches; leave some of them out")
        return free

    def sections(self, family: str, point: Point, traits: Traits) -> Raw:
        """Returns a point's sections with the fixed settings applied."""
        loss = self.config.loss
        if loss.of_users or family == GIVEN:
            family = USERS if loss.of_users and "optimizer" not in self.raw else "ids"
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

    def _free(self, family: Family, traits: Traits) -> dict[str, Values]:
        """Returns the settings whose values make a difference, those of a hop with one."""
        hop = {"neighbours": 1.0} if "neighbours" in family.settings else {}

        def texts(name: str, values: Values) -> set[str]:
            start = {**family.starts[0], **hop}
            return {canonical(self.sections(family.name, {**start, name: each}, traits)) for each in values}

        searched = {name: values for name, values in family.settings.items() if name not in self.raw}  # "loss"
        if "sampler" in self.raw and "loss" in searched:
            searched["loss"] = tuple(each for each in searched["loss"] if each != "full_softmax")
        return {name: values for name, values in searched.items() if len(texts(name, values)) > 1}
