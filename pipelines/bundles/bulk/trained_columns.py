"""How training read the columns that feed a tower's inputs, from the lineage of a bundle.

`pipelines.bundles.bulk.feature_file` reads a file of features by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from serving.bundle.reader import Bundle


@dataclass(frozen=True)
class TrainedColumns:
    """What the recipe says of the columns.

    Attributes:
        sources: the column of each input that the recipe names one for.
        separators: what separates the parts of a text, for inputs whose column is in `data.lists`.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    separators: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, bundle: Bundle, side: Literal["query", "candidate"]) -> "TrainedColumns":
        """Reads the lineage of a bundle; without a recipe nothing is known.

        Args:
            bundle: an opened bundle.
            side: the tower's.
        """
        config = bundle.manifest.lineage.get("config", {})
        # With task = "similarity" the item tower reads the queries.
        features = config.get("features", {}).get("candidate" if bundle.manifest.is_similarity else side) or {}
        inputs = {name: each for name, each in features.items() if isinstance(each, dict)}
        sources = {name: each["column"] for name, each in inputs.items() if "column" in each}
        lists = config.get("data", {}).get("lists", {})
        found = {name: lists.get(sources.get(name, name)) for name, each in inputs.items() if _reads_text(each)}
        return cls(sources, {name: separator for name, separator in found.items() if separator})


def _reads_text(feature: Mapping[str, object]) -> bool:
    return feature.get("kind") in ("multi", "text")
