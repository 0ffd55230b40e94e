"""Ids as mapped tables: what a list and a dictionary say, from the files themselves, for any strings."""

import mmap
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.bundle.ids import Ids
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from tests.serving.bundle.test_reader_and_writer import edit_manifest, save_array, vouch
from tests.support.worlds.serving import ITEMS, USERS, seen_rows, write_world

# Texts that UTF-8 can hold: no lone surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def opened(ids: list[str], directory: Path) -> Ids:
    Ids.of(pl.Series(ids, dtype=pl.String)).save(directory, "item_id")
    found = Ids.open(directory, "item_id", len(ids))
    assert found is not None
    return found


@given(ids=st.lists(texts, unique=True, max_size=60), others=st.lists(texts, max_size=20))
@settings(max_examples=150)
def test_they_say_what_a_list_and_a_dictionary_say(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], others: list[str]
) -> None:
    wanted = {name: row for row, name in enumerate(ids)}
    for found in (Ids.of(pl.Series(ids, dtype=pl.String)), opened(ids, tmp_path_factory.mktemp("ids"))):
        assert list(found) == ids and len(found) == len(found.rows) == len(ids)
        assert [found[row] for row in range(-len(ids), len(ids))] == ids + ids
        assert (found[1:7:2], found[-3:], found[:2]) == (ids[1:7:2], ids[-3:], ids[:2])
        rows = np.arange(len(ids))[::-2]
        assert found.at(rows) == ids[::-1][::2] and found.raw(rows) == [name.encode() for name in ids[::-1][::2]]
        assert dict(found.rows) == wanted
        asked = [*ids, *others, "\ud800", "", "i0", *(f"{name}x" for name in ids)]
        assert found.rows.known(asked) == [wanted[name] for name in asked if name in wanted]
        for name in asked:
            assert found.rows.get(name) == wanted.get(name) and (name in found.rows) == (name in wanted)
            assert found.rows.find(name) == wanted.get(name, -1)


@given(
    ids=st.lists(st.text("aé\U0001f600", max_size=5), unique=True, max_size=40),
    prefix=st.text("aé\U0001f600\ud800", max_size=3),
    most=st.integers(1, 50),
)
def test_the_first_ids_that_begin_with_a_text(ids: list[str], prefix: str, most: int) -> None:
    wanted = [row for row, name in enumerate(ids) if name.startswith(prefix)]
    assert Ids.of(pl.Series(ids, dtype=pl.String)).starting(prefix, most).tolist() == wanted[:most]


def test_a_row_that_is_not_there_and_an_id_that_is_not_there() -> None:
    ids = Ids.of(pl.Series(["a", "b"]))
    for row in (2, -3):
        with pytest.raises(IndexError):
            ids[row]
    with pytest.raises(KeyError, match="'c'"):
        ids.rows["c"]
    assert [ids.rows.get(strange) for strange in (None, 7, b"a", ["a"])] == [None] * 4
    assert ids.rows.get("c", 5) == 5


def of_one_slot(count: int, bits: int) -> list[str]:
    """Ids whose CRC-32s end in the same bits, the greatest place of a table of that size."""
    last = (1 << bits) - 1
    found = (name for number in range(10_000_000) if crc32((name := f"n{number}").encode()) & last == last)
    return [next(found) for _ in range(count)]


def test_ids_of_one_slot_are_all_found() -> None:
    names = of_one_slot(20, 6)  # 2 x 20 ids take a table of 64 places: all begin at its last one
    ids = Ids.of(pl.Series(names[:19]))
    assert [ids.rows[name] for name in names[:19]] == list(range(19))
    assert names[19] not in ids.rows
    assert ids.slots[:63].tolist() == [-1] * 63 and ids.slots[63:].tolist() == [*range(19), -1]


def test_they_are_mapped_files_and_not_objects_of_this_process(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    bundle = Bundle.open(tmp_path / "bundle", verify=False)
    for ids, column in ((bundle.item_names, "item_id"), (bundle.query_names, "query_id")):
        assert isinstance(ids.text, mmap.mmap) and len(ids.text) == (bundle.path / f"{column}_bytes.npy").stat().st_size
        assert isinstance(ids.offsets.base, np.memmap) and isinstance(ids.slots.base, np.memmap)
        assert ids.offsets.base.mode == ids.slots.base.mode == "r"
    # A service never reads the columns.
    assert not {"item_ids", "query_ids"} & vars(bundle).keys()
    assert bundle.item_names[17] == "i17" and bundle.item_rows["i17"] == 17 and bundle.query_rows.get("u3") == 3


def test_a_bundle_that_is_older_than_the_tables_has_them_made(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    tables = [path.name for path in (tmp_path / "bundle").glob("*_id_*.npy")]
    assert len(tables) == 6
    for name in tables:
        (tmp_path / "bundle" / name).unlink()
    edit_manifest(tmp_path / "bundle", lambda manifest: [manifest["files"].pop(name) for name in tables])
    bundle = Bundle.open(tmp_path / "bundle")
    assert list(bundle.item_names) == [f"i{row}" for row in range(ITEMS)]
    assert dict(bundle.query_rows) == {f"u{user}": user for user in range(USERS)}


def lose(bundle: Path) -> None:
    (bundle / "item_id_slots.npy").unlink()
    edit_manifest(bundle, lambda manifest: manifest["files"].pop("item_id_slots.npy"))


def swap_slots(bundle: Path) -> None:
    slots = np.load(bundle / "item_id_slots.npy")
    taken = np.flatnonzero(slots >= 0)
    slots[taken[[0, 1]]] = slots[taken[[1, 0]]]
    save_array(bundle, "item_id_slots.npy", slots)


def empty_slot(bundle: Path) -> None:
    slots = np.load(bundle / "item_id_slots.npy")
    slots[np.flatnonzero(slots >= 0)[0]] = -1
    save_array(bundle, "item_id_slots.npy", slots)


def other_name(bundle: Path) -> None:
    text = np.load(bundle / "query_id_bytes.npy")
    text[0] = ord("v")
    save_array(bundle, "query_id_bytes.npy", text)


def other_column(bundle: Path) -> None:
    pl.DataFrame({"item_id": [f"j{row}" for row in range(ITEMS)]}).write_parquet(bundle / "item_ids.parquet")
    vouch(bundle)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "a part is lost": (lose, r"item_id_slots.npy: missing"),
    "other count": (lambda b: save_array(b, "item_id_offsets.npy", np.arange(60)), r"offsets.npy: must be \[61\]"),
    "offsets fall": (lambda b: save_array(b, "query_id_offsets.npy", np.arange(13)[::-1]), r"must rise from 0 to the"),
    "no end": (lambda b: save_array(b, "query_id_slots.npy", np.arange(12, dtype=np.int32)), r"and -1 at its end"),
    "a row beyond": (lambda b: save_array(b, "query_id_slots.npy", np.array([12, -1, -1], np.int32)), r"rows 0..11"),
    "a row is not there": (empty_slot, r"item_id_slots.npy: must hold each of the rows 0..59 once"),
    "rows in wrong slots": (swap_slots, r"item_ids.parquet: not the ids that lie beside it"),
    "other text": (other_name, r"query_ids.parquet: not the ids that lie beside it"),
    "other column": (other_column, r"item_ids.parquet: not the ids that lie beside it"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_tables_that_are_not_those_of_the_bundle_are_refused(tmp_path: Path, name: str) -> None:
    spoil, message = WRONG[name]
    write_world(tmp_path / "bundle")
    spoil(tmp_path / "bundle")
    with pytest.raises(BundleError, match=message):
        Bundle.open(tmp_path / "bundle")


@pytest.fixture(scope="module")
def seen_twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, list[list[int]]]:
    """Each user's items, twice and turned round: rows repeat and fall; and one user without any."""
    seen = [[*seen_rows(user), *seen_rows(user)[::-1]] if user != 4 else [] for user in range(USERS)]
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in seen])])
    path = tmp_path_factory.mktemp("seen") / "bundle"
    write_world(path, seen_offsets=offsets, seen_items=[row for rows in seen for row in rows])
    return Bundle.open(path, verify=False), seen


@given(users=st.lists(st.integers(0, USERS - 1), max_size=20))
@settings(max_examples=60)
def test_what_many_users_have_seen_is_what_each_has_seen(
    seen_twice: tuple[Bundle, list[list[int]]], users: list[int]
) -> None:
    bundle, seen = seen_twice
    found = bundle.seen_sets(np.array(users, np.int64))
    assert [rows.tolist() for rows in found] == [sorted(set(seen[user])) for user in users]
    assert all(rows.dtype == np.int64 for rows in found)
