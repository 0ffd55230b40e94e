"""A damaged bundle never answers: each file truncated, flipped, removed, exchanged; towers and an index of others.

A running service has one bundle open, and each damaged one is named in `active.json` beside it, as by an operator who
passes by `towers bundles activate`. The bundles are whole ones, with SavedModels and a ScaNN index.
"""

import json
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from pipelines.bundles import build_index
from serving.bundle.manifest import FeatureSpec
from serving.errors import BundleError
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.recall.self_test import open_probed
from serving.service.active_bundles import ActiveBundles
from tests.serving.bundle.test_reader_and_writer import vouch
from tests.support.worlds.serving import DIMENSION, FEATURES, ITEM_FEATURES, copied_towers, save_towers, write_world

ITEMS = 1_000  # too many for an index of other vectors to find the best by searching nearly all


def save_ones(path: Path, features: Sequence[FeatureSpec], dimension: int) -> None:
    """A tower that gives ones, whatever comes."""
    import tensorflow as tf

    def ones(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"embeddings": tf.ones([tf.shape(inputs[features[0].name])[0], dimension])}

    module = tf.Module()
    specs = {
        spec.name: tf.TensorSpec([None] if spec.length is None else [None, None], spec.dtype, spec.name)
        for spec in features
    }
    signature = tf.function(ones, autograph=False).get_concrete_function(**specs)
    tf.saved_model.save(module, str(path), signatures={"serving_default": signature})


def write_version(out: Path, towers: Path, dimension: int, seed: int, model: str) -> None:
    rng = np.random.default_rng(seed)
    write_world(
        out,
        items=ITEMS,
        write_towers=copied_towers(towers),
        item_vectors=rng.normal(size=(ITEMS, dimension)).astype(np.float32),
        query_vectors=rng.normal(size=(12, dimension)).astype(np.float32),
        popularity=rng.permutation(ITEMS),
        seen_offsets=np.arange(13) * (seed + 1),
        seen_items=rng.permutation(ITEMS)[: 12 * (seed + 1)],
        item_ids=[f"i{row + seed}" for row in range(ITEMS)],
        query_ids=[f"u{user + seed}" for user in range(12)],
        model_version=model,
    )
    build_index.run(out, kind="scann")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`good`, `like` it but of another training, and `wide`, of another dimension."""
    folder = tmp_path_factory.mktemp("damage")
    save_towers(folder / "towers")
    save_ones(folder / "wide_towers" / "query_tower", FEATURES, DIMENSION + 1)
    save_ones(folder / "wide_towers" / "candidate_tower", ITEM_FEATURES, DIMENSION + 1)
    write_version(folder / "root" / "good", folder / "towers", DIMENSION, 0, "model-0")
    write_version(folder / "root" / "like", folder / "towers", DIMENSION, 1, "model-1")
    write_version(folder / "root" / "wide", folder / "wide_towers", DIMENSION + 1, 2, "model-2")
    return folder / "root"


@pytest.fixture(scope="module")
def running(root: Path) -> ActiveBundles[Recaller]:
    (root / "active.json").write_text('{"active": "good"}')
    running = ActiveBundles(root, open_probed)
    running.open_first()
    return running


def name_active(root: Path, name: str) -> None:
    (root / "active.json").write_text(json.dumps({"active": name}))


def look(running: ActiveBundles[Recaller], spoil: Callable[[Path], object]) -> None:
    """Spoils a copy of the good bundle, names it active, and has the service look."""
    bundle = running.path / "spoilt"
    shutil.rmtree(bundle, ignore_errors=True)
    shutil.copytree(running.path / "good", bundle)
    spoil(bundle)
    name_active(running.path, "spoilt")
    assert running.check() is not None


def refused(running: ActiveBundles[Recaller], spoil: Callable[[Path], object]) -> str:
    """Why a spoilt bundle is refused. The good one answers as before."""
    before = running.active
    look(running, spoil)
    assert running.active is before and running.refused.keys() == {"spoilt"}
    answer = running.pick("u3").opened.recall(RecallQuery(user_id="u3", k=3))
    assert len(answer.ids) == 3 and answer.model_version == "model-0"
    return running.refused["spoilt"].reason


def names(bundle: Path) -> list[str]:
    return sorted(path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file())


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def exchange(path: Path) -> None:
    """By the file of the same name of the version of another dimension; an index lies under a name of its own."""
    path.write_bytes(counterpart(path).read_bytes())


def counterpart(path: Path) -> Path:
    bundle = next(parent for parent in path.parents if parent.name in ("good", "spoilt"))
    inside = path.relative_to(bundle).as_posix()
    wide = bundle.parent / "wide"
    (other,) = wide.glob(f"index/*/{path.name}") if inside.startswith("index/") else [wide / inside]
    return other


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (truncate, "truncated"),
    "a bit flipped": (flip, "altered"),
    "removed": (Path.unlink, "missing|no manifest.json"),
    "exchanged": (exchange, "truncated|altered"),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damaged_file_is_refused_with_path_and_reason(running: ActiveBundles[Recaller], damage: str) -> None:
    spoil, words = DAMAGES[damage]
    tried = 0
    for name in names(running.path / "good"):
        whole = running.path / "good" / name
        if damage == "exchanged" and whole.read_bytes() == counterpart(whole).read_bytes():
            continue  # These towers have no variables.
        reason = refused(running, lambda bundle, name=name: spoil(bundle / name))  # type: ignore[misc]
        # An exchanged manifest is whole; the files beside it are not those that it speaks of.
        place = "" if name == "manifest.json" and damage != "truncated" else f"/{name}: "
        assert f"{running.path}/spoilt{place}" in reason, name
        assert any(word in reason for word in words.split("|")), (name, reason)
        tried += 1
    # manifest.json, 9 arrays and tables, at least the graphs and fingerprints of 2 towers, 3 files of the index.
    assert tried >= 17


def exchange_vouched(inside: str, other: str) -> Callable[[Path], None]:
    """Exchanges a directory or file by another version's, with digests brought up to date, as only a person could."""

    def spoil(bundle: Path) -> None:
        (target,) = bundle.glob(inside)
        (source,) = (bundle.parent / other).glob(inside)
        if source.is_dir():
            shutil.rmtree(target)
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        vouch(bundle)

    return spoil


def candidate_as_query(bundle: Path) -> None:
    shutil.rmtree(bundle / "query_tower")
    shutil.copytree(bundle / "candidate_tower", bundle / "query_tower")
    vouch(bundle)


VOUCHED: dict[str, tuple[Callable[[Path], None], str]] = {
    "query tower of another dimension": (
        exchange_vouched("query_tower", "wide"),
        r"query_tower: must give finite \[1, 8\]",
    ),
    "candidate tower of another dimension": (
        exchange_vouched("candidate_tower", "wide"),
        r"candidate_tower: must give finite \[1, 8\]",
    ),
    "vectors of another dimension": (
        exchange_vouched("item_vectors.npy", "wide"),
        r"item_vectors.npy: must be \[1000, 8\], is \[1000, 9\]",
    ),
    "index of another dimension": (exchange_vouched("index/*", "wide"), "probe of its index failed: .*dimension|EQ"),
    "index of another version": (exchange_vouched("index/*", "like"), "probe of its index: recall@100 .* must be at"),
    "vectors of another version": (exchange_vouched("item_vectors.npy", "like"), "probe of its index: recall@100"),
    "towers exchanged": (
        candidate_as_query,
        r"query_tower: takes .*, the manifest says",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", VOUCHED)
def test_parts_of_another_version_are_refused_even_where_the_digests_fit(
    running: ActiveBundles[Recaller], name: str
) -> None:
    spoil, reason = VOUCHED[name]
    with pytest.raises(BundleError, match=reason) as caught:
        raise BundleError(refused(running, spoil))
    assert f"{running.path}/spoilt" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("inside", ["query_tower", "index", "item_vectors.npy", "manifest.json"])
def test_a_link_out_of_the_bundle_is_refused(running: ActiveBundles[Recaller], inside: str) -> None:
    def spoil(bundle: Path) -> None:
        elsewhere = bundle.parent.parent / f"elsewhere {inside}"
        (bundle / inside).rename(elsewhere)
        (bundle / inside).symlink_to(elsewhere)

    assert f"spoilt/{inside}: a link" in refused(running, spoil)


@pytest.mark.slow
def test_a_whole_bundle_of_another_dimension_takes_over(running: ActiveBundles[Recaller]) -> None:
    assert running.active.opened.bundle.manifest.dimension == DIMENSION
    name_active(running.path, "wide")
    running.check()
    try:
        assert running.active.name == "wide" and running.refused == {}
        opened = running.pick("u3").opened
        assert opened.bundle.manifest.dimension == DIMENSION + 1
        assert opened.recall(RecallQuery(features={"age": 3}, k=1)).source == "features"
    finally:
        name_active(running.path, "good")
        running.check()
    assert running.active.name == "good"


class Trap:
    """What writes a file when it is read back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_no_pickle_is_ever_read(running: ActiveBundles[Recaller], tmp_path: Path, protocol: int) -> None:
    """In place of each file, and beside them, with fitting digests: refused, or nothing but bytes."""
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung), protocol)
    pickle.loads(trap).close()
    assert sprung.exists()
    sprung.unlink()
    good = running.path / "good"
    (index_directory,) = good.glob("index/*")
    beside = [f"index/{index_directory.name}/scann_docids.pkl", "query_tower/keras_metadata.pb", "notes"]
    taken = []
    for name in [*names(good), *beside]:

        def spoil(bundle: Path, name: str = name) -> None:
            (bundle / name).write_bytes(trap)
            if name != "manifest.json":
                vouch(bundle)

        look(running, spoil)
        assert not sprung.exists()
        if running.active.name == "spoilt":
            taken.append(name)
            name_active(running.path, "good")
            running.check()
    # The protocols below 2 have no mark to know them by; files that nothing depends on may hold them.
    free = {"notes", *(name for name in names(good) if name.endswith("fingerprint.pb"))}
    assert set(taken) <= (free if protocol < 2 else set())
