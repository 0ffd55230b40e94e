"""Gzip files: read as what they hold, under their own names; a broken one is a clear error and no copy is left."""

import gzip
import zlib
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipelines.errors import DataError
from pipelines.ingest.formats import copies
from tests.support.worlds.prepared import opened, pairs

pytestmark = pytest.mark.usefixtures("temporary")

EVENTS = b"user,item\nu1,a\nu2,b\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("e.csv.gz", EVENTS),
        ("E.CSV.GZ", EVENTS),
        ("e.tsv.gz", EVENTS.replace(b",", b"\t")),
        ("e.csv.gz", EVENTS.replace(b",", b";")),
        ("e.jsonl.gz", b'{"user":"u1","item":"a"}\n{"user":"u2","item":"b"}\n'),
        ("e.ndjson.gz", b'{"user":"u1","item":"a"}\n{"user":"u2","item":"b"}\n'),
        ("x.inter.gz", b"user_id:token\titem_id:token\nu1\ta\nu2\tb\n"),
        ("u.data.gz", b"u1\ta\t3\t5\nu2\tb\t4\t6\n"),
        ("ratings.dat.gz", b"u1::a::3::5\nu2::b::4::6\n"),
        ("e.txt.gz", b"u1 a\nu2 b\n"),
    ],
)
@pytest.mark.parametrize("folder", [False, True])
def test_a_gzip_file_is_read_as_what_it_holds(
    tmp_path: Path, temporary: Path, name: str, content: bytes, folder: bool
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    # Two members, as `cat a.gz b.gz` makes them.
    (source / name).write_bytes(gzip.compress(content[:7]) + gzip.compress(content[7:]))
    (tmp_path / "titles.csv.gz").write_bytes(gzip.compress(b"item,title\na,A\nb,B\n"))
    data = opened(tmp_path, source if folder else source / name, items=tmp_path / "titles.csv.gz")
    assert pairs(data) == [("u1", "a"), ("u2", "b")]
    assert data.items["title"].to_list() == ["A", "B"]
    assert data.manifest.source.files == (name, "titles.csv.gz")
    assert list(temporary.iterdir()) == []


def test_a_folder_of_gzip_files_is_a_given_split_with_its_items(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, text in {"train": "u1,a\nu2,b\n", "test": "u1,b\n"}.items():
        (source / f"{name}.csv.gz").write_bytes(gzip.compress(b"user,item\n" + text.encode()))
    (source / "items.jsonl.gz").write_bytes(gzip.compress(b'{"item":"a","title":"A"}\n{"item":"b","title":"B"}\n'))
    data = opened(tmp_path, source)
    assert data.manifest.split.kind == "given" and data.manifest.events["test"] == 1
    assert data.items["title"].to_list() == ["A", "B"]


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        # The line, not the record: a quoted line break comes before the bad row.
        ("e.csv.gz", b'user,item,note\nu1,a,"x\ny"\nu2,,\nu2,b,\n', r"row 4, column 'item': no id"),
        ("e.csv.gz", b"user,item\nu1,a\nu2,b\nu3,b,c\n", r"row 4: 3 values, the header has 2"),
        ("e.csv.gz", b"user,item\nu1,a\nu2,\xff\n", r"row 3: not UTF-8 \(byte 0xff\)"),
        ("e.jsonl.gz", b'{"user":"u1","item":"a"}\n\n[]\n', r"row 3: not a JSON object"),
        ("e.txt.gz", b"u1 a\nu2 b c\n", r"row 2, column 'line': expected two ids"),
    ],
)
def test_a_bad_row_has_the_name_and_line_of_the_gzip_file(
    tmp_path: Path, temporary: Path, name: str, content: bytes, where: str
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content))
    options = {"format": "pairs"} if name == "e.txt.gz" else {}
    with pytest.raises(DataError, match=rf"^{path}, {where}"):
        opened(tmp_path, path, **options)
    assert list(temporary.iterdir()) == []
    data = opened(tmp_path, path, on_bad_rows="skip", **options)
    rejects = pl.read_csv(data.path / "rejects.csv")
    assert rejects["file"].to_list() == [name]
    assert rejects["row"].to_list() == [int(where.split()[1].strip(",:"))]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_gzip_file_cut_or_altered_anywhere_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    whole = gzip.compress(EVENTS * 3, mtime=0)
    if data.draw(st.booleans()):
        broken = whole[: data.draw(st.integers(1, len(whole) - 1))]
    else:
        # The 10 bytes of the header hold a time and a system, which may be any.
        place = data.draw(st.integers(10, len(whole) - 1))
        broken = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    with suppress(EOFError, OSError, zlib.error):
        # A few bits fill the last byte of the packed text, and change nothing.
        assume(gzip.decompress(broken) != EVENTS * 3)
    path = tmp_path / "e.csv.gz"
    path.write_bytes(broken)
    with pytest.raises(DataError, match=rf"^{path}: not a whole gzip file \(cut short, altered or not packed\): "):
        opened(tmp_path, path, on_bad_rows="skip")


@pytest.mark.parametrize("content", [b"", gzip.compress(b"", mtime=0)])
def test_an_empty_gzip_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "e.csv.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^{path}: the file is empty$"):
        opened(tmp_path, path)


def test_a_text_that_is_not_packed_is_refused_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "e.csv.gz"
    path.write_bytes(EVENTS)
    with pytest.raises(DataError, match=rf"^{path}: not a whole gzip file .*Not a gzipped file"):
        opened(tmp_path, path, format="csv")


@pytest.mark.parametrize("name", ["e.csv", "e.tsv", "e.jsonl", "e.parquet", "e.inter", "e.txt", "u.data"])
@pytest.mark.parametrize("on_bad_rows", ["error", "skip"])
def test_a_gzip_file_without_the_ending_is_named_as_one(tmp_path: Path, name: str, on_bad_rows: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(EVENTS))
    with pytest.raises(DataError, match=rf"^{path}: a gzip file; rename it to {name}.gz$"):
        opened(tmp_path, path, on_bad_rows=on_bad_rows)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DataError, match=rf"^{path}.gz: packed twice; unpack it once$"):
        opened(tmp_path, tmp_path / f"{name}.gz", on_bad_rows=on_bad_rows)


def test_a_file_beside_its_packed_self_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "e.csv").write_bytes(EVENTS)
    (source / "e.csv.gz").write_bytes(gzip.compress(EVENTS))
    with pytest.raises(DataError, match=rf"^{source}: holds e.csv.gz and the same file without .gz; keep one of them"):
        opened(tmp_path, source)


def test_a_full_temporary_folder_is_named(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "e.csv.gz"
    path.write_bytes(gzip.compress(EVENTS))
    monkeypatch.setattr(copies.shutil, "copyfileobj", full)
    wanted = f"^{path}: no room for its copy in {temporary}; the variable TMPDIR names another folder$"
    with pytest.raises(DataError, match=wanted):
        opened(tmp_path, path)
    assert list(temporary.iterdir()) == []
