"""Embedding files: the vectors of the bundle itself from the raw features it was made of; shards, resuming, errors."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.bundles.bulk import embed as command
from pipelines.errors import DataError
from serving.bundle.encoder import Encoder
from serving.bundle.reader import Bundle
from serving.files.staging import OutputExistsError
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow
GOLDEN = ROOT / "tests" / "golden"
BUNDLE = GOLDEN / "bundle"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.open(BUNDLE, verify=False)


def items(rows: int = 1_000) -> pl.DataFrame:
    """The raw features of the bundle's items, in the order of its rows."""
    return pl.read_parquet(GOLDEN / "dataset" / "items.parquet").drop("train_count").head(rows)


def written(out: Path, column: str) -> tuple[list[str], np.ndarray]:
    files = sorted(out.glob("*.parquet")) if out.is_dir() else [out]
    frame = pl.concat([pl.read_parquet(file, glob=False) for file in files])
    assert frame.schema == {column: pl.String, "vector": pl.Array(pl.Float32, 8)}
    return frame[column].to_list(), frame["vector"].to_numpy()


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_items_get_the_vectors_that_export_gave_them(bundle: Bundle, tmp_path: Path, suffix: str) -> None:
    path, frame = tmp_path / f"items.{suffix}", items()
    if suffix == "parquet":
        frame.write_parquet(path)
    elif suffix == "csv":
        frame.with_columns(pl.col("tags").list.join("|")).write_csv(path)
    else:
        frame.write_ndjson(path)
    assert command.run(BUNDLE, tmp_path / "out.parquet", items=path) == 1_000
    ids, vectors = written(tmp_path / "out.parquet", "item_id")
    rows = [bundle.item_names[row] for row in range(len(bundle.item_names))]
    assert dict(zip(ids, vectors.tolist(), strict=True)).keys() >= set(rows)
    places = [ids.index(item) for item in rows]
    assert np.allclose(vectors[places], bundle.item_vectors, rtol=0, atol=1e-5)


def test_users_get_the_vectors_that_export_gave_them(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = pl.read_parquet(GOLDEN / "dataset" / "users.parquet")
    names = bundle.item_names
    histories = {
        bundle.query_names[row]: names.at(bundle.seen(row).astype(np.int64)) for row in range(len(bundle.query_names))
    }
    users = users.with_columns(
        pl.Series("history", [histories.get(user, []) for user in users["user_id"]], dtype=pl.List(pl.String)),
        shoe_size=pl.lit(42),
    )
    users.write_parquet(tmp_path / "users.parquet")
    command.run(BUNDLE, tmp_path / "out.parquet", users=tmp_path / "users.parquet")
    ids, vectors = written(tmp_path / "out.parquet", "user_id")
    assert ids == users["user_id"].to_list()
    places = [ids.index(bundle.query_names[row]) for row in range(len(bundle.query_names))]
    assert np.allclose(vectors[places], bundle.query_vectors, rtol=0, atol=1e-5)
    said = capsys.readouterr().err
    assert f"{tmp_path / 'users.parquet'}: no column device: missing in every row\n" in said
    assert f"{tmp_path / 'users.parquet'}: not read, since the tower has no such input: shoe_size\n" in said


def test_unknown_items_push_no_known_one_out_of_a_history(bundle: Bundle, tmp_path: Path) -> None:
    (spec,) = bundle.manifest.histories
    known = bundle.item_names.at(np.arange(3))
    users = pl.DataFrame({"user_id": ["a", "b"], "history": [known, known + ["strange"] * (spec.length or 0)]})
    users.write_parquet(tmp_path / "users.parquet")
    command.run(BUNDLE, tmp_path / "out.parquet", users=tmp_path / "users.parquet")
    _, vectors = written(tmp_path / "out.parquet", "user_id")
    assert vectors[0].any() and np.array_equal(vectors[0], vectors[1])


def stop_after(monkeypatch: pytest.MonkeyPatch, rows: int) -> list[str]:
    """Lets about that many rows be encoded and then interrupts; gives the list of ids encoded."""
    done: list[str] = []
    original = Encoder.encode

    def encode(self: Encoder, requests):  # type: ignore[no-untyped-def]
        if len(done) >= rows:
            raise KeyboardInterrupt
        done.extend(request["item_id"] for request in requests)
        return original(self, requests)

    monkeypatch.setattr(Encoder, "encode", encode)
    return done


@pytest.mark.long
def test_shards_are_one_run_in_order_and_go_on_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BLOCK_ROWS", 7)
    monkeypatch.setattr(command, "PART_ROWS", 14)
    frame, folder = items(45), tmp_path / "out"
    frame.write_parquet(tmp_path / "items.parquet")
    command.run(BUNDLE, tmp_path / "whole.parquet", items=tmp_path / "items.parquet")
    with monkeypatch.context() as patch:
        stop_after(patch, rows=35)
        for number in (1, 2):
            # Three and four blocks; two of the four are a finished part.
            with pytest.raises(KeyboardInterrupt) if number == 2 else nullcontext():
                command.run(BUNDLE, folder, items=tmp_path / "items.parquet", shard=f"{number}/2")
    with monkeypatch.context() as patch:
        done = stop_after(patch, rows=1_000)
        rows = [command.run(BUNDLE, folder, items=tmp_path / "items.parquet", shard=f"{n}/2") for n in (1, 2)]
    assert rows == [21, 24]
    assert done == frame["item_id"].to_list()[35:]
    ids, vectors = written(folder, "item_id")
    assert ids == frame["item_id"].to_list()
    assert np.allclose(vectors, written(tmp_path / "whole.parquet", "item_id")[1], rtol=0, atol=1e-6)
    frame.with_columns(title=pl.lit("other")).write_parquet(tmp_path / "items.parquet")
    with pytest.raises(DataError, match=r"holds shards of items \w{16}; --shard 2/2 asks for items \w{16}: name"):
        command.run(BUNDLE, folder, items=tmp_path / "items.parquet", shard="2/2")


def test_rows_of_which_nothing_is_known_get_zero_and_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "items.csv").write_text("item_id,category\nnever,\n" + items(1)["item_id"][0] + ",\n")
    out = tmp_path / "out.parquet"
    command.run(BUNDLE, out, items=tmp_path / "items.csv")
    ids, vectors = written(out, "item_id")
    assert ids[0] == "never" and vectors.any(axis=1).tolist() == [False, True]
    said = "a zero vector for 1 of them, about whose features training learnt nothing"
    assert f"{out}: 2 vectors of 8 numbers; {said}\n" in capsys.readouterr().err


def test_no_rows_make_an_empty_table(tmp_path: Path) -> None:
    items(0).write_parquet(tmp_path / "items.parquet")
    assert command.run(BUNDLE, tmp_path / "out.parquet", items=tmp_path / "items.parquet") == 0
    assert written(tmp_path / "out.parquet", "item_id")[0] == []


def test_a_wrong_value_is_named_with_its_row_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item_id,created\na,1\nb,old\n")
    with pytest.raises(DataError) as error:
        command.run(BUNDLE, tmp_path / "out.parquet", items=tmp_path / "items.csv")
    assert str(error.value) == f"{tmp_path / 'items.csv'}, row 3, column 'created': not a number, got 'old'"
    assert not (tmp_path / "out.parquet").exists()


def test_neither_two_files_nor_none_nor_a_taken_output(tmp_path: Path) -> None:
    for given in ({}, {"users": "u.csv", "items": "i.csv"}):
        with pytest.raises(DataError, match="give one file of features: --users or --items"):
            command.run(BUNDLE, tmp_path / "out.parquet", **given)
    (tmp_path / "out.parquet").write_text("precious")
    with pytest.raises(OutputExistsError):
        command.run(BUNDLE, tmp_path / "out.parquet", items="i.csv")
