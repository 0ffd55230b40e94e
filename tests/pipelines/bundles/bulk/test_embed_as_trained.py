"""Files of features read as training read their columns: the items of a bundle get its own vectors again."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.bundles import export
from pipelines.bundles.bulk import embed
from pipelines.ingest import prepare
from pipelines.training import train
from serving.bundle.reader import Bundle
from towers.config.recipe import parse_config

pytestmark = pytest.mark.slow
ITEMS, LONG = 24, 0  # LONG has more tags than the tower takes
GENRES = ["drama", "war | peace", "tea", "noir"]
SIZES = ["1.0", "2.0", "M", "L"]
FEATURES = {
    "genres": {"kind": "multi", "column": "main genres"},
    "tags": {"kind": "multi", "max_length": 2},
    "size": {"kind": "categorical"},
    "code": {"kind": "categorical"},
}


def items() -> pl.DataFrame:
    """The items as a CSV file has them, with the names of the tower's inputs."""
    rows = range(ITEMS)
    return pl.DataFrame(
        {
            "item_id": [f"i{n}" for n in rows],
            "genres": [f"{GENRES[n % 4]}; {GENRES[(n + 1 + n // 8) % 4]}" for n in rows],
            "tags": ["a|b|c" if n == LONG else f"{'abc'[n % 3]}|d" for n in rows],
            "size": [SIZES[n // 2 % 4] for n in rows],
            "code": [None if n % 7 == 3 else str(n % 5) for n in rows],
        }
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("trained")
    items().rename({"genres": "main genres"}).write_csv(folder / "items.csv")
    events = [f"u{u},i{(u + n) % ITEMS},{1_600_000_000 + 60 * (10 * n + u)}\n" for u in range(24) for n in range(6)]
    (folder / "events.csv").write_text("user_id,item_id,timestamp\n" + "".join(events))
    sections = {
        "data": {"lists": {"main genres": ";"}},
        "features": {"query": {"user_id": {"kind": "id"}}, "candidate": FEATURES},
        "model": {"dimension": 4},
        "train": {"epochs": 2, "batch_size": 16},
    }
    recipe = parse_config(sections)
    prepare.run(recipe.data, folder / "events.csv", folder / "dataset", items=folder / "items.csv")
    train.run(recipe, folder / "dataset", folder / "run")
    export.run(folder / "run", folder / "bundle")
    return Bundle.open(folder / "bundle")


def same_vectors(bundle: Bundle, file: Path) -> bool:
    """Whether each row of the file of an item of the bundle gets the vector that it has there."""
    out = file.with_name("vectors.parquet")
    embed.run(bundle.path, out, items=file)
    frame = pl.read_parquet(out).filter(pl.col("item_id").is_in(bundle.item_ids.to_list()))
    rows = [bundle.item_rows[item] for item in frame["item_id"]]
    return np.allclose(frame["vector"].to_numpy(), bundle.item_vectors[rows], rtol=0, atol=1e-5)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_lists_are_cut_where_the_recipe_says(bundle: Bundle, tmp_path: Path, suffix: str) -> None:
    file, frame = tmp_path / f"items.{suffix}", items()[LONG + 1 :]
    frame.write_csv(file) if suffix == "csv" else frame.write_parquet(file)
    assert same_vectors(bundle, file)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_long_list_is_cut_as_in_training(bundle: Bundle, tmp_path: Path, suffix: str) -> None:
    file, frame = tmp_path / f"items.{suffix}", items()
    typed = frame.with_columns(pl.col("tags").str.split("|"))
    frame.write_csv(file) if suffix == "csv" else typed.write_parquet(file)
    assert same_vectors(bundle, file)


@pytest.mark.parametrize("sizes", [["1.0", "2.0"], ["2.0", "L"], ["1.0"]])
def test_a_row_has_one_vector_whatever_rows_are_beside_it(bundle: Bundle, tmp_path: Path, sizes: list[str]) -> None:
    items()[LONG + 1 :].filter(pl.col("size").is_in(sizes)).write_csv(tmp_path / "items.csv")
    assert same_vectors(bundle, tmp_path / "items.csv")


def test_numbers_are_known_beside_a_new_text(bundle: Bundle, tmp_path: Path) -> None:
    frame = items().with_columns(pl.col("code") + ".0")
    new = frame[:1].with_columns(item_id=pl.lit("new"), code=pl.lit("n/a"))
    pl.concat([frame, new]).write_csv(tmp_path / "items.csv")
    assert same_vectors(bundle, tmp_path / "items.csv")


def test_numbers_with_blanks_around_them_are_the_numbers(bundle: Bundle, tmp_path: Path) -> None:
    items().with_columns(pl.format(" {} ", "code")).write_csv(tmp_path / "items.csv")
    assert same_vectors(bundle, tmp_path / "items.csv")


def test_codes_with_gaps_are_the_tower_s_also_as_floats(bundle: Bundle, tmp_path: Path) -> None:
    """As pandas has a column of whole numbers of which some are missing."""
    items().with_columns(pl.col("code").cast(pl.Float64)).write_parquet(tmp_path / "items.parquet")
    assert same_vectors(bundle, tmp_path / "items.parquet")
