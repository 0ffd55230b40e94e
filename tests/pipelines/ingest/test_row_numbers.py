"""Bad rows are named by the line of their file, and none vanishes: every line is an event, a bad row or blank."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.ingest import prepare
from towers.config.sections import DataConfig

ALL_TRAIN = DataConfig(valid_share=0, test_share=0)


def skipped(tmp_path: Path, name: str, content: str, **options: object) -> pl.DataFrame:
    """The rejects of a file."""
    (tmp_path / name).write_bytes(content.encode())
    prepare.run(ALL_TRAIN, tmp_path / name, tmp_path / "out", on_bad_rows="skip", overwrite=True, **options)
    rejects = tmp_path / "out" / "rejects.csv"
    return pl.read_csv(rejects, infer_schema=False) if rejects.exists() else pl.DataFrame({"row": []})


def events(tmp_path: Path) -> list[tuple[str, str]]:
    data = Dataset.open(tmp_path / "out")
    train = data.events("train")
    users, items = data.users["user_id"], data.items["item_id"]
    return sorted((users[int(u)], items[int(i)]) for u, i in zip(train.user, train.item, strict=True))


# The note of the first event spans lines 2 to 4, so the second is on line 5 and the third on 6.
QUOTED = 'user,item,note\nu1,a,"one\ntwo\nthree"\nu2,b,x\n{bad}\nu4,d,y\n'


@pytest.mark.parametrize("bad", [",c,z", "u3,,z", "u3,c,z,too many"])
def test_a_bad_row_after_a_quoted_line_break_is_named_by_its_line(tmp_path: Path, bad: str) -> None:
    (tmp_path / "e.csv").write_text(QUOTED.format(bad=bad))
    with pytest.raises(DataError, match=r"e.csv, row 6[,:]"):
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out")
    assert skipped(tmp_path, "e.csv", QUOTED.format(bad=bad))["row"].to_list() == ["6"]
    assert events(tmp_path) == [("u1", "a"), ("u2", "b"), ("u4", "d")]


def test_both_readers_name_the_line_on_which_a_row_begins(tmp_path: Path) -> None:
    # Too many values on the last line make the slow reader read all; without them the fast one does.
    text = 'user,item,note\n"",a,"x\ny"\n\n"u2","b","p\r\nq\nr"\nu3,,"s\nt"\n,c,\n'
    assert sorted(map(int, skipped(tmp_path, "e.csv", text)["row"])) == [2, 8, 10]
    slow = skipped(tmp_path, "e.csv", text + "u4,d,e,f\n")
    assert sorted(map(int, slow["row"])) == [2, 8, 10, 11]


CELL = st.sampled_from(["", "k", "a\nb", "c\r\nd\n\ne", 'f"g', "h,i"])
LINE = st.one_of(st.none(), st.tuples(st.booleans(), CELL, st.booleans()))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(LINE, min_size=1, max_size=8), ragged=st.booleans())
def test_rows_of_any_csv_are_counted_as_an_editor_counts_lines(
    tmp_path: Path, lines: list[tuple[bool, str, bool] | None], ragged: bool
) -> None:
    text, good, wanted = "note,user,item\nx,u,i\n", 1, []
    for line in lines:
        row = text.count("\n") + 1
        if line is None:
            text += "\n"
            continue
        has_user, note, has_item = line
        quoted = '"' + note.replace('"', '""') + '"' if note else ""
        text += f"{quoted},{'u' if has_user else ''},{f'i{row}' if has_item else ''}\n"
        good += has_user and has_item
        wanted += [] if has_user and has_item else [row]
    if ragged:
        wanted.append(text.count("\n") + 1)
        text += "x,u,i,too many\n"
    assert sorted(map(int, skipped(tmp_path, "e.csv", text)["row"])) == wanted
    assert len(events(tmp_path)) == good


@pytest.mark.parametrize("blank", ["", "\n", "\r\n"])
@pytest.mark.parametrize("name", ["e.csv", "e.tsv", "u.data"])
def test_a_row_of_empty_cells_has_no_id_and_a_blank_line_is_no_row(tmp_path: Path, name: str, blank: str) -> None:
    header = "" if name == "u.data" else "user,item,rating,time\n"
    text = header + f"u1,a,1,5\n{blank},,,\n{blank}u2,b,2,6\n{blank}"
    rejects = skipped(tmp_path, name, text if name == "e.csv" else text.replace(",", "\t"))
    row = 2 + bool(header) + bool(blank)
    assert rejects.select("row", "reason").rows() == [(str(row), "no id")]
    assert events(tmp_path) == [("u1", "a"), ("u2", "b")]


@pytest.mark.parametrize("folder", [False, True])
def test_lists_are_split_at_runs_of_tabs_and_blanks(tmp_path: Path, folder: bool) -> None:
    lists = "u1\ta\tb\n u2  a \t c\t\nu3\n"
    source = tmp_path / "lists"
    source.mkdir()
    (source / "train.txt").write_text(lists)
    (source / "test.txt").write_text("u1\tc\n")
    prepare.run(ALL_TRAIN, source if folder else source / "train.txt", tmp_path / "out")
    assert events(tmp_path) == [("u1", "a"), ("u1", "b"), ("u2", "a"), ("u2", "c")]


@pytest.mark.parametrize("format", ["auto", "lightgcn", "sequences", "pairs"])
@pytest.mark.parametrize("on_bad_rows", ["error", "skip"])
def test_lists_without_blanks_are_refused_with_their_first_line(tmp_path: Path, format: str, on_bad_rows: str) -> None:
    (tmp_path / "e.txt").write_text("u1,a\nu2,b\n")
    with pytest.raises(DataError, match=r"e.txt, row 1.*, got 'u1,a'"):
        prepare.run(ALL_TRAIN, tmp_path / "e.txt", tmp_path / "out", format=format, on_bad_rows=on_bad_rows)


@pytest.mark.parametrize("key", ["clicks", "timestamp"])
@pytest.mark.parametrize("value", ["9223372036854775808", "18446744073709551615", "18446744073709551617", "-1e300"])
def test_a_json_number_beyond_64_bits_is_a_bad_row(tmp_path: Path, key: str, value: str) -> None:
    lines = [f'{{"user":"u{n}","item":"a","{key}":{n}}}' for n in range(1, 3)]
    text = "\n".join([*lines, f'{{"user":"u3","item":"a","{key}":{value}}}']) + "\n"
    rejects = skipped(tmp_path, "e.jsonl", text)
    assert rejects.select("row", "column", "value").rows() == [("3", key, value)]
    assert "wrong type: beyond 64 bits" in rejects["reason"][0]


def test_a_row_of_json_lines_with_several_wrong_values_is_one_bad_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [f'{{"user":"u{n}","item":"a","p":1,"q":"x","r":2}}' for n in range(6)]
    bad = ['{"user":"v","item":"a","p":1e300,"q":2,"r":{}}', '{"user":"v","item":"a","p":1,"q":3,"r":"y"}'] * 2
    rejects = skipped(tmp_path, "e.jsonl", "\n".join([*good, *bad]) + "\n")
    assert sorted(rejects.select("row", "column", "value").rows()) == [
        ("10", "q", "3"), ("7", "p", "1e300"), ("8", "q", "3"), ("9", "p", "1e300")
    ]  # fmt: skip
    assert Dataset.open(tmp_path / "out").manifest.rejected == 4
    # 4 of 10 rows are less than half of them.
    assert "warning" not in capsys.readouterr().err


def test_a_json_number_of_64_bits_and_a_long_id_are_kept(tmp_path: Path) -> None:
    largest = 2**63 - 1
    text = f'{{"user":{2**64 - 1},"item":1,"clicks":{largest}}}\n{{"user":2,"item":1,"clicks":{-largest - 1}}}\n'
    assert skipped(tmp_path, "e.jsonl", text)["row"].to_list() == []
    context = Dataset.open(tmp_path / "out").context("train")
    assert context is not None and sorted(context.collect()["clicks"].to_list()) == [-largest - 1, largest]
    assert events(tmp_path) == [(str(2**64 - 1), "1"), ("2", "1")]


@pytest.mark.parametrize(
    ("suffix", "cell"),
    [("csv", "1e400"), *((suffix, cell) for suffix in ("csv", "parquet", "jsonl") for cell in ("-1e300", "3.5e38"))],
)
@pytest.mark.parametrize("where", ["context", "items", "users"])
def test_a_number_beyond_float32_is_a_bad_row(tmp_path: Path, cell: str, where: str, suffix: str) -> None:
    name = {"context": "user", "items": "item", "users": "user"}[where]
    good = pl.DataFrame({"user": ["u1", "u2", "u3"], "item": ["a", "b", "c"]})
    frame = good.select(name) if where != "context" else good
    if suffix == "csv":
        frame = frame.with_columns(size=pl.Series(["1", "2.5", cell]))
    else:
        frame = frame.with_columns(size=pl.Series([1.0, 2.5, float(cell)]))
    path = tmp_path / f"x.{suffix}"
    {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson}[suffix](path)
    good.write_csv(tmp_path / "good.csv")
    files = {} if where == "context" else {where: path}
    row = 4 if suffix == "csv" else 3
    with pytest.raises(DataError) as caught:
        prepare.run(ALL_TRAIN, tmp_path / "good.csv" if files else path, tmp_path / "out", **files)
    assert f"x.{suffix}, row {row}, column 'size': beyond ±3.4e38" in str(caught.value)
    written = cell if suffix == "csv" else repr(float(cell))
    assert f"got {written!r}" in str(caught.value)


def test_the_largest_float32_is_kept_and_a_time_beyond_all_is_told_as_written(tmp_path: Path) -> None:
    skipped(tmp_path, "e.csv", "user,item,size\nu1,a,3.4028234e38\nu2,b,-3.4028234e38\n,c,1\n")
    context = Dataset.open(tmp_path / "out").context("train")
    assert context is not None and context.collect()["size"].to_list() == [3.4028234e38, -3.4028234e38]
    rejects = skipped(tmp_path, "e.csv", "user,item,time,rating\nu1,a,5,1\nu2,b,1e400,1\nu3,c,7,1e400\n")
    assert rejects["value"].to_list() == ["1e400", "1e400"]
