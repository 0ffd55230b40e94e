"""Bulk recall: what each user gets alone, in order, resumable after a kill, complete or not there at all."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_world import GROUPS, ITEMS, USERS, seen_rows, write_world

from pipelines import recall as command
from pipelines.errors import DataError
from pipelines.users_file import read_users
from serving.recall import Recaller
from serving.staging import OutputExistsError


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    write_world(tmp_path / "bundle")
    return tmp_path / "bundle"


def expected(user: str, k: int) -> list[tuple[str, int, str, float, str]]:
    """Worked out by hand: the unseen items of the user's group by row, then the others by row; see serving_world."""
    if user not in {f"u{n}" for n in range(USERS)}:
        return [(user, rank + 1, f"i{rank}", 10.0 * (ITEMS - rank), "popular") for rank in range(min(k, ITEMS))]
    number = int(user[1:])
    unseen = [row for row in range(ITEMS) if row not in seen_rows(number)]
    best = sorted(unseen, key=lambda row: (row % GROUPS != number % GROUPS, row))[:k]
    scores = [(row % GROUPS == number % GROUPS) + 1 - row / ITEMS for row in best]
    return [
        (user, rank, f"i{row}", score, "user") for rank, (row, score) in enumerate(zip(best, scores, strict=True), 1)
    ]


def check(out: Path, users: list[str], k: int) -> None:
    frame = pl.read_parquet(out)
    assert frame.schema == {
        "user_id": pl.String,
        "rank": pl.UInt32,
        "item_id": pl.String,
        "score": pl.Float32,
        "source": pl.String,
    }
    wanted = [row for user in users for row in expected(user, k)]
    assert frame.drop("score").rows() == [(*row[:3], row[4]) for row in wanted]
    assert frame["score"].to_list() == pytest.approx([row[3] for row in wanted], rel=1e-6)


ALL = [f"u{n}" for n in range(USERS)]


@pytest.mark.parametrize("k", [1, 7, ITEMS + 10])
def test_every_user_of_the_bundle_gets_their_items(bundle: Path, tmp_path: Path, k: int) -> None:
    assert command.run(bundle, k, tmp_path / "out.parquet") == USERS
    check(tmp_path / "out.parquet", ALL, k)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "out.parquet"]


def test_parts_and_batches_change_nothing(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PART_ROWS", 15)
    monkeypatch.setattr(command, "SEARCH_USERS", 2)
    command.run(bundle, 3, tmp_path / "out.parquet")
    check(tmp_path / "out.parquet", ALL, 3)


def test_listed_users_in_their_order_with_unknown_ones(bundle: Path, tmp_path: Path) -> None:
    users = ["u7", "nobody", "u0", "007"]
    (tmp_path / "users.txt").write_text("u7\nnobody\r\n\nu0\nu7\n007\n")
    assert command.run(bundle, 4, tmp_path / "out.parquet", users=tmp_path / "users.txt") == 4
    check(tmp_path / "out.parquet", users, 4)


def test_no_users_make_an_empty_table(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "users.txt").write_text("")
    assert command.run(bundle, 4, tmp_path / "out.parquet", users=tmp_path / "users.txt") == 0
    check(tmp_path / "out.parquet", [], 4)


def stop_after(monkeypatch: pytest.MonkeyPatch, searches: int) -> list[int]:
    """Lets so many searches pass and then interrupts; gives the list of users searched."""
    done: list[int] = []
    original = Recaller.recall_users

    def recall_users(self: Recaller, query_rows, k, **options):  # type: ignore[no-untyped-def]
        if len(done) >= searches:
            raise KeyboardInterrupt
        done.extend(query_rows.tolist())
        return original(self, query_rows, k, **options)

    monkeypatch.setattr(Recaller, "recall_users", recall_users)
    return done


def test_a_killed_run_goes_on_where_it_was(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PART_ROWS", 9)  # three users a part
    out = tmp_path / "out.parquet"
    with monkeypatch.context() as patch:
        stop_after(patch, searches=6)
        with pytest.raises(KeyboardInterrupt):
            command.run(bundle, 3, out)
    assert not out.exists()
    with monkeypatch.context() as patch:
        done = stop_after(patch, searches=1_000)
        command.run(bundle, 3, out)
    assert done == [6, 7, 8, 9, 10, 11]
    check(out, ALL, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "out.parquet"]


def other_k(bundle: Path, out: Path, users: Path) -> None:
    command.run(bundle, 2, out, users=users)
    check(out, ALL, 2)


def other_users(bundle: Path, out: Path, users: Path) -> None:
    users.write_text("\n".join(reversed(ALL)))
    command.run(bundle, 3, out, users=users)
    check(out, ALL[::-1], 3)


def other_bundle(bundle: Path, out: Path, users: Path) -> None:
    write_world(bundle, overwrite=True, model_version="world-2", item_ids=[f"j{row}" for row in range(ITEMS)])
    command.run(bundle, 3, out, users=users)
    assert pl.read_parquet(out)["item_id"].str.starts_with("j").all()
    assert pl.read_parquet(out)["user_id"].unique(maintain_order=True).to_list() == ALL


@pytest.mark.parametrize("change", [other_k, other_users, other_bundle])
def test_parts_of_other_inputs_are_never_used(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path, Path, Path], None]
) -> None:
    monkeypatch.setattr(command, "PART_ROWS", 9)
    users, out = tmp_path / "users.txt", tmp_path / "out.parquet"
    users.write_text("\n".join(ALL))
    with monkeypatch.context() as patch:
        stop_after(patch, searches=3)
        with pytest.raises(KeyboardInterrupt):
            command.run(bundle, 3, out, users=users)
    change(bundle, out, users)
    assert not list(tmp_path.glob(".*"))


def test_a_taken_output_is_refused_before_any_work(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    out.write_text("precious")
    with pytest.raises(OutputExistsError):
        command.run(bundle, 3, out)
    assert out.read_text() == "precious"
    command.run(bundle, 3, out, overwrite=True)
    check(out, ALL, 3)


def test_k_must_be_positive(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--k must be at least 1, got 0"):
        command.run(bundle, 0, tmp_path / "out.parquet")


ids = st.lists(
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=6), max_size=12
)


@given(users=ids, suffix=st.sampled_from([".csv", ".parquet", ".jsonl", ".txt", ".tsv"]))
@settings(max_examples=80, deadline=None)
def test_user_ids_come_back_from_every_kind_of_file(
    users: list[str], suffix: str, tmp_path_factory: pytest.TempPathFactory
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
    assert read_users(path).to_list() == list(dict.fromkeys(users))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("users.xlsx", b"", r"users\.xlsx: unknown kind of file '\.xlsx'; allowed are \.csv"),
        ("absent.csv", None, r"absent\.csv: no such file"),
        ("users.csv", b"id,age\n1,2\n", r"no column 'user_id'; it has id, age"),
        ("users.csv", b"user_id,age\nu1,2\n,3\n", r"column 'user_id', row 2: no id"),
        ("users.csv", b"", r"users\.csv: cannot be read"),
        ("users.txt", b"\xff\xfe", r"users\.txt: cannot be read"),
        ("users.parquet", b"PAR1", r"users\.parquet: cannot be read"),
        ("users.jsonl", b'{"user_id": 1.5}\n', r"must hold strings or whole numbers, holds Float64"),
        ("users.jsonl", b'{"user_id": null}\n{"user_id": "a"}\n', r"column 'user_id', row 1: no id"),
    ],
)
def test_a_wrong_file_of_users_is_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_users(tmp_path / name)


def test_ids_that_look_like_numbers_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("user_id,age\n007,3\n7,4\n1e3,5\n")
    assert read_users(tmp_path / "users.csv").to_list() == ["007", "7", "1e3"]


def test_whole_numbers_become_strings(tmp_path: Path) -> None:
    pl.DataFrame({"user_id": [3, 12, 3]}).write_parquet(tmp_path / "users.parquet")
    assert read_users(tmp_path / "users.parquet").to_list() == ["3", "12"]
