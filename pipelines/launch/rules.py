"""The rules of a gate, from a TOML file: what a candidate's report and its measurements must show.

docs/evaluation/gate.md explains each key.
"""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from pipelines.bundles.blessing import Judgement
from pipelines.errors import DataError
from pipelines.evaluation.figures import MOST_K, OF_LISTS, is_length
from pipelines.evaluation.findings import NAMES, NAMES_TARGET
from towers.config.explain import explain
from towers.config.section import Count, Section
from towers.evaluation.metrics import METRICS

Model = TypeVar("Model", bound=Section)
# Figures of all lists together and their keys in `report.json`.
OF_ALL_LISTS = {name: key for key, name in OF_LISTS.items()}
ALL = "all"
# A report names only the worse of two findings.
WORSE = {"one list for all": "hub", "constant scores": "ties at the last place"}
LOOK_AHEAD = "looks ahead"  # by its name alone: many good models train with such features


def _known_metric(text: str) -> str:
    name, _, k = text.partition("@")
    known = (*METRICS, *OF_ALL_LISTS)
    if name not in known or not is_length(k):
        raise ValueError(f"must be METRIC@K, METRIC one of {', '.join(known)}, K at most {MOST_K:,}; got {text!r}")
    return text


def _known_finding(text: str) -> str:
    if text not in (ALL, LOOK_AHEAD, *NAMES):
        raise ValueError(f"must be {ALL!r} or one of {', '.join(map(repr, (*NAMES, LOOK_AHEAD)))}; got {text!r}")
    return text


def _at_least_one(names: tuple[str, ...]) -> tuple[str, ...]:
    # Not `min_length`, which counts only right values: one wrong name would be a second mistake, "too short".
    if not names:
        raise ValueError("must name at least one; got none")
    return names


class Limit(Section):
    """One limit: the least or the most that a figure may be."""

    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "Limit":
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("needs either at_least or at_most")
        return self

    @property
    def text(self) -> str:
        """The limit in words."""
        # With every digit that was typed: a figure beside it is shown on its own side.
        return f"at most {self.at_most:.15g}" if self.at_least is None else f"at least {self.at_least:.15g}"

    def holds(self, figure: float) -> bool:
        """Whether a figure is within the limit."""
        return figure >= self.at_least if self.at_least is not None else figure <= (self.at_most or 0.0)

    def judge(self, rule: str, figure: float, note: str = "") -> Judgement:
        """Judges a figure; `rule` says what it is."""
        return Judgement(rule=rule, figure=figure, limit=self.text, passed=self.holds(figure), note=note)


class FigureRule(Limit):
    """A limit of a figure of the report.

    Attributes:
        metric: such as "recall@20".
        ranker: "index", what is served, or "exact".
        relative: the figure minus or over the baseline's; None for the candidate's own.
        bound: what must be within the limit: the value, or the lower or the upper bound of its interval.
    """

    metric: Annotated[str, AfterValidator(_known_metric)]
    ranker: Literal["index", "exact"] = "index"
    relative: Literal["difference", "ratio"] | None = None
    bound: Literal["value", "low", "high"]

    @property
    def of_users(self) -> bool:
        """Whether the metric is a figure of each user, so that two reports can be paired and slices have it."""
        return self.metric.partition("@")[0] in METRICS

    @model_validator(mode="after")
    def _has_that_bound(self) -> "FigureRule":
        if self.bound != "value" and self.relative == "ratio" and not self.of_users:
            raise ValueError(f"a ratio of {self.metric} has no interval; its bound must be 'value', got {self.bound!r}")
        return self


class SliceRule(FigureRule):
    """A limit of a figure of every slice with enough users.

    Attributes:
        groups: of which slices, such as "activity" or a column; None for all.
        least_users: smaller slices are listed, but not judged.
        unjudged: what becomes of the candidate where all slices of a named group, or all there are, are smaller.
    """

    relative: Literal["difference"] | None = None
    groups: Annotated[tuple[str, ...], AfterValidator(_at_least_one)] | None = None
    least_users: Count = 100
    unjudged: Literal["refuse", "pass"] = "refuse"

    @model_validator(mode="after")
    def _exists_in_slices(self) -> "SliceRule":
        if not self.of_users:
            raise ValueError(f"{self.metric} is not a figure of slices; they have {', '.join(METRICS)}")
        return self


class IndexRule(Section):
    """The least recall@k of the index against exact search."""

    k: Count = 100
    at_least: Annotated[float, Field(gt=0, le=1)]


class LatencyRule(Section):
    """The longest that half and 99 % of single queries may take on the machine of the gate."""

    k: Count = 100
    p50_ms: Annotated[float, Field(gt=0)] | None = None
    p99_ms: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _one_at_least(self) -> "LatencyRule":
        if self.p50_ms is None and self.p99_ms is None:
            raise ValueError("needs p50_ms, p99_ms or both")
        return self


class FindingsRule(Section):
    """The findings that the report must not have."""

    clean: Annotated[tuple[Annotated[str, AfterValidator(_known_finding)], ...], AfterValidator(_at_least_one)]

    def covers(self, name: str) -> bool:
        """Whether the report must not have the finding of this name."""
        of_column = NAMES_TARGET in self.clean and name.endswith(f" {NAMES_TARGET}")
        return of_column or bool({ALL, name, WORSE.get(name)} & {*self.clean})


class AgreementRule(Section):
    """The least mean share of the baseline's first k items that the candidate answers, too, over known users."""

    k: Count = 20
    at_least: Annotated[float, Field(gt=0, le=1)]


class Rules(Section):
    """What a candidate must show; not empty."""

    metrics: tuple[FigureRule, ...] = ()
    slices: tuple[SliceRule, ...] = ()
    findings: FindingsRule | None = None
    index: IndexRule | None = None
    latency: LatencyRule | None = None
    agreement: AgreementRule | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> "Rules":
        if not (self.of_report or self.index or self.latency or self.agreement):
            raise ValueError(f"holds no rule; there are {', '.join(Rules.model_fields)}")
        return self

    @property
    def of_report(self) -> bool:
        """Whether a rule needs the candidate's report."""
        return bool(self.metrics or self.slices or self.findings)

    @property
    def of_both_reports(self) -> bool:
        """Whether a rule needs the baseline's report, too."""
        return any(rule.relative for rule in (*self.metrics, *self.slices))


class RuleFile(Rules):
    """The rules of a new model, and those of a renewal: a candidate with the baseline's towers and users' vectors."""

    renewal: Rules | None = None


def read_rules(path: Path) -> tuple[RuleFile, str]:
    """Reads a file of rules; returns them and the SHA-256 of its bytes.

    Raises:
        DataError: as `read_toml`.
    """
    rules, content = read_toml(path, RuleFile, "a file of rules")
    return rules, hashlib.sha256(content).hexdigest()


def read_toml(path: Path, model: type[Model], whole: str) -> tuple[Model, bytes]:
    """Reads a TOML file; returns its content as a model, and as bytes.

    Args:
        path: the file.
        model: of the file.
        whole: what the file is, for an error.

    Raises:
        DataError: it is missing or not TOML, or a key or value is wrong; names all of them.
    """
    try:
        content = path.read_bytes()
        # In JSON an array may be a tuple, also for strict models.
        text = json.dumps(tomllib.loads(content.decode("utf-8-sig")), default=str)
        return model.model_validate_json(text), content
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise DataError(f"{path}: {explain(error.errors(), model, whole)}") from None
    except ValueError as error:  # of TOML, or not UTF-8
        raise DataError(f"{path}: not valid TOML: {error}") from None
