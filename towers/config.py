"""Every setting of data, model and training, read once from one TOML into frozen models.

In: a recipe file and `section.key=value` overrides. Out: a `Config`. A mistake is a `ConfigError` that names the key,
what came, what is allowed, and the nearest right name.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from towers.config_errors import explain
from towers.errors import ConfigError

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """One section of a recipe: frozen, and no key that it does not know."""

    # Strict: "3" is no number and true is no count.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Columns(Section):
    """Which column of the events holds what; None means: look for the usual names (see `pipelines.columns`)."""

    user: str | None = None
    item: str | None = None
    time: str | None = None
    type: str | None = None
    weight: str | None = None


class DataConfig(Section):
    """How `towers prepare` turns raw events into a data set, and how training uses it."""

    columns: Columns = Columns()
    event_types: tuple[str, ...] = Field((), description="keep only these event types; empty keeps all")
    min_weight: float | None = Field(None, description="keep only events of at least this weight (a rating, say)")
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = "auto"
    duplicates: Literal["keep", "first", "last"] = Field("first", description="which of a pair's events stays")
    min_user_events: Count = 1
    min_item_events: Count = 1
    split: Literal["auto", "global_time", "leave_last_out", "random", "given"] = "auto"
    valid_share: Share = 0.1
    test_share: Share = 0.1
    seed: int = Field(0, ge=0)
    refit: bool = Field(False, description="train again on train + validation, for the epochs validation chose")

    @model_validator(mode="after")
    def _shares_leave_something(self) -> "DataConfig":
        if self.valid_share + self.test_share >= 1:
            raise ValueError(f"valid_share + test_share is {self.valid_share + self.test_share:g}; must stay below 1")
        return self


class _Feature(Section):
    column: str | None = Field(None, description="the column it reads; by default the feature's own name")
    mask_share: Share = Field(0.0, description="share of examples that train as if the value were missing")


class IdFeature(_Feature):
    """One embedding row per id seen in training; an unknown id counts as missing."""

    kind: Literal["id"]
    min_count: Count = Field(1, description="ids with fewer training events get no row of their own")


class CategoricalFeature(_Feature):
    """One embedding row per value of a vocabulary, and hashed rows for values outside it."""

    kind: Literal["categorical"]
    max_values: Count = 100_000
    oov_buckets: Count = 1


class HashedFeature(_Feature):
    """Values hashed into a fixed number of embedding rows: no vocabulary, collisions instead."""

    kind: Literal["hashed"]
    buckets: Count = 10_000


class NumericFeature(_Feature):
    """A number, standardised by the mean and deviation of the data set; a missing one has a direction of its own."""

    kind: Literal["numeric"]
    log: bool = Field(False, description="take sign(x) log(1 + |x|) first")


class MultiFeature(_Feature):
    """Several values of one vocabulary, embeddings averaged."""

    kind: Literal["multi"]
    max_values: Count = 100_000
    max_length: Count = 16
    oov_buckets: Count = 1


class TextFeature(_Feature):
    """Lower-cased word tokens of a text, embeddings averaged."""

    kind: Literal["text"]
    max_values: Count = 50_000
    max_length: Count = 16
    oov_buckets: Count = 1_000


class HistoryFeature(_Feature):
    """The query's earlier items, newest last, embeddings pooled."""

    kind: Literal["history"]
    max_length: Count = 50
    pooling: Literal["mean", "sqrt"] = Field("mean", description="divide the sum by the count, or by its square root")
    share_item_table: bool = Field(True, description="pool the candidate tower's own item id embeddings")


class ClockFeature(_Feature):
    """Hour of the day or day of the week (UTC, Monday = 0) of the event; a request sends it as an integer."""

    kind: Literal["hour", "weekday"]


Feature = Annotated[
    IdFeature
    | CategoricalFeature
    | HashedFeature
    | NumericFeature
    | MultiFeature
    | TextFeature
    | HistoryFeature
    | ClockFeature,
    Field(discriminator="kind"),
]


class Features(Section):
    """Features of both towers by name; a side left out is derived from the data set's columns."""

    query: dict[str, Feature] | None = None
    candidate: dict[str, Feature] | None = None


class ModelConfig(Section):
    """The two towers: how features become a vector and two vectors a score."""

    dimension: int = Field(64, ge=1, le=4096)
    similarity: Literal["dot", "cosine"] = "cosine"
    temperature: Positive = Field(0.2, description="logits are similarity / temperature")
    temperature_trainable: bool = False
    combine: Literal["sum", "concat"] = Field("sum", description="sum feature vectors, or concatenate them into layers")
    query_layers: tuple[Count, ...] = Field((), description="hidden widths after combine = 'concat'")
    candidate_layers: tuple[Count, ...] = ()

    @model_validator(mode="after")
    def _layers_need_concat(self) -> "ModelConfig":
        if self.combine == "sum" and (self.query_layers or self.candidate_layers):
            raise ValueError("query_layers and candidate_layers need combine = 'concat'; with 'sum' leave them empty")
        return self


class LossConfig(Section):
    """The training objective."""

    name: Literal["sampled_softmax"] = "sampled_softmax"
    correction: float = Field(1.0, ge=0, le=1, description="strength c of the logQ correction: s - c log Q")
    remove_accidental_hits: bool = Field(True, description="a negative equal to the positive gets probability 0")


class SamplerConfig(Section):
    """Where negatives come from."""

    name: Literal["in_batch"] = "in_batch"


class OptimizerConfig(Section):
    """The optimizer: row-sparse on embedding tables, dense on the rest."""

    name: Literal["adam", "adagrad", "sgd"] = "adam"
    learning_rate: Positive = 0.002


class TrainConfig(Section):
    """The loop: epochs, batches, validation, early stop, checkpoints."""

    epochs: Count = 10
    batch_size: int = Field(2048, ge=2, description="each example is the others' negative")
    seed: int = Field(0, ge=0, lt=2**31)
    metric: str = Field("recall@20", pattern=r"^(recall|ndcg)@[1-9][0-9]*$", description="what validation maximises")
    patience: Count = Field(3, description="stop after so many validations without a better metric")
    validation_users: Count = Field(10_000, description="at most so many users, a seeded sample, in each validation")
    checkpoint_steps: Count = Field(2_000, description="a checkpoint each so many steps, and after each epoch")
    weighted: bool = Field(False, description="weigh each example by its event's weight")


class Config(Section):
    """One recipe."""

    data: DataConfig = DataConfig()
    features: Features = Features()
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    sampler: SamplerConfig = SamplerConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Reads a recipe.

    Args:
        path: a TOML file.
        overrides: ``section.key=value`` strings, values in TOML syntax (a bare word counts as a string).

    Raises:
        ConfigError: the file is missing or not TOML, or a key or value in it, or an override, is wrong.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for override in overrides:
        _apply_override(raw, override)
    return parse_config(raw, origin=str(path))


def parse_config(raw: Mapping[str, Any], origin: str = "recipe") -> Config:
    """Checks a nested mapping of settings; `origin` is named in the error.

    Raises:
        ConfigError: names every wrong key, what came, what is allowed and the nearest right name.
    """
    try:
        return Config.model_validate(_with_tuples(raw))
    except ValidationError as error:
        lines = [explain(detail, Config) for detail in error.errors()]
        raise ConfigError(f"{origin}: " + "; ".join(lines)) from None


def _with_tuples(raw: Any) -> Any:
    """The same settings with each TOML array as the tuple that a frozen model holds."""
    if isinstance(raw, Mapping):
        return {key: _with_tuples(value) for key, value in raw.items()}
    return tuple(_with_tuples(value) for value in raw) if isinstance(raw, list) else raw


def _apply_override(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts) or len(parts) < 2:
        raise ConfigError(f"--set {override!r}: expected section.key=value, for example train.epochs=5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    node = raw
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"--set {override!r}: {part!r} is a value, not a section")
    node[parts[-1]] = value
