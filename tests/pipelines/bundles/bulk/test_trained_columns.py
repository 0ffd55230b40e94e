"""What the lineage of a bundle says of the columns that its towers read."""

from pathlib import Path
from typing import Any, Literal

import pytest

from pipelines.bundles.bulk.trained_columns import TrainedColumns
from serving.bundle.reader import Bundle
from tests.support.worlds.serving import no_towers, write_world

CONFIG: dict[str, Any] = {
    "data": {"lists": {"all tags": ";", "words": "/", "kept": "", "history": ","}},
    "features": {
        "query": {"history": {"kind": "history"}, "tags": {"kind": "multi", "column": "interests"}},
        "candidate": {
            "tags": {"kind": "multi", "column": "all tags"},
            "words": {"kind": "text"},
            "kept": {"kind": "text", "column": "kept"},
            "others": {"kind": "multi"},
        },
    },
}
OF_ITEMS = TrainedColumns({"tags": "all tags", "kept": "kept"}, {"tags": ";", "words": "/"})


@pytest.mark.parametrize(
    ("lineage", "side", "found"),
    [
        ({"config": CONFIG}, "candidate", OF_ITEMS),
        ({"config": CONFIG}, "query", TrainedColumns({"tags": "interests"})),
        ({"config": CONFIG | {"task": "similarity"}}, "query", OF_ITEMS),
        ({}, "candidate", TrainedColumns()),
    ],
)
def test_inputs_have_the_columns_and_separators_of_the_recipe(
    tmp_path: Path, lineage: dict[str, Any], side: Literal["query", "candidate"], found: TrainedColumns
) -> None:
    write_world(tmp_path / "bundle", lineage=lineage)
    assert TrainedColumns.of(Bundle.open(tmp_path / "bundle"), side) == found


def test_categories_have_the_values_of_their_own_tower(tmp_path: Path) -> None:
    def towers(directory: Path) -> None:
        no_towers(directory)
        for tower, name in (("query", "query.country"), ("query", "query.user"), ("candidate", "candidate.group")):
            file = directory / f"{tower}_tower" / "assets" / f"{name}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"one of {name}\ntwo\n")

    write_world(tmp_path / "bundle", write_towers=towers)
    bundle = Bundle.open(tmp_path / "bundle")
    assert TrainedColumns.of(bundle, "query").values == {"country": ["one of query.country", "two"]}
    assert TrainedColumns.of(bundle, "candidate").values == {"group": ["one of candidate.group", "two"]}
