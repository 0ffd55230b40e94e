"""Every setting of data, model and training, read once from one TOML into frozen models.

In: a recipe file and `section.key=value` overrides. Out: a `Config`. A mistake is a `ConfigError` that names the key,
what came, what is allowed, and the nearest right name.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from towers.combinations import refuse_combination
from towers.config_errors import explain
from towers.errors import ConfigError
from towers.feature_settings import Features
from towers.losses.settings import LossConfig, SampledSoftmax
from towers.overrides import DEFAULT_NAMES, apply_override
from towers.samplers.settings import InBatch, SamplerConfig
from towers.section import Count, NonNegative, Positive, Section, Share

DEFAULT_TEMPERATURE = 0.2


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
    lists: dict[str, str] = Field({}, description="separators by column of texts that hold lists; empty: it holds none")
    event_types: tuple[str, ...] = Field((), description="keep only these event types; empty keeps all")
    min_weight: float | None = Field(None, description="keep only events of at least this weight (a rating, say)")
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = "auto"
    duplicates: Literal["keep", "first", "last"] = Field("first", description="which of a pair's events stays")
    min_user_events: Count = 1
    min_item_events: Count = 1
    split: Literal["auto", "global_time", "leave_last_out", "random", "given"] = "auto"
    ordered: bool = Field(
        False, description="without times: the events of a user stand in the order in which they happened, file by file"
    )
    validation: Literal["auto", "last"] = Field(
        "auto",
        description="of a given split: the validation file, else a random share of train; 'last': the last valid_share "
        "of each user's events outside the test",
    )
    valid_share: Share = 0.1
    test_share: Share = 0.1
    seed: int = Field(0, ge=0)
    refit: bool | Literal["timed"] = Field(
        False,
        description="train again on train + validation, for the epochs validation chose; 'timed': only timed events",
    )

    @model_validator(mode="after")
    def _shares_leave_something(self) -> "DataConfig":
        if self.valid_share + self.test_share >= 1:
            raise ValueError(f"valid_share + test_share is {self.valid_share + self.test_share:g}; must stay below 1")
        return self


class PriorConfig(Section):
    """A prior of now whose weights are given; `towers.prior` has the formula."""

    days: Count | None = Field(
        None, description="counts of the last so many days are what is in fashion; left out, all of them"
    )
    users_alike: bool = Field(False, description="count an event 1 / n, n its user's events in the window")
    now: float = Field(
        0.0,
        description="weight of the log share in the window for a query without a history, in units of the standard "
        "deviation of the scores",
    )
    past: NonNegative = Field(0.0, description="weight of the log share in training, taken off")
    length: float = Field(0.0, description="what log(1 + length of the history) times this adds to now")


class ModelConfig(Section):
    """The two towers: how features become a vector and two vectors a score."""

    dimension: int = Field(64, ge=1, le=4096)
    similarity: Literal["dot", "cosine"] = "cosine"
    norm_exponent: Literal["validation"] | Annotated[float, Field(ge=-1, le=1)] | None = Field(
        None,
        description="item vectors are served as v / |v|^x: 1 is the cosine (the default with it), 0 the dot product "
        "(the default with that); 'validation' chooses x after each epoch",
    )
    prior: Literal["off", "validation"] | PriorConfig = Field(
        "off",
        description="how much recent popularity adds to the scores: 'validation' fits window, counting and weights on "
        "held-out events, where the data have times; a table of days, users_alike, now, past, length gives them",
    )
    table_dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="how embedding tables are stored; computing is float32"
    )
    temperature: Positive | None = Field(
        None, description="logits are similarity / temperature; 0.2 where the loss has no scale of its own"
    )
    temperature_trainable: bool = False
    combine: Literal["sum", "concat"] = Field("sum", description="sum feature vectors, or concatenate them into layers")
    query_layers: tuple[Count, ...] = Field((), description="hidden widths after combine = 'concat'")
    candidate_layers: tuple[Count, ...] = ()
    cross_layers: int = Field(0, ge=0, le=16, description="cross layers over the concatenated features of each side")
    cross_projection: Count | None = Field(None, description="rank of their matrices; by default they are square")
    query_dropout: Share = Field(0.0, description="share of the query vector's numbers that a training step drops")
    candidate_dropout: Share = 0.0

    @property
    def first_norm_exponent(self) -> float:
        """The exponent x of ``v / |v|^x``, or the one that the search for it starts from."""
        if isinstance(self.norm_exponent, float):
            return self.norm_exponent
        return 1.0 if self.similarity == "cosine" else 0.0

    @model_validator(mode="after")
    def _layers_need_concat(self) -> "ModelConfig":
        if self.combine == "sum" and (self.query_layers or self.candidate_layers):
            raise ValueError("query_layers and candidate_layers need combine = 'concat'; with 'sum' leave them empty")
        if self.combine == "sum" and self.cross_layers:
            raise ValueError("cross_layers cross concatenated features; set combine = 'concat', or cross_layers = 0")
        if self.cross_projection is not None and not self.cross_layers:
            raise ValueError("cross_projection is the rank of cross layers, and cross_layers = 0; leave it out")
        return self


class SimilarityConfig(Section):
    """What `task = "similarity"` calls similar: items of one class, or listed pairs."""

    column: str | None = Field(None, description="item column that holds the class, or several (a genre, a category)")
    pairs: str | None = Field(None, description="file of similar pairs, columns item_a and item_b")
    against: Literal["centres", "items"] = Field(
        "centres", description="an item's candidates: the classes' trained centres, or the other items of the batch"
    )
    holdout_share: Share = Field(0.2, description="share of the labelled items that only validation and report see")


class OptimizerConfig(Section):
    """The optimizer: row-sparse on embedding tables, dense on the rest."""

    name: Literal["adam", "adagrad", "sgd"] = "adam"
    learning_rate: Positive = 0.002
    weight_decay: float = Field(0.0, ge=0, description="each step takes rate * weight_decay of the rows that it moves")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="how the rate falls by the end")
    warmup_steps: int = Field(0, ge=0, description="steps in which the rate rises from zero")
    final_share: float = Field(0.0, ge=0, le=1, description="share of learning_rate that the schedule ends at")
    clip_norm: Positive | None = Field(None, description="longest gradient of all weights together")
    average: Share = Field(0.0, description="decay of the average of the weights that is validated and kept; 0 is off")


class TrainConfig(Section):
    """The loop: epochs, batches, validation, early stop, checkpoints."""

    epochs: Count = 10
    batch_size: int = Field(2048, ge=2, description="examples a step")
    seed: int = Field(0, ge=0, lt=2**31)
    metric: str = Field(
        "recall@20", pattern=r"^(recall|ndcg|precision)@[1-9][0-9]*$", description="what validation maximises"
    )
    patience: Count = Field(3, description="stop after so many validations without a better metric")
    choose_epoch: bool = Field(
        True, description="keep the epoch that validates best; false trains `epochs`, with data.refit at once on both"
    )
    validation_users: Count = Field(10_000, description="at most so many users, a seeded sample, in each validation")
    checkpoint_steps: Count = Field(2_000, description="a checkpoint each so many steps, and after each epoch")
    weighted: bool = Field(False, description="weigh each example by its event's weight")
    recency: float = Field(
        1.0, ge=1, le=1e6, description="how many times a user's first event their last one weighs as an example"
    )
    balance: float = Field(
        0.0,
        ge=0,
        le=1,
        description="weigh an example by n^-balance, n its user's training events: 0 counts events, 1 users",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the products of queries and candidates, and of hidden layers; losses are float32"
    )
    jit_compile: bool = Field(False, description="compile the train step by XLA")
    explode_factor: Annotated[float, Field(ge=2)] | Literal["off"] = Field(
        100.0, description="stop at a loss above so many times the first step's, or 1 where that is less"
    )


class Config(Section):
    """One recipe."""

    task: Literal["retrieval", "similarity"] = Field("retrieval", description="what the towers learn")
    data: DataConfig = DataConfig()
    features: Features = Features()
    model: ModelConfig = ModelConfig()
    loss: LossConfig = SampledSoftmax(name="sampled_softmax")
    sampler: SamplerConfig | None = Field(None, description="in_batch, where the loss takes negatives from a sampler")
    similarity: SimilarityConfig = SimilarityConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="before")
    @classmethod
    def _a_section_without_a_name_is_the_default_one(cls, raw: Any) -> Any:
        """`--set loss.correction=0.5` alone means the default loss."""
        if not isinstance(raw, Mapping):
            return raw
        return {
            key: {"name": DEFAULT_NAMES[key], **value} if key in DEFAULT_NAMES and isinstance(value, Mapping) else value
            for key, value in raw.items()
        }

    @model_validator(mode="after")
    def _the_parts_fit(self) -> "Config":
        refuse_combination(self)
        return self

    @property
    def negatives(self) -> SamplerConfig | None:
        """The sampler, where the loss takes one."""
        if self.sampler is None and self.loss.samples and self.task == "retrieval":
            return InBatch(name="in_batch")
        return self.sampler

    @property
    def temperature(self) -> float | None:
        """What similarities are divided by; None for a loss with its own scale."""
        if self.loss.own_scale:
            return None
        return DEFAULT_TEMPERATURE if self.model.temperature is None else self.model.temperature


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Reads a recipe.

    Args:
        path: a TOML file.
        overrides: ``section.key=value`` strings (see `towers.overrides`).

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
    # Names first: to name another loss or sampler clears the options of the one before.
    for override in sorted(overrides, key=lambda each: not each.partition("=")[0].strip().endswith(".name")):
        apply_override(raw, override)
    return parse_config(raw, origin=str(path))


def parse_config(raw: Mapping[str, Any], origin: str = "recipe") -> Config:
    """Checks a nested mapping of settings; `origin` is named in the error.

    Raises:
        ConfigError: names every wrong key, what came, what is allowed and the nearest right name.
    """
    place: tuple[str, ...] = ()
    try:
        config = Config.model_validate(_with_tuples(raw))
        place = ("features",)
        for side, changes in (config.features.changes or {}).items():
            # With a kind a change is a whole feature, and its mistakes can be told before a data set is there.
            Features.model_validate({side: {name: each for name, each in changes.items() if each and "kind" in each}})
    except ValidationError as error:
        lines = [explain({**detail, "loc": (*place, *detail["loc"])}, Config) for detail in error.errors()]
        raise ConfigError(f"{origin}: " + "; ".join(lines)) from None
    return config


def _with_tuples(raw: Any) -> Any:
    """The same settings with each TOML array as the tuple that a frozen model holds."""
    if isinstance(raw, Mapping):
        return {key: _with_tuples(value) for key, value in raw.items()}
    return tuple(_with_tuples(value) for value in raw) if isinstance(raw, list) else raw
