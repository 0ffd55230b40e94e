"""Recall on engines: one searcher a process, the rows of one `towers recall`, and the programs of the pages."""

import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines import engines, index, recall
from pipelines.errors import DataError
from serving.errors import BundleError
from tests.support.pages.programs import LOCAL_RAY, ended, needs, program
from tests.support.worlds.serving import ITEMS, seen_rows, write_world

PARTS, MANY_USERS, MANY_ITEMS, K = 7, 5_000, 2_000, 10
PROCESSES = 2


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write_world(tmp_path / "bundle")
    return tmp_path / "bundle"


def test_a_bundle_is_opened_once_and_again_when_it_is_another(small: Path) -> None:
    first = engines.searcher(small)
    assert engines.searcher(small) is first
    assert "query_ids" not in vars(first.bundle), "the ids of all users stay on disk in each process"
    write_world(small, overwrite=True, model_version="world-2")
    assert engines.searcher(small).bundle.manifest.model_version == "world-2"


@pytest.mark.parametrize("more", [0, 1])
def test_a_bundle_that_another_one_replaced_gives_nobody_the_list_of_another_user(
    small: Path, tmp_path: Path, more: int
) -> None:
    """The ids of all users are read only now, those of the vectors with the bundle."""
    opened = engines.searcher(small)
    users = opened.bundle.manifest.queries + more
    names = [f"u{row}" for row in reversed(range(users))]
    write_world(small, overwrite=True, model_version="world-2", users=users, query_ids=names)
    for _ in range(2):
        with pytest.raises(BundleError, match="another command has replaced it meanwhile"):
            recall.write_all(opened, 3, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_no_bundle_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=str(tmp_path / "none")):
        engines.searcher(tmp_path / "none")


def test_a_batch_gets_the_rows_of_one_run_in_its_own_order(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "SEARCH_USERS", 2)
    users = ["u7", "nobody", "u0", "u3", "7"]
    (tmp_path / "users.txt").write_text("\n".join(users))
    recall.run(small, 4, tmp_path / "out.parquet", users=tmp_path / "users.txt")
    assert engines.table(engines.searcher(small), pl.Series(users), 4).equals(pl.read_parquet(tmp_path / "out.parquet"))


def test_a_user_twice_gets_two_lists_and_no_user_none(small: Path) -> None:
    twice = engines.table(engines.searcher(small), pl.Series(["u1", "u1"]), 3)
    assert twice.head(3).equals(twice.tail(3)) and twice.height == 6
    assert engines.table(engines.searcher(small), pl.Series([], dtype=pl.String), 3).schema == twice.schema


def test_a_k_above_the_catalogue_gives_all_unseen_items(small: Path) -> None:
    # No list of that length fits into memory.
    found = engines.table(engines.searcher(small), pl.Series(["u1"]), 10**12)
    assert found.height == ITEMS - len(set(seen_rows(1)))


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Decimal(38, 0), pl.Decimal(38, 10)], ids=str)
def test_whole_numbers_are_ids_as_text(small: Path, dtype: pl.DataType) -> None:
    users = pl.Series([7, 8], dtype=dtype)
    assert engines.table(engines.searcher(small), users, 1)["user_id"].to_list() == ["7", "8"]


@pytest.mark.parametrize(
    ("users", "k", "told"),
    [
        (["u1"], 0, "k must be at least 1, got 0"),
        ([1.5], 3, "user ids must be strings or whole numbers, got Float64"),
        ([Decimal("1.5")], 3, r"user ids must be strings or whole numbers, got Decimal\(.*"),
        (["u1", None, ""], 3, "no user id in 2 rows of 3; leave them out"),
    ],
)
def test_a_wrong_batch_is_refused(small: Path, users: list[object], k: int, told: str) -> None:
    with pytest.raises(DataError, match=f"^{told}$"):
        engines.table(engines.searcher(small), pl.Series(users), k)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bundle` with five blocks of users and an index of ScaNN, `users.parquet`, and the `whole` run of one process."""
    folder = tmp_path_factory.mktemp("shared")
    rng = np.random.default_rng(0)
    write_world(
        folder / "bundle",
        items=MANY_ITEMS,
        users=MANY_USERS,
        item_vectors=rng.normal(size=(MANY_ITEMS, 8)).astype(np.float32),
        query_vectors=rng.normal(size=(MANY_USERS, 8)).astype(np.float32),
    )
    index.run(folder / "bundle", kind="scann")
    users = [*(f"u{n}" for n in rng.permutation(MANY_USERS)), "nobody"]
    pl.DataFrame({"user_id": users}).write_parquet(folder / "users.parquet")
    recall.run(folder / "bundle", K, folder / "whole.parquet")
    recall.run(folder / "bundle", K, folder / "listed.parquet", users=folder / "users.parquet")
    return folder


def opened(said: str) -> int:
    """How often a bundle was opened, by what the console says of the check of its files."""
    return said.count("verify: ")


@pytest.mark.long
@needs("ray", "pip install -e '.[ray]'")
def test_ray_does_all_parts_with_one_searcher_a_process(shared: Path, tmp_path: Path) -> None:
    changes = {
        "/shared/bundle": str(shared / "bundle"),
        "/shared/recalled": str(tmp_path / "recalled"),
        ", 64\n": f", {PARTS}\n",
        ", 100, ": f", {K}, ",
        "size=4": f"size={PROCESSES}",
        "num_cpus=8": "num_cpus=1",
    }
    said = ended(LOCAL_RAY + program("docs/service/bulk.md", "import ray", changes), tmp_path)
    assert f"{MANY_USERS} users" in said
    assert opened(said) == PROCESSES
    files = sorted((tmp_path / "recalled").glob("*.parquet"))
    assert len(files) == PARTS
    assert pl.concat(map(pl.read_parquet, files)).equals(pl.read_parquet(shared / "whole.parquet"))


@pytest.mark.long
@needs("pyspark", "pip install 'pyspark[sql]'")
def test_spark_maps_users_to_their_items_with_one_searcher_a_process(shared: Path, tmp_path: Path) -> None:
    changes = {
        "/shared/bundle": str(shared / "bundle"),
        "/shared/users.parquet": str(shared / "users.parquet"),
        "/shared/recalled": str(tmp_path / "recalled"),
        ", 100)": f", {K})",
        "repartition(64)": f"repartition({PARTS})",
        ".builder.": f'.builder.master("local[{PROCESSES}]").config("spark.ui.enabled", "false").',
    }
    of_page = program("docs/service/bulk.md", "pyspark", changes)
    said = ended(of_page, tmp_path, PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    assert 1 <= opened(said) <= PROCESSES
    files = sorted((tmp_path / "recalled").glob("*.parquet"))
    assert len(files) == PARTS
    found, wanted = pl.read_parquet(files), pl.read_parquet(shared / "listed.parquet")
    users = found["user_id"].unique(maintain_order=True)
    assert found["user_id"].rle().len() == len(users) == MANY_USERS + 1, "the rows of a user are apart"
    order = wanted.with_columns(pl.col("rank").cast(pl.Int32)).sort("user_id", maintain_order=True)
    assert found.sort("user_id", maintain_order=True).equals(order)
