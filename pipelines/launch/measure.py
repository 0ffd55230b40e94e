"""Measures bundles on the test events of their data set, all on the same users, targets and masks.

Takes bundles; returns a `Member` for each, and what only bundles can tell: lists, slices, exposure, vectors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut, seen
from pipelines.errors import DataError
from pipelines.evaluation.protocol.asked import ask
from pipelines.evaluation.protocol.leakage import later_prior
from pipelines.evaluation.protocol.options import Protocol
from pipelines.evaluation.slices import Slice, Trained, slices_of
from pipelines.launch.sides import FACTS, USER, Member, Side
from pipelines.rankers.evaluate import Evaluation, Lists, column, evaluate
from pipelines.rankers.ranker import EXACT, KNOWN, Served, open_inputs
from serving.bundle.manifest import read_manifest
from serving.bundle.reader import Bundle
from serving.search.exact import ExactIndex
from towers.evaluation.metrics import METRICS


@dataclass(frozen=True)
class Measured:
    """Bundles with their figures; `lists` holds the first items of each, [Q, k], padded with -1.

    Attributes:
        members: path -> its figures.
        evaluation: all figures; a path is the name of a ranker, and each slice of targets is a metric.
        parts: the slices of users and targets.
        served: path -> its vectors, in the data set's numbers.
        lists: path -> what it recalls for the test users.
        data: the data set.
        held: its test users and their targets.
    """

    members: Mapping[Path, Member]
    evaluation: Evaluation
    parts: Sequence[Slice]
    served: Mapping[Path, Served]
    lists: Mapping[Path, Lists]
    data: Dataset
    held: HeldOut

    def slice_values(self, side: Side, part: Slice, k: int) -> NDArray[np.float64]:
        """Each user's recall@k on the targets of a slice, the mean over the members, [Q]; NaN without such a target."""
        columns = [self.evaluation.of(column(str(each.path), part.name, k)) for each in side.members]
        figures: NDArray[np.float64] = np.mean(columns, axis=0, dtype=np.float64)
        return figures


def measure(paths: Sequence[Path], dataset: Path, ks: Sequence[int], columns: Sequence[str], k: int) -> Measured:
    """Measures bundles by exact search over their vectors.

    Args:
        paths: the bundles; training of the first defines warm and cold users and new items.
        dataset: the data set that all were trained on.
        ks: list lengths, ascending.
        columns: columns by which to slice, too.
        k: length of the lists to keep, at most ``max(ks)``.

    Raises:
        BundleError: a bundle is damaged or was trained on other data.
        DataError: the data set is damaged, has no test events, or not such a column; a bundle recalls no items.
    """
    data = Dataset.open(dataset)
    for path in paths:
        if read_manifest(path).is_similarity:
            raise DataError(f"{path}: task = 'similarity'; compare takes bundles that recall items for users")
    opened = dict(zip(paths, open_inputs(paths, data), strict=True))
    served = {path: Served.match(bundle, ExactIndex(bundle.recall_vectors), data) for path, bundle in opened.items()}
    protocol = Protocol()
    asked = ask(protocol, data, served[paths[0]].item_rows)
    held = asked.held
    refit = {path: bool(bundle.manifest.training.get("refit")) for path, bundle in opened.items()}
    learnt = {each: Trained.of(data, KNOWN if each else KNOWN[:1]) for each in {*refit.values()}}
    trained = learnt[refit[paths[0]]]
    popularity = np.bincount(seen(data, KNOWN)[1], minlength=data.manifest.items)
    parts = slices_of(data, asked, trained, popularity, columns)
    groups = {part.name: part.targets for part in parts if part.targets is not None}
    rankers = {str(path): each.exact(max(ks)) for path, each in served.items()}
    evaluation = evaluate(rankers, held, served[paths[0]].unit_vectors, ks, groups)
    split = data.manifest.split.model_dump(mode="json")
    facts = dict(zip(FACTS, (data.manifest.fingerprint, split, protocol.text, list(ks)), strict=True))
    users = {USER: data.users["user_id"].gather(held.users)}
    members = {}
    for path, bundle in opened.items():
        names = {column(EXACT, *each): column(str(path), *each) for each in product(METRICS, ks)}
        figures = {name: evaluation.of(own) for name, own in names.items()}
        rows = pl.DataFrame({**users, **learnt[refit[path]].about(held), **figures})
        manifest, unknown = bundle.manifest, int(np.count_nonzero(served[path].query_rows[held.users] < 0))
        later = next((each.text for each in later_prior(data, manifest.prior, unknown)), "")
        members[path] = Member(path, manifest.model_version, facts, rows, _recipe(bundle), manifest.training, later)
    lists = {path: evaluation.lists[str(path)][:, :k] for path in paths}
    return Measured(members, evaluation, parts, served, lists, data, held)


def _recipe(bundle: Bundle) -> dict[str, Any] | None:
    recipe = bundle.manifest.lineage.get("config")
    if not isinstance(recipe, dict):
        return None
    train = {key: value for key, value in recipe.get("train", {}).items() if key != "seed"}
    # Not which run it was: each seed may start from the earlier run of its own seed.
    return {**recipe, "train": train, "warm start": "warm_from" in bundle.manifest.training}
