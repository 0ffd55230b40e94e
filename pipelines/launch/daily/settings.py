"""The settings of `towers daily`: one TOML file; its paths are relative to its folder."""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from pipelines.bundles.publish import refuse_gate
from pipelines.bundles.requirement import refuse_other_rules, refuse_own_file
from pipelines.console import say
from pipelines.dataset.manifest import digest_of
from pipelines.errors import DataError
from pipelines.evaluation.report import KS
from pipelines.evaluation.slices import GROUPS, OF_TARGETS, RECALL
from pipelines.ingest.formats import Format
from pipelines.ingest.formats.folder import files_of
from pipelines.launch.judge import OF_SIMILARITY
from pipelines.launch.rules import FigureRule, SliceRule, read_rules, read_toml
from pipelines.training.similarity.labels import pairs_digest
from serving.bundle.active import ACTIVE, Active, parsed_active
from serving.bundle.versions import Versions
from serving.client.address import without_secrets
from serving.files.staging import staged
from serving.search.vector_codes import VectorType
from serving.service.store import MissingError, Store
from towers.config.recipe import RECIPES, Config, load_config
from towers.config.section import Count, Section
from towers.errors import ConfigError


class Settings(Section):
    """What a day is made of."""

    events: Path = Field(description="the events, all of them: a file or a folder")
    items: Path | None = None
    users: Path | None = None
    format: Format = "auto"
    on_bad_rows: Literal["error", "skip"] = "error"
    recipe: str = Field("default", description="a recipe: a file, or the name of one that comes with towers")
    warm: bool = Field(True, description="start training from the day whose model answers")
    vectors: VectorType = Field("float32", description="how item vectors are stored, as of `towers export`")
    rules: Path = Field(description="the rules of the gate")
    root: Path = Field(Path("bundles"), description="the directory of bundles that a service follows")
    store: str | None = Field(None, description="URL of a root in a store, which gets each bundle and answers from it")
    work: Path = Field(Path("days"), description="gets a folder for each day: data set, run, report, summary")
    keep: Count = Field(7, description="days that are kept, with their bundles")
    notify: tuple[str, ...] = Field((), description="a command with its arguments; reads the summary as JSON")

    @field_validator("events", "items", "users", "recipe", "rules", "root", "work", mode="before")
    @classmethod
    def _on_this_machine(cls, value: object, info: ValidationInfo) -> object:
        # As a path, s3://bucket would be a folder `s3:` here.
        if isinstance(value, str) and "://" in value:
            own = info.field_name in ("root", "work")
            told = "a store of bundles has the key 'store'" if own else "copy it here first"
            raise ValueError(f"must be on this machine; got {without_secrets(value)!r}; {told}")
        return value

    @field_validator("store")
    @classmethod
    def _elsewhere(cls, value: str | None) -> str | None:
        if value is not None and "://" not in value:
            raise ValueError(
                f"must be a URL, such as s3://bucket/recall; got {value!r}; a directory has the key 'root'"
            )
        return value

    @property
    def shown_store(self) -> str | None:
        """The URL of the store without its password."""
        return None if self.store is None else without_secrets(self.store)


@dataclass(frozen=True)
class Loop:
    """Settings with their paths and their recipe.

    Attributes:
        settings: as in the file, with whole paths.
        folder: that of the file.
        recipe: read and checked.
    """

    settings: Settings
    folder: Path
    recipe: Config

    @classmethod
    def read(cls, file: Path) -> "Loop":
        """Reads a file of settings and its recipe.

        Raises:
            DataError: the file is missing or not TOML, a key or value is wrong, or an input is neither file nor folder.
            ConfigError: the recipe is wrong.
        """
        settings, _ = read_toml(file, Settings, "a file of daily settings")
        folder = file.absolute().parent
        paths = {key: folder / value for key, value in settings if isinstance(value, Path)}
        own, ready = folder / settings.recipe, {each.stem: each for each in RECIPES.glob("*.toml")}
        try:
            # Never of the current directory, which the settings do not know.
            config = load_config(own if own.is_file() else ready.get(settings.recipe, own))
        except ConfigError as error:
            raise ConfigError(f"{file}: recipe: {error}") from None
        # The next day may start from this one.
        train = config.train.model_copy(update={"keep_state": config.task == "retrieval"})
        loop = cls(settings.model_copy(update=paths), folder, config.model_copy(update={"train": train}))
        for key, path in paths.items():
            if key not in ("root", "work") and not path.exists():
                raise DataError(f"{file}: {key}: {path}: no such file or folder")
            if key in ("root", "work") and path.exists() and not path.is_dir():
                raise DataError(f"{file}: {key}: {path}: not a folder")
        if paths["root"].resolve() == paths["work"].resolve():
            raise DataError(f"{file}: root, work: both are {paths['work']}; give the bundles and the days one each")
        return loop

    def follow(self, *, warns: bool = True) -> None:
        """Copies `active.json` of the store to the root, where the steps, and a gate of the root, look for it.

        `warns` if the root does not have the bundle that answers.

        Raises:
            BundleError: the store cannot be read, or its `active.json` is damaged.
        """
        content = self.stored_active()
        if content is not None:
            parsed_active(content, f"{self.settings.shown_store}/{ACTIVE}")
            with staged(self.settings.root / ACTIVE, overwrite=True) as half:
                half.write_bytes(content)
        if warns and self.active is None and self.choice is not None:
            place = "" if content is None else f" answers in {self.settings.shown_store} and"
            say(
                f"warning: {self.choice.active}{place} is not in {self.settings.root}: the bundle of today is judged "
                "without it, and a training that begins now begins from scratch"
            )

    def stored_active(self) -> bytes | None:
        """The content of `active.json` in the store; None without a store, and before the first bundle."""
        if self.settings.store is not None:
            with suppress(MissingError):
                return Store(self.settings.store).active()
        return None

    def chosen(self) -> set[str]:
        """The names of what answers now, in the store or else in the root, of its canary, and of what answered before.

        Raises:
            BundleError: the store cannot be read, or an `active.json` is damaged.
        """
        content = self.stored_active()
        now = self.choice if content is None else parsed_active(content, f"{self.settings.shown_store}/{ACTIVE}")
        if now is None:
            return set()
        return {now.active, *now.previous[:1], *([now.canary.bundle] if now.canary else [])}

    def refuse_late_mistakes(self, file: Path) -> None:
        """Refuses now what a step would refuse after hours of training; `file` is that of the settings.

        Raises:
            DataError: no day could pass the rules, or be trained, or the root requires other rules.
            GateError: the store is a directory with a gate.
        """
        if self.settings.warm and self.recipe.task != "retrieval":
            raise DataError(
                f"{file}: warm: a recipe of task = {self.recipe.task!r} has no warm start; set warm = false"
            )
        if self.settings.store is not None:
            refuse_gate(Store(self.settings.store))
        place = self.settings.rules
        refuse_own_file(place, self.settings.root)
        rules, digest = read_rules(place)
        refuse_other_rules(place, digest, self.settings.root)
        if rules.of_report and self.recipe.task == "similarity":
            raise DataError(
                f"{file}: rules: {place}: judges figures of a report; a bundle of task = 'similarity' is judged by "
                f"{OF_SIMILARITY} alone"
            )
        if rules.of_both_reports:
            raise DataError(
                f"{file}: rules: {place}: has rules with `relative`; the bundle that answers has no report on "
                "the events of today, so a day is judged by its own figures only"
            )
        # Not those of `[renewal]`: a day that has trained is none.
        for rule in (*rules.metrics, *rules.slices):
            if told := _never_judged(rule):
                raise DataError(f"{file}: rules: {place}: {rule.metric}: {told}")
        if rules.agreement is not None and self.active is None:
            raise DataError(
                f"{file}: rules: {place}: agreement: no bundle of {self.settings.root} is active; add this rule after "
                "the first day, or activate a bundle"
            )

    @property
    def choice(self) -> Active | None:
        """What `active.json` of the root says; None before the first bundle."""
        versions = Versions(self.settings.root)
        return versions.read() if versions.file.exists() else None

    @property
    def answers(self) -> str | None:
        """The name of the bundle that is active where services look: in the store as of `follow`, else in the root."""
        if self.settings.store is not None and self.stored_active() is None:
            return None  # what the root says is the past
        now = self.choice
        return None if now is None else now.active

    @property
    def active(self) -> str | None:
        """The name of the bundle that answers; None before the first one, and if the root does not have it."""
        now = self.choice
        return None if now is None or not (self.settings.root / now.active).is_dir() else now.active

    def key(self) -> str:
        """SHA-256 of what a model is made of: the content of the inputs, the recipe, and how both are read."""
        inputs = {"events": self.settings.events, "items": self.settings.items, "users": self.settings.users}
        told = {
            "inputs": {name: _digests(path) for name, path in inputs.items() if path is not None},
            "recipe": self.recipe.model_dump(mode="json"),
            # The recipe holds only their place. Where it names none, the key is that of earlier releases.
            **({"pairs": pairs_digest(pairs)} if (pairs := self.recipe.similarity.pairs) is not None else {}),
            **self.settings.model_dump(include={"format", "on_bad_rows", "warm", "vectors"}),
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _never_judged(rule: FigureRule) -> str:
    """Why the report of a day, which has no options, cannot have the figure of a rule; empty if it can."""
    name, _, k = rule.metric.partition("@")
    groups = rule.groups or () if isinstance(rule, SliceRule) else ()
    if k not in (allowed := [*map(str, KS)]):
        return f"the report of a day has lists of {', '.join(allowed)}"
    if unknown := [each for each in groups if each not in GROUPS]:
        return f"groups: the report of a day has no slices by {', '.join(unknown)}; it has {', '.join(GROUPS)}"
    if name != RECALL and (of_targets := [each for each in groups if each in OF_TARGETS]):
        return f"groups: slices by {', '.join(of_targets)} have {RECALL} alone"
    return ""


def _digests(path: Path) -> dict[str, str]:
    # Of a folder all that `towers prepare` finds, read or not: partitions that are links, too, and no hidden file.
    # Not what it finds beside a single file: that would need the format.
    try:
        files = files_of(path) if path.is_dir() else [path]
    except DataError:  # an empty folder: `towers prepare` refuses it as a step of the day, of which `notify` is told
        files = []
    return {str(each.relative_to(path)): digest_of(each) for each in files}
