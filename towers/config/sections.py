"""The sections of a recipe but features, loss and sampler."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from towers.config.section import Count, NonNegative, Positive, Section, Share, Window, known_zone

DEFAULT_TEMPERATURE = 0.2
Dimension = Annotated[int, Field(ge=1, le=4096)]


def _known_metric(text: str) -> str:
    # Not a `pattern`, which an error would show as it is.
    if not re.fullmatch(r"(recall|ndcg|precision)@[1-9][0-9]*", text, re.ASCII):
        raise ValueError(
            "must be recall@K, ndcg@K or precision@K with K a whole number from 1, such as recall@20; got " + repr(text)
        )
    return text


class Columns(Section):
    """Which column of the events holds what; None looks for usual names (`pipelines.ingest.formats.column_names`)."""

    user: str | None = None
    item: str | None = None
    time: str | None = None
    type: str | None = None
    weight: str | None = None


class DataConfig(Section):
    """How `towers prepare` turns raw events into a data set, and how training uses it."""

    columns: Columns = Columns()
    # In the public sections defaults have their name, `default=`: without pydantic's plugin type checkers see no other.
    lists: dict[str, str] = Field(
        default={}, description="separators by column of texts that hold lists; empty: it holds none"
    )
    vectors: tuple[str, ...] = Field(default=(), description="columns whose texts or lists of numbers are vectors")
    event_types: tuple[str, ...] = Field(default=(), description="keep only these event types; empty keeps all")
    min_weight: float | None = Field(
        default=None, description="keep only events of at least this weight (a rating, say)"
    )
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = "auto"
    time_zone: Annotated[str, AfterValidator(known_zone)] = Field(
        default="UTC", description="IANA name; of hours and weekdays, and of times that name no zone themselves"
    )
    duplicates: Literal["keep", "first", "last"] = Field(default="first", description="which of a pair's events stays")
    min_user_events: Count = 1
    min_item_events: Count = 1
    split: Literal["auto", "global_time", "leave_last_out", "random", "given"] = "auto"
    ordered: bool = Field(
        default=False, description="without times: each user's events are in chronological order, file by file"
    )
    validation: Literal["auto", "given", "last", "random"] = Field(
        default="auto",
        description="of a given split, outside the test: the validation file, the last valid_share of each user's "
        "events, or a random one; 'auto': a file that is like the test, else 'last' if the test comes after a user's "
        "other events, else the file or a random share",
    )
    valid_share: Share = Field(
        default=0.1, description="of a given split where left out: the test's share of all events, 0.05 to 0.5"
    )
    test_share: Share = 0.1
    seed: int = Field(default=0, ge=0)
    refit: bool | Literal["timed"] = Field(
        default=False,
        description="train again on train + validation, for the epochs validation chose; 'timed': only timed events",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> "DataConfig":
        if twice := sorted(self.lists.keys() & set(self.vectors)):
            raise ValueError(f"vectors: data.lists names {twice[0]!r}, too; a column is lists of words or vectors")
        if self.valid_share + self.test_share >= 1:
            raise ValueError(f"valid_share + test_share is {self.valid_share + self.test_share:g}; must stay below 1")
        return self


class PriorConfig(Section):
    """A popularity prior with given weights; `towers.model.prior` has the formula."""

    days: Count | None = Field(
        None, description="window in days whose counts are what is in fashion; left out, all events"
    )
    users_alike: bool = Field(False, description="count an event 1 / n, n its user's events in the window")
    now: float = Field(
        0.0,
        description="weight of the log share in the window for a query without a history, in units of the standard "
        "deviation of the scores",
    )
    past: NonNegative = Field(0.0, description="weight of the log share in training, subtracted")
    length: float = Field(0.0, description="added to now per unit of log(1 + length of the history)")


class ModelConfig(Section):
    """The two towers: how features become a vector and two vectors a score."""

    dimension: Dimension = 64
    similarity: Literal["dot", "cosine"] = "cosine"
    norm_exponent: Literal["validation"] | Annotated[float, Field(ge=-1, le=1)] | None = Field(
        None,
        description="item vectors are served as v / |v|^x: 1 is the cosine (the default with it), 0 the dot product "
        "(the default with that); 'validation' chooses x after each epoch",
    )
    prior: Literal["off", "validation"] | PriorConfig = Field(
        "off",
        description="how much recent popularity adds to the scores: 'validation' fits window, counting and weights on "
        "held-out events, without times of all events; a table of days, users_alike, now, past, length gives them",
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
        """The exponent x of ``v / |v|^x``, or the start of the search for it."""
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
    """What `task = "similarity"` treats as similar: items of one class, or listed pairs."""

    column: str | None = Field(None, description="item column that holds the class, or several (a genre, a category)")
    pairs: str | None = Field(None, description="file of similar pairs, columns item_a and item_b")
    against: Literal["centres", "items"] = Field(
        "centres", description="an item's candidates: the classes' trained centres, or the other items of the batch"
    )
    holdout_share: Share = Field(0.2, description="share of the labelled items that only validation and report see")


class ContrastConfig(Section):
    """A second term of the loss: each item beside a companion, one of the items that users take with it."""

    weight: NonNegative = Field(0.0, description="weight of the term beside the loss of the events; 0 is off")
    window: Window = Field("list", description="which items are taken together, as `window` of kind cooccurrence")


class DistillationConfig(Section):
    """Teachers: models of the same recipe and other seeds, trained first, and EASE; the model learns their scores."""

    models: int = Field(0, ge=0, le=64, description="number of teachers; 0 is off. Each takes as long as a training")
    ease: NonNegative = Field(
        0.0, description="weight of the scores of EASE, a linear item-item model, beside the teachers' mean; 0 is off"
    )
    ease_penalty: Positive = Field(300.0, description="lambda of EASE, on the squares of its weights")
    share: float = Field(0.5, gt=0, le=1, description="weight of the teachers; the events have the rest")
    dimension: Dimension | None = Field(None, description="of the teachers' vectors; by default model.dimension")

    @property
    def on(self) -> bool:
        """Whether there is something to learn from beside the events."""
        return self.models > 0 or self.ease > 0


class OptimizerConfig(Section):
    """The optimizer: row-sparse on embedding tables, dense on the rest."""

    name: Literal["adam", "adagrad", "sgd"] = "adam"
    learning_rate: Positive = 0.002
    weight_decay: float = Field(
        0.0, ge=0, description="each step subtracts rate * weight_decay of each row that it updates"
    )
    l2: NonNegative = Field(
        0.0, description="adds l2 * w to the gradient of each row that a step updates, before the moments"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="how the rate falls by the end")
    warmup_steps: int = Field(0, ge=0, description="steps in which the rate rises from zero")
    final_share: float = Field(0.0, ge=0, le=1, description="share of learning_rate that the schedule ends at")
    clip_norm: Positive | None = Field(None, description="maximum norm of the gradient of all weights together")
    average: Share = Field(0.0, description="decay of the average of the weights that is validated and kept; 0 is off")


class TrainConfig(Section):
    """The loop: epochs, batches, validation, early stop, checkpoints."""

    epochs: Count = 10
    batch_size: int = Field(2048, ge=2, description="examples per step")
    seed: int = Field(0, ge=0, lt=2**31)
    metric: Annotated[str, AfterValidator(_known_metric)] = Field("recall@20", description="what validation maximises")
    patience: Count = Field(3, description="validations without a better metric before training stops")
    choose_epoch: bool = Field(
        True, description="keep the epoch that validates best; false trains `epochs`, with data.refit at once on both"
    )
    validation_users: Count = Field(10_000, description="maximum users in each validation, a seeded sample")
    checkpoint_steps: Count = Field(2_000, description="steps between checkpoints; one more after each epoch")
    weighted: bool = Field(False, description="weigh each example by its event's weight")
    recency: float = Field(1.0, ge=1, le=1e6, description="weight of a user's last event relative to their first")
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
    warm_share: float = Field(
        0.7, ge=0, le=1, description="with --warm-from: weight of the earlier run's values; 0 is a cold run"
    )
    keep_state: bool = Field(False, description="keep in the run all that --warm-from can take over")
    explode_factor: Annotated[float, Field(ge=2)] | Literal["off"] = Field(
        100.0, description="stop at a loss above this multiple of the first step's loss, or of 1 if that is more"
    )
