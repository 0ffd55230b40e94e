"""One day: its folder, and the steps from the events to the bundle that answers.

A step is done when its output is there, which is complete or absent: a day resumes at the first step without one.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.bundles import activate, build_index, export, publish
from pipelines.bundles.blessing import blessing_path, valid_blessing
from pipelines.console import say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import refuse_no_targets
from pipelines.dataset.manifest import MANIFEST as DATASET
from pipelines.errors import DataError, GateError
from pipelines.evaluation import report
from pipelines.evaluation.report_json import REPORT
from pipelines.ingest import prepare
from pipelines.launch import gate
from pipelines.launch.daily.settings import Loop
from pipelines.launch.daily.upload import upload
from pipelines.launch.rules import read_rules
from pipelines.training import train
from serving.bundle.digest import bundle_digest
from serving.bundle.manifest import MANIFEST, read_manifest
from serving.bundle.versions import CANDIDATE, Versions
from serving.files.staging import remove
from serving.service.store import Store
from towers.errors import ConfigError

PLAN, SUMMARY = "plan.json", "summary.json"
ACTIVATED, REFUSED, FAILED = "activated", "refused", "failed"
KEYS = "`towers daily` has no options: format and on_bad_rows are keys of its settings, data.* of its recipe"


class Step(NamedTuple):
    """One step: its name, whether its output is there, and what makes it."""

    name: str
    done: Callable[[], bool]
    make: Callable[[], object]


@dataclass(frozen=True)
class Day:
    """A day that has begun.

    Attributes:
        loop: the settings.
        name: of its folder and of its bundle: the date, and the first digits of its key.
        started: when it began, as an ISO date and time.
        warm_from: the name of the day that it starts from; None for a cold training.
    """

    loop: Loop
    name: str
    started: str
    warm_from: str | None

    @property
    def folder(self) -> Path:
        """Holds its data set, run, report and summary."""
        return self.loop.settings.work / self.name

    @property
    def candidate(self) -> Path:
        """Its bundle before it is published: hidden in the root, so that publishing is a rename."""
        return self.loop.settings.root / f".{self.name}{CANDIDATE}"

    @property
    def bundle(self) -> Path:
        """Its bundle in the root."""
        return self.loop.settings.root / self.name

    @property
    def has_run(self) -> bool:
        """Whether its training has begun, so that its start no longer changes."""
        return self.bundle.is_dir() or any((self.folder / name).exists() for name in ("run", ".run.unfinished"))

    @property
    def summary(self) -> dict[str, Any]:
        """What it ended with last; empty if it has not ended yet."""
        file = self.folder / SUMMARY
        remedy = "remove it, and the day goes on: its bundle is activated again if another one answers"
        return _read_object(file, remedy) if file.is_file() else {}

    def steps(self, activating: Callable[[], object] = lambda: None) -> tuple[Step, ...]:
        """The steps in their order; `activating` is called when the bundle is about to answer."""
        folder, published, index = self.folder, self.bundle.is_dir, partial(build_index.run, self.candidate)
        to_store = []
        if (url := self.loop.settings.store) is not None:
            # Not again once it answers: `towers forget` may have made another bundle of it there.
            done = partial(publish.holds, url, self.bundle)
            to_store = [Step("upload", lambda: self._activated() or done(), partial(upload, url, self.bundle))]
        return (
            Step("prepare", (folder / "dataset" / DATASET).is_file, self._prepare),
            Step("train", self._trained, self._train),
            Step("export", self._exported, self._export),
            Step("index", lambda: published() or read_manifest(self.candidate).index is not None, index),
            Step("report", self._reported, self._report),
            # Until it answers: meanwhile another bundle may have become active, or the rules have changed.
            Step("gate", lambda: self.loop.active == self.name or self._blessed(), self._gate),
            Step("publish", published, self._publish),
            *to_store,
            Step("activate", self._activated, partial(self._activate, activating)),
        )

    def remove(self) -> None:
        """Removes its folder and its bundle, published or not, also from the store.

        Raises:
            StoreError: it cannot be removed there; nothing has changed here.
        """
        if self.loop.settings.store is not None:
            Store(self.loop.settings.store).remove(self.name)
        for bundle in (self.candidate, self.bundle):
            remove(bundle)
            # The second: what a killed command left under the host name of a pod, which no later one has.
            for pattern in (f"{bundle.name}.blessing.*", f".{bundle.name}.*"):
                for each in self.loop.settings.root.glob(pattern):
                    remove(each)
        for each in self.folder.iterdir():
            if each.name != PLAN:
                remove(each)
        remove(self.folder)  # with the plan, by which a day is found: a killed removal goes on

    def _prepare(self) -> object:
        given = self.loop.settings
        try:
            return prepare.run(
                self.loop.recipe.data,
                given.events,
                self.folder / "dataset",
                items=given.items,
                users=given.users,
                format=given.format,
                on_bad_rows=given.on_bad_rows,
            )
        except DataError as error:
            if "--" not in str(error):  # the remedy is no option of `towers prepare`
                raise
            raise DataError(f"{error}; {KEYS}") from None

    def _train(self) -> object:
        before = None if self.warm_from is None else self.loop.settings.work / self.warm_from / "run"
        try:
            data, out = self.folder / "dataset", self.folder / "run"
            if self.loop.recipe.task == "retrieval":
                refuse_no_targets(Dataset.open(data))
            start = partial(train.run, self.loop.recipe, data, out, overwrite=True, warm_from=before)
            try:
                return start()
            except DataError as error:
                if "--fresh" not in str(error) or not Dataset.open(data).manifest.before_forget:
                    raise
                say(f"{out}: trained anew, because `towers forget` has changed the data set of its unfinished training")
                return start(resume=False)
        except (ConfigError, DataError) as error:
            # `--fresh` discards a training that cannot resume, such as one whose checkpoints are all damaged.
            cold = str(error).startswith("--warm-from")
            if not cold and "--fresh" not in str(error):
                raise
            fresh = f"`towers daily` has no --fresh: remove {self.folder / '.run.unfinished'}"
            raise DataError(f"{error}; {'with warm = false the day starts cold' if cold else fresh}") from None

    def _trained(self) -> bool:
        """Whether there is a run of the data set as it is, which `towers forget` may have changed, or its bundle."""
        if self._exported():
            return True
        if not (file := self.folder / "run" / train.SUMMARY).is_file():
            return False
        dataset = Dataset.open(self.folder / "dataset").manifest
        run = _read_object(file, f"remove {file.parent}, and the day is trained again")
        return bool(run.get("dataset") == dataset.fingerprint)

    def _exported(self) -> bool:
        return self.bundle.is_dir() or (self.candidate / MANIFEST).is_file()

    def _export(self) -> object:
        return export.run(self.folder / "run", self.candidate, vectors=self.loop.settings.vectors)

    def _report(self) -> object:
        return report.run(self._judged, self.folder / "dataset", self.folder / "report", overwrite=True)

    def _reported(self) -> bool:
        """Whether there is a whole report of the bundle as it is; of similar items a `forget` lets none be made."""
        file = self.folder / "report" / REPORT
        if (similar := self.loop.recipe.task == "similarity") and not file.is_file():
            forgot = Dataset.open(self.folder / "dataset").manifest.before_forget
            return read_manifest(self._judged).lineage.get("dataset") in forgot
        if not file.is_file() or similar or self.loop.active == self.name:
            return file.is_file()
        try:
            digest = json.loads(file.read_text(encoding="utf-8"))["bundle"]["digest"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            say(f"warning: {file}: damaged ({error}); the report is made again")
            return False
        return bool(digest == bundle_digest(self._judged))

    def _gate(self) -> object:
        baseline = None if (active := self.loop.active) is None else self.loop.settings.root / active
        # The report of similar items is for readers: no rule judges it.
        judged = None if self.loop.recipe.task == "similarity" else self.folder / "report"
        return gate.run(self.loop.settings.rules, self._judged, baseline=baseline, report=judged)

    @property
    def _judged(self) -> Path:
        return self.bundle if self.bundle.is_dir() else self.candidate

    def _blessed(self) -> bool:
        try:
            blessing = valid_blessing(self._judged)
        except GateError:
            return False
        active, (_, rules) = self.loop.active, read_rules(self.loop.settings.rules)
        baseline = None if active is None else bundle_digest(self.loop.settings.root / active)
        return (blessing.rules, blessing.baseline) == (rules, baseline)

    def _publish(self) -> None:
        # The blessing first: it rests on the bundle's content, not on its name, and a published bundle has one.
        for each in sorted(self.loop.settings.root.glob(f"{self.candidate.name}.blessing.*")):
            place = each.with_name(each.name.replace(self.candidate.name, self.name, 1))
            remove(place)
            each.rename(place)
        self.candidate.rename(self.bundle)
        say(f"published: {self.bundle}, {blessing_path(self.bundle).name}")

    def _activated(self) -> bool:
        file = Versions(self.loop.settings.root).file
        return self.loop.active == self.name and (
            self.loop.settings.store is None or self.loop.stored_active() == file.read_bytes()
        )

    def _activate(self, activating: Callable[[], object]) -> object:
        place = self.loop.settings.store or self.loop.settings.root
        return activate.activate(place, self.name, before_write=activating)


def _read_object(file: Path, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: damaged ({error}); {remedy}") from None
    if not isinstance(content, dict):
        raise DataError(f"{file}: damaged (no object); {remedy}")
    return content
