"""Bulk recall: what each user gets alone, in order, resumable after a kill, complete or not there at all."""

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.bundles import build_index
from pipelines.bundles.bulk import recall as command
from pipelines.bundles.bulk.parts import Shard, job_of
from pipelines.errors import DataError
from serving.bundle.manifest import read_manifest
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from serving.files import lock, staging
from serving.files.staging import OutputExistsError
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from tests.support.worlds.serving import GROUPS, ITEMS, USERS, seen_rows, write_world

SCHEMA = {"user_id": pl.String, "rank": pl.UInt32, "item_id": pl.String, "score": pl.Float32, "source": pl.String}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    write_world(tmp_path / "bundle")
    return tmp_path / "bundle"


def expected(user: str, k: int) -> list[tuple[str, int, str, float, str]]:
    """Worked out by hand: the unseen items of the user's group by row, then the others by row; see `write_world`."""
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
    frame = pl.read_parquet(out, glob=False)
    assert frame.schema == SCHEMA
    wanted = [row for user in users for row in expected(user, k)]
    assert frame.drop("score").rows() == [(*row[:3], row[4]) for row in wanted]
    assert frame["score"].to_list() == pytest.approx([row[3] for row in wanted], rel=1e-6)


ALL = [f"u{n}" for n in range(USERS)]


# The last is how one asks for all items: no list of that length fits into memory.
@pytest.mark.parametrize("k", [1, 7, ITEMS + 10, 10**12])
def test_every_user_of_the_bundle_gets_their_items(
    bundle: Path, tmp_path: Path, k: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(bundle, k, tmp_path / "out.parquet") == USERS
    rows = sum(len(expected(user, k)) for user in ALL)
    told = capsys.readouterr().err
    assert f"\nwrite: {rows:,} rows in " in told
    short = "" if k < ITEMS else f", or those that are left: {rows:,} rows"
    assert told.endswith(f"out.parquet: {USERS} users, the best {k:,} {'item' if k == 1 else 'items'} of each{short}\n")
    check(tmp_path / "out.parquet", ALL, k)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "out.parquet"]


def test_parts_and_batches_change_nothing(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PART_ROWS", 15)
    monkeypatch.setattr(command, "SEARCH_USERS", 2)
    command.run(bundle, 3, tmp_path / "out.parquet")
    check(tmp_path / "out.parquet", ALL, 3)


def test_a_bundle_that_takes_the_place_of_the_one_searched_names_no_item(bundle: Path, tmp_path: Path) -> None:
    searcher = command.open_searcher(bundle)
    write_world(bundle, item_ids=[f"other{row}" for row in range(ITEMS)], overwrite=True)
    command.write_all(searcher, 3, tmp_path / "out.parquet")
    check(tmp_path / "out.parquet", ALL, 3)


def test_shards_of_a_bundle_that_is_replaced_between_them_are_not_mixed(bundle: Path, tmp_path: Path) -> None:
    """An actor that opened the bundle before goes on with it, and its shards are no shards of the new one."""
    before, folder = command.open_searcher(bundle), tmp_path / "out"
    write_world(bundle, model_version="world-2", overwrite=True)
    command.write_all(before, 3, folder, shard=Shard(1, 2))
    was, now = (
        job_of("recall", manifest).rpartition("-")[2] for manifest in (before.bundle.manifest, read_manifest(bundle))
    )
    with pytest.raises(DataError) as error:
        command.write_all(command.open_searcher(bundle), 3, folder, shard=Shard(2, 2))
    assert str(error.value) == (
        f"{folder}: holds shards of bundle {was}; --shard 2/2 asks for bundle {now}: name another --out, or remove the "
        "folder"
    )


def test_a_bundle_that_is_replaced_while_it_is_opened_is_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced(*paths: Path) -> tuple[Bundle, ...]:
        opened = tuple(map(Bundle.open, paths))
        write_world(bundle, item_ids=[f"other{row}" for row in range(ITEMS)], overwrite=True)
        return opened

    monkeypatch.setattr(command, "verify", replaced)
    with pytest.raises(BundleError, match="another command has replaced it meanwhile"):
        command.open_searcher(bundle)


def test_listed_users_in_their_order_with_unknown_ones(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = ["u7", "nobody", "u0", "007"]
    (tmp_path / "users.txt").write_text("u7\nnobody\r\n\nu0\nu7\n007\n")
    assert command.run(bundle, 4, tmp_path / "out.parquet", users=tmp_path / "users.txt") == 4
    check(tmp_path / "out.parquet", users, 4)
    assert "users.txt: 2 of its 4 users, 'nobody' for one (the bundle has 'u0'), are not in" in capsys.readouterr().err


def test_keys_of_json_lines_that_nothing_reads_may_hold_anything(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "users.jsonl").write_text('{"user_id": "u7", "note": "x"}\n{"user_id": "u0", "note": 7}\n')
    assert command.run(bundle, 4, tmp_path / "out.parquet", users=tmp_path / "users.jsonl") == 2
    check(tmp_path / "out.parquet", ["u7", "u0"], 4)


def test_a_shard_of_users_of_another_form_is_warned_of_the_whole_file(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "SEARCH_USERS", 1)
    (tmp_path / "users.txt").write_text("U0\nU1\n")
    command.run(bundle, 4, tmp_path / "out", users=tmp_path / "users.txt", shard="2/2")
    check(tmp_path / "out" / "part-00002-of-00002.parquet", ["U1"], 4)
    told = capsys.readouterr().err
    assert "warning: " in told and "users.txt: 2 of its 2 users, 'U0' for one (the bundle has 'u0'), are not in" in told


def test_the_warning_of_a_url_shows_no_password(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = pytest.importorskip("fsspec", reason="needs the extra 'cloud'").filesystem("memory")
    memory.pipe_file("/anna:s3cret@shop/users.txt", b"nobody\n")
    try:
        command.run(bundle, 4, tmp_path / "out.parquet", users="memory://anna:s3cret@shop/users.txt")
    finally:
        memory.rm("/anna:s3cret@shop", recursive=True)
    told = capsys.readouterr().err
    assert "s3cret" not in told and "memory://***@shop/users.txt: 1 of its 1 user, 'nobody' for one" in told


def test_a_bundle_without_users_answers_any(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", users=0)
    (tmp_path / "users.txt").write_text("nobody\n")
    command.run(tmp_path / "bundle", 4, tmp_path / "out.parquet", users=tmp_path / "users.txt")
    check(tmp_path / "out.parquet", ["nobody"], 4)


def test_no_users_make_an_empty_table(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "users.txt").write_text("")
    assert command.run(bundle, 4, tmp_path / "out.parquet", users=tmp_path / "users.txt") == 0
    check(tmp_path / "out.parquet", [], 4)


def stop_after(monkeypatch: pytest.MonkeyPatch, searches: int) -> list[int]:
    """Lets that many searches pass and then interrupts; gives the list of users searched."""
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


SECOND = """
import sys
from pathlib import Path
from pipelines import recall as command
from serving.files.lock import BusyError
command.PART_ROWS = 9
try:
    command.run(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
except BusyError as error:
    print(error)
"""


@pytest.mark.parametrize("k", [3, 2])
def test_two_processes_never_work_on_one_output(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    """Of the same inputs (k = 3) or of others: the second is refused and takes nothing from the first."""
    monkeypatch.setattr(command, "PART_ROWS", 9)
    out = tmp_path / "out[1]*.parquet"
    said: list[str] = []
    original = Recaller.recall_users

    def recall_users(self: Recaller, query_rows, chosen, **options):  # type: ignore[no-untyped-def]
        if query_rows[0] == 6:  # in the midst: two parts are done, the third is begun
            deadline = time.monotonic() + 60
            while len([*tmp_path.rglob("*.arrow")]) < 2:  # the second is written meanwhile
                assert time.monotonic() < deadline
                time.sleep(0.01)
            before = sorted(tmp_path.rglob("*"))
            second = [sys.executable, "-c", SECOND, str(bundle), str(k), str(out)]
            said.append(subprocess.run(second, capture_output=True, text=True, timeout=60, check=True).stdout)
            assert sorted(tmp_path.rglob("*")) == before
        return original(self, query_rows, chosen, **options)

    monkeypatch.setattr(Recaller, "recall_users", recall_users)
    command.run(bundle, 3, out)
    assert said == [f"{out}: another process is working on it; wait for it, or name another --out\n"]
    check(out, ALL, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", out.name]


def test_a_lock_is_that_of_a_file_which_other_machines_know(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds, original = list[bool](), fcntl.flock

    def flock(handle: int, operation: int) -> None:
        kinds.append(stat.S_ISREG(os.fstat(handle).st_mode))
        original(handle, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    removed = list[str]()
    monkeypatch.setattr(lock, "remove", lambda path: (removed.append(path.name), staging.remove(path)))
    command.run(bundle, 3, tmp_path / "out.parquet")
    assert removed[-1] == ".lock" and len(removed) == 2
    assert kinds and all(kinds) and [path.name for path in tmp_path.glob(".*")] == []


def test_a_lock_that_its_holder_removed_meanwhile_is_taken_anew(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process ends between this one's opening of the lock and its locking: two could then hold one each."""
    hidden, original, seen = tmp_path / ".out.parquet.parts", fcntl.flock, []

    def flock(handle: int, operation: int) -> None:
        if not seen:
            shutil.rmtree(hidden)
        original(handle, operation)
        seen.append(hidden.exists())

    monkeypatch.setattr(fcntl, "flock", flock)
    command.run(bundle, 3, tmp_path / "out.parquet")
    assert seen == [False, True]
    check(tmp_path / "out.parquet", ALL, 3)


def test_parts_of_another_output_are_left_alone(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PART_ROWS", 9)
    with monkeypatch.context() as patch:
        stop_after(patch, searches=6)
        with pytest.raises(KeyboardInterrupt):
            command.run(bundle, 3, tmp_path / "out1.parquet")
    before = sorted(tmp_path.rglob("*"))
    command.run(bundle, 2, tmp_path / "out[1].parquet")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "out[1].parquet"])


def test_a_half_part_of_a_killed_process_goes_away(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.parquet"
    with monkeypatch.context() as patch:
        stop_after(patch, searches=0)
        with pytest.raises(KeyboardInterrupt):
            command.run(bundle, 3, out)
    (parts,) = tmp_path.glob(".out.parquet.parts/*/")
    (parts / ".000007.parquet.1.partial").write_text("half")
    with monkeypatch.context() as patch:
        stop_after(patch, searches=0)
        with pytest.raises(KeyboardInterrupt):
            command.run(bundle, 3, out)
    assert not list(parts.glob("*.partial"))
    command.run(bundle, 3, out)
    check(out, ALL, 3)


def test_a_taken_output_is_refused_before_any_work(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    out.write_text("precious")
    with pytest.raises(OutputExistsError):
        command.run(bundle, 3, out)
    with pytest.raises(OutputExistsError, match="is another kind of file: --overwrite replaces only what this command"):
        command.run(bundle, 3, out, overwrite=True)
    assert out.read_text() == "precious"
    listed = pl.DataFrame({"user_id": ["u1"]})
    listed.write_parquet(out)
    with pytest.raises(OutputExistsError, match=f"{out} is what this command reads; name another --out"):
        command.run(bundle, 3, out, users=out, overwrite=True)
    with pytest.raises(OutputExistsError, match=f"{out} is what this command reads; name another --out"):
        command.run(bundle, 3, out, users=f"file://{out}", overwrite=True)
    assert pl.read_parquet(out).equals(listed)
    command.run(bundle, 3, out, overwrite=True)
    check(out, ALL, 3)
    with pytest.raises(DataError, match=r"--out .*out\.csv: it is written as Parquet; name it .*out\.parquet"):
        command.run(bundle, 3, tmp_path / "out.csv")
    with pytest.raises(OutputExistsError, match=r"item_ids\.parquet is what this command reads; name another --out"):
        command.run(bundle, 3, bundle / "item_ids.parquet", overwrite=True)
    Bundle.open(bundle)


def test_a_folder_of_shards_that_cannot_be_made_is_refused_before_any_work(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "open_searcher", lambda path: pytest.fail("it was opened"))
    before = {*tmp_path.iterdir()}
    with pytest.raises(OSError, match=r"cannot be written: must be a path on this machine .*: 's3://…'"):
        command.run(bundle, 3, Path("s3://bucket/recalled"), shard="1/8")
    assert {*tmp_path.iterdir()} == before


def test_a_bundle_of_similar_items_recalls_nothing_for_users(tmp_path: Path) -> None:
    write_world(tmp_path / "items", lineage={"config": {"task": "similarity"}})
    with pytest.raises(DataError, match=r"items: task = 'similarity' finds items for items, not for users; serve it"):
        command.run(tmp_path / "items", 3, tmp_path / "out.parquet")


def test_k_must_be_positive(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--k must be at least 1, got 0"):
        command.run(bundle, 0, tmp_path / "out.parquet")


@pytest.mark.parametrize("of", [1, 2, 5, 30])
def test_shards_are_one_run_in_order(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: int) -> None:
    """Also where there are more shards than blocks: the empty ones have the columns."""
    monkeypatch.setattr(command, "SEARCH_USERS", 2)
    folder = tmp_path / "recalled"
    users = [command.run(bundle, 4, folder, shard=f"{number}/{of}") for number in range(of, 0, -1)]
    files = sorted(folder.glob("*.parquet"))
    assert len(files) == of and sum(users) == USERS
    for file in files:
        assert pl.read_parquet_schema(file) == SCHEMA
    pl.concat(map(pl.read_parquet, files)).write_parquet(tmp_path / "whole.parquet")
    check(tmp_path / "whole.parquet", ALL, 4)
    assert command.first_user(folder) == (ALL[0] if pl.read_parquet(files[0]).height else "")


@pytest.fixture(scope="module")
def approximate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a ScaNN index that finds most of the best.

    Users have seen up to 600 items: how many candidates ScaNN is asked for depends on who is in a search together.
    """
    bundle, rng = tmp_path_factory.mktemp("approximate") / "bundle", np.random.default_rng(3)
    users, items = 200, 3_000
    seen = [np.sort(rng.choice(items, size, replace=False)) for size in rng.integers(0, 600, users)]
    write_world(
        bundle,
        items=items,
        users=users,
        item_vectors=rng.normal(size=(items, 16)).astype(np.float32),
        query_vectors=rng.normal(size=(users, 16)).astype(np.float32),
        seen_offsets=np.cumsum([0, *map(len, seen)]),
        seen_items=np.concatenate(seen),
    )
    build_index.run(bundle, kind="scann", target_recall=0.8, target_k=20)
    return bundle


@pytest.fixture(scope="module")
def in_one_run(approximate: Path) -> pl.DataFrame:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "SEARCH_USERS", 7)
        command.run(approximate, 20, approximate.with_name("whole.parquet"))
    whole = pl.read_parquet(approximate.with_name("whole.parquet"))
    bundle = Bundle.open(approximate)
    exact = Recaller(bundle, ExactIndex(bundle.recall_vectors)).recall_users(np.arange(len(bundle.query_ids)), 20)[0]
    assert whole["item_id"].to_list() != bundle.item_ids.gather(exact.ravel()).to_list(), "it is approximate"
    return whole


@pytest.mark.parametrize("of", [1, 2, 5, 40])
def test_shards_of_an_approximate_index_are_one_run_in_order(
    approximate: Path, in_one_run: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: int
) -> None:
    monkeypatch.setattr(command, "SEARCH_USERS", 7)
    for number in range(of, 0, -1):
        command.run(approximate, 20, tmp_path, shard=f"{number}/{of}")
    frame = pl.concat(map(pl.read_parquet, sorted(tmp_path.glob("*.parquet"))))
    assert frame.drop("score").equals(in_one_run.drop("score"))
    assert frame["score"].to_numpy() == pytest.approx(in_one_run["score"].to_numpy(), abs=1e-6)


@pytest.mark.parametrize("of", [1, 3])
def test_a_block_holds_the_same_users_for_every_number_of_shards(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: int
) -> None:
    monkeypatch.setattr(command, "SEARCH_USERS", 5)
    blocks: list[list[int]] = []
    original = Recaller.recall_users

    def recall_users(self: Recaller, query_rows, k, **options):  # type: ignore[no-untyped-def]
        blocks.append(query_rows.tolist())
        return original(self, query_rows, k, **options)

    monkeypatch.setattr(Recaller, "recall_users", recall_users)
    for number in range(1, of + 1):
        command.run(bundle, 4, tmp_path / "out", shard=f"{number}/{of}")
    assert sorted(blocks) == [[*range(first, min(first + 5, USERS))] for first in range(0, USERS, 5)]


def test_a_killed_shard_goes_on_and_a_finished_one_stays(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PART_ROWS", 6)  # two users a part
    monkeypatch.setattr(command, "AT_A_TIME", 1)
    folder = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop_after(patch, searches=8)
        for number in (1, 2):
            with pytest.raises(KeyboardInterrupt) if number == 2 else nullcontext():
                command.run(bundle, 3, folder, shard=f"{number}/2")
    # The first one was killed just before it removed its parts.
    (folder / ".part-00001-of-00002.parquet.parts" / "job").mkdir(parents=True)
    with monkeypatch.context() as patch:
        done = stop_after(patch, searches=1_000)
        for number in (1, 2):
            assert command.run(bundle, 3, folder, shard=f"{number}/2") == USERS // 2
    assert not list(folder.glob(".*.parts"))
    assert done == [*range(8, USERS)]
    assert f"{folder / 'part-00001-of-00002.parquet'}: complete already" in capsys.readouterr().err
    pl.concat(map(pl.read_parquet, sorted(folder.glob("*.parquet")))).write_parquet(tmp_path / "whole.parquet")
    check(tmp_path / "whole.parquet", ALL, 3)
    with monkeypatch.context() as patch:
        done = stop_after(patch, searches=1_000)
        command.run(bundle, 3, folder, shard="1/2", overwrite=True)
    assert done == [*range(USERS // 2)]


@pytest.mark.parametrize("change", ["k", "users", "bundle"])
def test_shards_of_other_inputs_never_share_a_folder(bundle: Path, tmp_path: Path, change: str) -> None:
    users, folder = tmp_path / "users.txt", tmp_path / "out"
    users.write_text("\n".join(ALL))
    command.run(bundle, 3, folder, users=users, shard="1/2")
    before = sorted(folder.iterdir())
    if change == "users":
        users.write_text("\n".join(ALL[::-1]))
    if change == "bundle":
        write_world(bundle, overwrite=True, model_version="world-2")
    values = (
        "k 3; --shard 2/2 asks for k 2"
        if change == "k"
        else rf"{change} \w{{16}}; --shard 2/2 asks for {change} \w{{16}}"
    )
    with pytest.raises(DataError, match=f"holds shards of {values}: name another --out"):
        command.run(bundle, 2 if change == "k" else 3, folder, users=users, shard="2/2", overwrite=True)
    assert sorted(folder.iterdir()) == before
