"""`report` and `compare` name a user in no file and no line of output, unless they are asked to."""

from pathlib import Path

import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.evaluation import report
from pipelines.ingest import prepare
from pipelines.launch import compare
from tests.support.worlds import columns
from towers.config.sections import DataConfig

PERSON = "person-of-"


def naming(folder: Path) -> set[str]:
    """The files in which the id of a user stands; Parquet files, which are compressed, by their rows."""
    texts = {
        path.name: pl.read_parquet(path).write_ndjson().encode() if path.suffix == ".parquet" else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return {name for name, text in texts.items() if PERSON.encode() in text}


def test_users_are_named_only_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roles = ["user_id", "item_id", "timestamp", "device"]
    events = pl.DataFrame(columns.make_events(), schema=roles, orient="row")
    events = events.with_columns(user_id=PERSON + pl.col("user_id"))
    users = events.select("user_id").unique().with_columns(friend=pl.col("user_id").str.slice(-1))
    events.write_parquet(tmp_path / "events.parquet")
    users.write_parquet(tmp_path / "users.parquet")
    dataset = tmp_path / "dataset"
    split = DataConfig(split="leave_last_out")
    prepare.run(split, tmp_path / "events.parquet", dataset, users=tmp_path / "users.parquet")
    lineage = {"dataset": Dataset.open(dataset).manifest.fingerprint}
    bundles = [columns.write_bundle_of(dataset, name=name, seed=ord(name), lineage=lineage) for name in "ab"]
    reports = [tmp_path / "report-a", tmp_path / "report-b"]
    for named in (False, True):
        for bundle, out in zip(bundles, reports, strict=True):
            report.run(bundle, dataset, out, ks=[5], slices=["friend"], user_ids=named, overwrite=True)
            assert naming(out) == ({"per_user.parquet"} if named else set())
    for names, given in ((bundles, dataset), (reports, None)):
        for named in (False, True):
            out = tmp_path / "comparison"
            compare.run(
                [*map(str, names)], out, dataset=given, metric="recall@5", family="", user_ids=named, overwrite=True
            )
            assert naming(out) == ({"compare.html", "compare.json"} if named else set())
    told = capsys.readouterr()
    assert told.err and PERSON not in told.out + told.err
