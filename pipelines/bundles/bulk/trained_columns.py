"""How training read the columns that feed a tower's inputs, from a bundle: its lineage and vocabularies.

`pipelines.bundles.bulk.feature_file` reads a file of features by it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from serving.bundle.arrays import CANDIDATE_TOWER, QUERY_TOWER
from serving.bundle.reader import Bundle
from serving.bundle.vocabulary import known_values

CATEGORICAL = "categorical"


@dataclass(frozen=True)
class TrainedColumns:
    """What the recipe and a tower say of the columns.

    Attributes:
        sources: the column of each input that the recipe names one for.
        separators: what separates the parts of a text, for inputs whose column is in `data.lists`.
        values: what the tower learnt of its categories; an input of which it has no list is left out.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    separators: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, bundle: Bundle, side: Literal["query", "candidate"]) -> "TrainedColumns":
        """Reads a bundle; without a recipe in its lineage no source and no separator is known.

        Args:
            bundle: an opened bundle.
            side: the tower's.
        """
        manifest = bundle.manifest
        config = manifest.lineage.get("config", {})
        # With task = "similarity" the item tower reads the queries.
        features = config.get("features", {}).get("candidate" if manifest.is_similarity else side) or {}
        inputs = {name: each for name, each in features.items() if isinstance(each, dict)}
        sources = {name: each["column"] for name, each in inputs.items() if "column" in each}
        lists = config.get("data", {}).get("lists", {})
        found = {name: lists.get(sources.get(name, name)) for name, each in inputs.items() if _reads_text(each)}
        separators = {name: separator for name, separator in found.items() if separator}
        of_queries = manifest.query_features, QUERY_TOWER
        specs, tower = of_queries if side == "query" else (manifest.candidate_features, CANDIDATE_TOWER)
        values = {each.name: known_values(bundle, each.name, tower=tower) for each in specs if each.kind == CATEGORICAL}
        return cls(sources, separators, {name: known for name, known in values.items() if known})


def _reads_text(feature: Mapping[str, object]) -> bool:
    return feature.get("kind") in ("multi", "text")
