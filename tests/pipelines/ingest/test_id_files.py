"""Lists of user ids: the same ids from every kind of file, and what is wrong named with its row."""

import gzip
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import DataError
from pipelines.ingest.id_files import read_users

ids = st.lists(
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=6), max_size=12
)


@given(users=ids, suffix=st.sampled_from([".csv", ".parquet", ".jsonl", ".txt", ".tsv"]), packed=st.booleans())
@settings(max_examples=50)
def test_user_ids_come_back_from_every_kind_of_file(
    users: list[str], suffix: str, packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("users") / f"users{suffix}"
    frame = pl.DataFrame({"age": [1] * len(users), "user_id": users}, schema={"age": pl.Int64, "user_id": pl.String})
    if suffix == ".txt":
        path.write_text("".join(f"{user}\n" for user in users), encoding="utf-8")
    elif suffix == ".parquet":
        frame.write_parquet(path)
    elif suffix == ".jsonl" and users:
        frame.write_ndjson(path)
    else:
        path = path.with_suffix(".csv" if suffix == ".jsonl" else suffix)
        frame.write_csv(path, separator="\t" if suffix == ".tsv" else ",")
    if packed:
        path, plain = path.with_name(f"{path.name}.gz"), path.read_bytes()
        path.write_bytes(gzip.compress(plain))
    assert read_users(path).to_list() == list(dict.fromkeys(users))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("users.xlsx", b"", r"users\.xlsx: unknown kind of file '\.xlsx'; allowed are \.csv"),
        ("users.xlsx.gz", b"", r"users\.xlsx\.gz: unknown kind of file '\.xlsx'; allowed are \.csv"),
        ("absent.csv.gz", None, r"absent\.csv\.gz: no such file"),
        ("users.csv.gz", gzip.compress(b"user_id\nu1\n", mtime=0)[:-9], r"users\.csv\.gz: not a whole gzip file"),
        ("users.csv.gz", gzip.compress(b"user_id,age\nu1,2\nu2,3,4\n", mtime=0), r"users\.csv\.gz, row 3: 3 values"),
        ("absent.csv", None, r"absent\.csv: no such file"),
        ("users.csv", b"id,age\n1,2\n", r"no column 'user_id'; it has id, age"),
        ("users.csv", b"user_id,age\nu1,2\n,3\n", r"row 3, column 'user_id': no id"),
        ("users.csv", b"", r"users\.csv: the file is empty"),
        ("users.csv", b"user_id,age\nu1,2\nu2,3,4\n", r"users\.csv, row 3: 3 values, the header has 2$"),
        ("users.csv", b"user_id\nu1\n\xff\n", r"users\.csv, row 3: not UTF-8 \(byte 0xff\)"),
        ("users.csv", b"user_id\nu1\n\xc3", r"users\.csv, row 3: not UTF-8: the file ends inside a character"),
        ("users.txt", b"u1\n\xff\xfe", r"users\.txt, row 2: not UTF-8 \(byte 0xff\)"),
        ("users.parquet", b"PAR1", r"users\.parquet: not a whole Parquet file"),
        ("users.jsonl", b'{"user_id": 1.5}\n', r"must hold strings or whole numbers, holds Float64"),
        ("users.jsonl", b'{"user_id": null}\n{"user_id": "a"}\n', r"row 1, column 'user_id': no id"),
    ],
)
def test_a_wrong_file_of_users_is_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_users(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("users.txt", "u1\r\nu2\r\n"),
        ("users.csv", "user_id;age\nu1;2\nu2;3\n"),
        ("USERS.CSV", "user_id,age\nu1,2\nu2,3\n"),
        ("users.jsonl", '{"user_id": "u1"}\n{"user_id": "u2"}\n'),
        ("users.jsonl", '{"user_id": "u1", "address": {"city": "Oslo"}}\n{"user_id": "u2", "address": null}\n'),
    ],
)
def test_a_file_of_users_may_begin_with_a_byte_order_mark(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content.encode())
    assert read_users(tmp_path / name).to_list() == ["u1", "u2"]


def test_ids_that_look_like_numbers_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("user_id,age\n007,3\n7,4\n1e3,5\n")
    assert read_users(tmp_path / "users.csv").to_list() == ["007", "7", "1e3"]


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Decimal(38, 0), pl.Decimal(38, 10)], ids=str)
def test_whole_numbers_become_strings(tmp_path: Path, dtype: pl.DataType) -> None:
    pl.DataFrame({"user_id": [3, 12, 3]}, {"user_id": dtype}).write_parquet(tmp_path / "users.parquet")
    assert read_users(tmp_path / "users.parquet").to_list() == ["3", "12"]


def test_a_url_is_read_as_prepare_reads_it() -> None:
    memory = pytest.importorskip("fsspec", reason="needs the extra 'cloud'").filesystem("memory")
    memory.pipe_file("/asked/users.txt.gz", gzip.compress(b"u1\nu2\n"))
    memory.pipe_file("/asked/users.csv", b"user_id,age\nu1,2\n,3\n")
    assert read_users("memory://asked/users.txt.gz").to_list() == ["u1", "u2"]
    with pytest.raises(DataError, match=r"^memory://asked/users\.csv, row 3, column 'user_id': no id"):
        read_users("memory://asked/users.csv")
    with pytest.raises(DataError, match=r"^memory://asked/absent\.csv: no such file"):
        read_users("memory://asked/absent.csv")
    memory.rm("/asked", recursive=True)
