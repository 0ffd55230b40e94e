"""The bundle contract: what is written comes back, and nothing that is not whole is opened."""

import hashlib
import json
import math
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.bundle import arrays, index_writer, profiles
from serving.bundle.index_writer import replace_index
from serving.bundle.manifest import IndexInfo, PriorInfo
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from serving.files.staging import OutputExistsError
from tests.support.worlds.serving import DIMENSION, ITEMS, USERS, item_vectors, seen_rows, write_world


def edit_manifest(bundle: Path, change: Callable[[dict], None], *, vouched: bool = True) -> None:
    """Changes the manifest; vouched for, as one who alters a bundle on purpose would do it."""
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    if vouched:
        manifest.pop("digest", None)
        canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
        manifest["digest"] = hashlib.sha256(canonical.encode()).hexdigest()
    path.write_text(json.dumps(manifest))


def vouch(bundle: Path) -> None:
    """Brings the manifest's digests up to date, as one who alters a bundle on purpose would."""

    def change(manifest: dict) -> None:
        for name in manifest["files"]:
            content = (bundle / name).read_bytes()
            manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    edit_manifest(bundle, change)


def save_array(bundle: Path, name: str, array: np.ndarray, allow_pickle: bool = False) -> None:
    np.save(bundle / name, array, allow_pickle=allow_pickle)
    vouch(bundle)


@pytest.mark.parametrize("with_prior", [False, True])
@pytest.mark.parametrize("with_profiles", [False, True])
def test_the_rows_written_and_the_bytes_read_back_are_counted(
    tmp_path: Path, with_prior: bool, with_profiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 7)
    monkeypatch.setattr(profiles, "BLOCK", 5)
    bars: dict[str, tuple[float, str, list[float]]] = {}

    @contextmanager
    def progress(description: str, total: float, unit: str) -> Iterator[Callable[[float], None]]:
        bars[description] = total, unit, []
        yield bars[description][2].append

    changes: dict[str, Any] = {"progress": progress}
    if with_prior:
        prior = PriorInfo(now=0.5, past=0.1, mean_count=1.0, new_item=(0.0, 0.0))
        changes |= {"prior": prior, "item_prior": np.zeros((ITEMS, 2), np.float32)}
    if with_profiles:
        changes["profiles"] = [{"country": "g1"}] * USERS
    manifest = write_world(tmp_path / "bundle", **changes)
    # Ids, attributes, vectors and the prior of items; ids, vectors, seen items and profiles of users.
    rows = (3 + with_prior) * ITEMS + (3 + with_profiles) * USERS
    megabytes = sum(file.bytes for file in manifest.files.values()) / 1e6
    assert [(name, *bar[:2], sum(bar[2])) for name, bar in bars.items()] == [
        ("write", rows, "rows", rows),
        # Once for the digests, and once to compare.
        ("read back", pytest.approx(2 * megabytes), "MB", pytest.approx(2 * megabytes)),
    ]
    blocks = (1 + with_prior) * math.ceil(ITEMS / 7) + math.ceil(USERS / 7) + with_profiles * math.ceil(USERS / 5)
    assert len(bars["write"][2]) == 4 + blocks


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    out = tmp_path / "bundle[1]*"  # The signs of a pattern are taken literally.
    manifest = write_world(out)
    bundle = Bundle.open(out)
    assert bundle.manifest == manifest
    assert (manifest.items, manifest.queries, manifest.dimension) == (ITEMS, USERS, DIMENSION)
    assert bundle.item_ids.to_list() == [f"i{row}" for row in range(ITEMS)]
    assert bundle.item_rows["i17"] == 17 and bundle.query_rows["u3"] == 3
    np.testing.assert_array_equal(bundle.item_vectors, item_vectors())
    assert [bundle.seen(user).tolist() for user in range(USERS)] == [seen_rows(user) for user in range(USERS)]
    assert bundle.item_attributes["title"][5] == "Title 5"
    assert bundle.manifest.query_feature("history").length == 4  # type: ignore[union-attr]
    assert bundle.index_path is None


def test_the_item_columns_stay_those_of_the_bundle_that_was_opened(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    write_world(out)
    bundle = Bundle.open(out)
    titles = [f"Other {row}" for row in range(ITEMS)]
    write_world(out, overwrite=True, item_attributes=pl.DataFrame({"title": titles, "year": [1] * ITEMS}))
    # Not read before: an answer of the old bundle must not hold columns of the new one.
    assert bundle.item_attributes["title"].to_list() == [f"Title {row}" for row in range(ITEMS)]
    assert bundle.item_attributes.schema == bundle.attribute_schema
    assert Bundle.open(out).item_attributes["title"].to_list() == titles


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (pl.Series([True] * ITEMS), "Boolean"),
        (pl.Series([0] * ITEMS).cast(pl.Date), "Date"),
        (pl.Series(["a"] * ITEMS, dtype=pl.Enum(["a", "b"])), "Enum(categories=['a', 'b'])"),
        (pl.Series([1] * ITEMS).cast(pl.Decimal(10, 2)), "Decimal(precision=10, scale=2)"),
        (pl.Series([[1]] * ITEMS), "List(Int64)"),
        (pl.Series([10**20] * ITEMS, dtype=pl.Int128), "Int128"),
    ],
)
def test_a_column_that_no_live_item_could_have_is_refused(tmp_path: Path, values: pl.Series, told: str) -> None:
    """An item whose value cannot be stored would block all later changes."""
    with pytest.raises(BundleError) as error:
        write_world(tmp_path / "bundle", item_attributes=pl.DataFrame({"title": ["t"] * ITEMS, "other": values}))
    allowed = "allowed are String, List(String), integers of at most 64 bits and floats"
    message = f"item_attributes.parquet: column 'other' is {told}; {allowed}"
    assert str(error.value).endswith(message)
    assert not (tmp_path / "bundle").exists()


def test_vectors_are_mapped_and_not_read(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    bundle = Bundle.open(tmp_path / "bundle", verify=False)
    assert isinstance(bundle.item_vectors.base, np.memmap)
    assert isinstance(bundle.query_vectors.base, np.memmap)


def test_popular_rows_do_not_rely_on_the_order_of_rows(tmp_path: Path) -> None:
    popularity = np.zeros(ITEMS, np.int64)
    popularity[[40, 7, 9]] = [5, 8, 5]
    write_world(tmp_path / "bundle", popularity=popularity)
    assert Bundle.open(tmp_path / "bundle").popular_rows[:5].tolist() == [7, 9, 40, 0, 1]


def test_a_bundle_without_users_opens(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", users=0)
    bundle = Bundle.open(tmp_path / "bundle")
    assert len(bundle.query_ids) == 0
    assert bundle.query_vectors.shape == (0, DIMENSION)


def test_mapped_vectors_are_copied_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 7)
    np.save(tmp_path / "v.npy", item_vectors())
    write_world(tmp_path / "bundle", item_vectors=np.load(tmp_path / "v.npy", mmap_mode="r"))
    np.testing.assert_array_equal(np.load(tmp_path / "bundle" / "item_vectors.npy"), item_vectors())


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fails(directory: Path) -> None:
        raise RuntimeError("out of disk")

    with pytest.raises(RuntimeError, match="out of disk"):
        write_world(tmp_path / "bundle", write_towers=fails)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("config", ["my.yaml", None, {"data": None}, {"task": "retrieval", "features": ["user"]}])
def test_a_recipe_of_another_program_is_not_taken_for_one_of_towers(tmp_path: Path, config: object) -> None:
    told = f'lineage: "config" is for a recipe of towers, by sections; name yours otherwise: {config!r}'
    with pytest.raises(BundleError, match=f"^{re.escape(told)}$"):
        write_world(tmp_path / "bundle", lineage={"config": config})
    assert not (tmp_path / "bundle").exists()
    write_world(tmp_path / "bundle", lineage={"recipe": config, "config": {"task": "retrieval", "sampler": None}})


def test_an_existing_bundle_is_replaced_only_when_told(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    with pytest.raises(OutputExistsError):
        write_world(tmp_path / "bundle", model_version="world-2")
    assert Bundle.open(tmp_path / "bundle").manifest.model_version == "world-1"
    write_world(tmp_path / "bundle", model_version="world-2", overwrite=True)
    assert Bundle.open(tmp_path / "bundle").manifest.model_version == "world-2"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def shorten(bundle: Path) -> None:
    path = bundle / "item_vectors.npy"
    path.write_bytes(path.read_bytes()[:-5])


def alter(bundle: Path) -> None:
    path = bundle / "query_vectors.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def shorten_and_vouch(bundle: Path) -> None:
    shorten(bundle)
    vouch(bundle)


def other_dimension(bundle: Path) -> None:
    save_array(bundle, "query_vectors.npy", np.zeros((USERS, DIMENSION + 1), np.float32))


def nan_vector(bundle: Path) -> None:
    vectors = item_vectors()
    vectors[11, 2] = np.nan
    save_array(bundle, "item_vectors.npy", vectors)


def infinite_vector(bundle: Path) -> None:
    vectors = np.load(bundle / "query_vectors.npy")
    vectors[3, 0] = np.inf
    save_array(bundle, "query_vectors.npy", vectors)


def write_ids(bundle: Path, ids: list[str | None]) -> None:
    pl.DataFrame({"item_id": ids}).write_parquet(bundle / "item_ids.parquet")
    vouch(bundle)


def pickled_array(bundle: Path) -> None:
    save_array(bundle, "popularity.npy", np.array([{}] * ITEMS, object), allow_pickle=True)


def hidden_pickle(bundle: Path) -> None:
    (bundle / "index").mkdir()
    (bundle / "index" / "scann_docids.pkl").write_bytes(pickle.dumps(["i0"]))


def renamed_pickle(bundle: Path) -> None:
    (bundle / "notes.bin").write_bytes(pickle.dumps({"a": 1}))


def stray_tower_file(bundle: Path) -> None:
    (bundle / "query_tower" / "extra.pb").write_bytes(b"x")


def linked(bundle: Path) -> None:
    target = bundle.parent / "elsewhere.npy"
    (bundle / "popularity.npy").rename(target)
    (bundle / "popularity.npy").symlink_to(target)


def outside(manifest: dict) -> None:
    manifest["files"]["/etc/hostname"] = {"bytes": 1, "sha256": "0" * 64}


FIXED = {
    "item_ids.parquet", "item_vectors.npy", "item_attributes.parquet", "popularity.npy", "query_ids.parquet",
    "query_vectors.npy", "seen_offsets.npy", "seen_items.npy", "query_tower/saved_model.pb",
    "candidate_tower/saved_model.pb",
}  # fmt: skip


@pytest.mark.parametrize("verify", [True, False])
def test_a_manifest_must_name_each_file_that_is_read(tmp_path: Path, verify: bool) -> None:
    manifest = write_world(tmp_path / "whole")
    for number, name in enumerate(sorted(manifest.files)):
        bundle = tmp_path / f"{number}"
        shutil.copytree(tmp_path / "whole", bundle)
        edit_manifest(bundle, lambda manifest, name=name: manifest["files"].pop(name))
        said = rf"manifest\.json: files: must name {name}, " if name in FIXED else f"{name}: not in the manifest"
        with pytest.raises(BundleError, match=said):
            Bundle.open(bundle, verify=verify)
    assert manifest.files.keys() > FIXED


def spoil_manifest(bundle: Path, change: Callable[[dict], None]) -> None:
    edit_manifest(bundle, change, vouched=False)


def of_schema(bundle: Path, version: int) -> None:
    edit_manifest(bundle, lambda manifest: manifest.update(schema_version=version))


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (shorten, r"item_vectors.npy: truncated: 2043 bytes, the manifest says 2048"),
    "truncated and vouched for": (shorten_and_vouch, r"item_vectors.npy: truncated or altered"),
    "altered": (alter, r"query_vectors.npy: altered: its SHA-256"),
    "missing file": (lambda b: (b / "seen_items.npy").unlink(), r"seen_items.npy: missing"),
    "missing tower file": (lambda b: (b / "query_tower/saved_model.pb").unlink(), r"saved_model.pb: missing"),
    "missing manifest": (lambda b: (b / "manifest.json").unlink(), r"no manifest.json"),
    "half a manifest": (lambda b: (b / "manifest.json").write_text('{"schema_ver'), r"manifest.json: .*not valid JSON"),
    "later schema": (lambda b: of_schema(b, 5), r"version 5; this release reads 1 to 4: take the release that wrote"),
    "no such schema": (lambda b: of_schema(b, 0), r"version 0; this release reads 1 to 4: export the run again$"),
    "no schema": (lambda b: edit_manifest(b, lambda m: m.pop("schema_version")), r"schema version None"),
    "manifest dimension": (lambda b: edit_manifest(b, lambda m: m.update(dimension=9)), r"be \[60, 9\], is"),
    "array dimension": (other_dimension, r"query_vectors.npy: must be \[12, 8\], is \[12, 9\]"),
    "other type": (lambda b: save_array(b, "popularity.npy", np.zeros(ITEMS, np.int32)), r"must hold int64"),
    "NaN": (nan_vector, r"item_vectors.npy: row 11 holds NaN"),
    "infinity": (infinite_vector, r"query_vectors.npy: row 3 holds NaN or infinity"),
    "too few ids": (lambda b: write_ids(b, [f"i{n}" for n in range(59)]), r"59 ids, the manifest says 60"),
    "id twice": (lambda b: write_ids(b, ["i7", *(f"i{n}" for n in range(59))]), "the id of row 0 is that of another"),
    "null id": (lambda b: write_ids(b, [None, *(f"i{n}" for n in range(59))]), r"row 0 has no id"),
    "pickled array": (pickled_array, r"popularity.npy: .*Python objects"),
    "pickle by name": (hidden_pickle, r"scann_docids.pkl: a pickle"),
    "pickle by content": (renamed_pickle, r"notes.bin: a pickle"),
    "stray tower file": (stray_tower_file, r"extra.pb: not in the manifest"),
    "link": (linked, r"popularity.npy: a link"),
    "path outside": (lambda b: edit_manifest(b, outside), r"'/etc/hostname' is not a path inside"),
    "seen rows": (lambda b: save_array(b, "seen_items.npy", np.full(22, 60, np.int32)), r"rows must lie in 0..59"),
    "seen offsets": (lambda b: save_array(b, "seen_offsets.npy", np.arange(13)), r"must rise from 0 to the 22 seen"),
    "other manifest": (lambda b: spoil_manifest(b, lambda m: m.update(items=61)), r"json: altered: its digest is not"),
    "no digest": (lambda b: spoil_manifest(b, lambda m: m.pop("digest")), r"json: altered: it has no digest"),
    "other digest": (lambda b: spoil_manifest(b, lambda m: m.update(digest=7)), r"json: altered: its digest is not"),
    "unknown key": (lambda b: edit_manifest(b, lambda m: m.update(colour="red")), r"colour"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_bundle_that_is_not_whole_is_refused_with_path_and_reason(tmp_path: Path, name: str) -> None:
    spoil, message = WRONG[name]
    bundle = tmp_path / "bundle"
    write_world(bundle)
    spoil(bundle)
    with pytest.raises(BundleError, match=message) as caught:
        Bundle.open(bundle)
    assert str(bundle) in str(caught.value)


def test_the_manifests_digest_is_that_of_its_other_content_as_canonical_json(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", lineage={"Größe": 1.0, "tiny": 1e-30, "nested": [{"b": None, "a": True}]})
    path = tmp_path / "bundle" / "manifest.json"
    written = json.loads(path.read_text())
    edit_manifest(tmp_path / "bundle", lambda manifest: None)
    assert json.loads(path.read_text()) == written
    # Only the content counts: another order of keys and other spaces are the same manifest.
    path.write_text(json.dumps(dict(reversed(written.items())), indent=7))
    assert Bundle.open(tmp_path / "bundle").manifest.lineage["tiny"] == 1e-30


def test_no_bundle_at_all(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="nowhere: not a bundle: no such directory"):
        Bundle.open(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = tmp_path_factory.mktemp("whole") / "bundle"
    write_world(bundle)
    return bundle


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_bit_of_any_file_is_noticed(whole: Path, data: st.DataObject) -> None:
    names = sorted(path for path in whole.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(names), label="file")
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1), label="place")
    spoilt = bytearray(content)
    spoilt[place] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    path.write_bytes(spoilt)
    try:
        with pytest.raises(BundleError, match=path.name):
            Bundle.open(whole)
    finally:
        path.write_bytes(content)


def index_directory(bundle: Path, text: str) -> Path:
    directory = bundle.parent / f"index-{text}"
    directory.mkdir()
    (directory / "codes.bin").write_text(text)
    return directory


def test_an_index_is_replaced_by_one_rename_of_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "bundle"
    write_world(bundle)
    info = IndexInfo(kind="scann", path="index", parameters={"leaves": 3}, measured={"recall_at_100": 0.99})
    first = replace_index(bundle, info, index_directory(bundle, "one"))
    opened = Bundle.open(bundle)
    assert first.index == opened.manifest.index
    assert opened.manifest.index.parameters == {"leaves": 3}  # type: ignore[union-attr]
    assert opened.index_path is not None and (opened.index_path / "codes.bin").read_text() == "one"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(index_writer, "write_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            replace_index(bundle, info, index_directory(bundle, "two"))
    assert Bundle.open(bundle).manifest == first

    second = replace_index(bundle, info, index_directory(bundle, "three"))
    assert second.index is not None and second.index.path is not None
    assert [f"index/{path.name}" for path in (bundle / "index").iterdir()] == [second.index.path]
    assert (Bundle.open(bundle).path / second.index.path / "codes.bin").read_text() == "three"

    exact = replace_index(bundle, IndexInfo(kind="exact"))
    assert Bundle.open(bundle).index_path is None
    assert not any(name.startswith("index/") for name in exact.files)
