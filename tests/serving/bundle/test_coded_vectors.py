"""Bundles with float16 and int8 vectors: what they hold, that every path scores alike, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from serving.bundle.manifest import PriorInfo
from serving.bundle.prior import NO_PRIOR, item_columns, query_columns
from serving.bundle.reader import Bundle
from serving.bundle.writer import replace_prior
from serving.catalogue.catalogue import Wanted
from serving.catalogue.overlay import Change
from serving.errors import BundleError
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.search.vector_codes import VectorType
from tests.serving.bundle.test_reader_and_writer import edit_manifest, save_array
from tests.support.worlds.serving import DIMENSION, ITEMS, USERS, ArithmeticEncoder, loop_search, write_world

VECTORS = np.random.default_rng(8).normal(size=(ITEMS, DIMENSION)).astype(np.float32)
USER_VECTORS = np.random.default_rng(9).normal(size=(USERS, DIMENSION)).astype(np.float32)
PRIOR = PriorInfo(now=0.4, past=0.2, mean_count=2.0, new_item=(-1.5, -2.25))
WEIGHTLESS = PRIOR.model_copy(update={"now": 0.0, "past": 0.0})
SHARES = np.random.default_rng(7).normal(size=(ITEMS, 2)).astype(np.float32)
BYTES = {"float32": 4 * DIMENSION, "float16": 2 * DIMENSION, "int8": DIMENSION + 4}
KINDS = pytest.mark.parametrize("kind", ["float16", "int8"])


def write(path: Path, kind: VectorType, *, prior: bool = False) -> Bundle:
    more = {"prior": PRIOR, "item_prior": SHARES, "popular_counts": np.ones(ITEMS)} if prior else {}
    write_world(path, item_vectors=VECTORS, query_vectors=USER_VECTORS, vectors=kind, **more)
    return Bundle.open(path)


def by_hand(path: Path, kind: VectorType) -> np.ndarray:
    """The vectors as the files define them: float16 numbers, or codes times the scale of their row."""
    codes = np.load(path / "item_vectors.npy")
    scales = np.load(path / "item_scales.npy") if kind == "int8" else np.ones(ITEMS, np.float32)
    rows = [[float(code) * float(scale) for code in row] for row, scale in zip(codes, scales, strict=True)]
    return np.array(rows, np.float32)


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_the_vectors_take_the_bytes_of_their_type(kind: VectorType, prior: bool, tmp_path: Path) -> None:
    bundle = write(tmp_path / "bundle", kind, prior=prior)
    assert bundle.manifest.vectors == kind
    names = [name for name in ("item_vectors.npy", "item_scales.npy") if name in bundle.manifest.files]
    assert sum(np.load(bundle.path / name).nbytes for name in names) == ITEMS * BYTES[kind]
    assert ("recall_vectors.npy" in bundle.manifest.files) == (prior and kind == "float32")
    np.testing.assert_array_equal(bundle.item_vectors, by_hand(bundle.path, kind))
    assert np.asarray(bundle.item_vectors).dtype == np.float32
    np.testing.assert_allclose(bundle.item_vectors, VECTORS, rtol=0, atol=np.abs(VECTORS).max() / 253)


@KINDS
def test_every_path_gives_an_item_the_same_score(kind: VectorType, tmp_path: Path) -> None:
    bundle = write(tmp_path / "bundle", kind)
    recaller = Recaller(bundle, ExactIndex(bundle.recall_vectors), ArithmeticEncoder())
    _, wanted = loop_search(by_hand(bundle.path, kind), USER_VECTORS, ITEMS)
    rows, _ = loop_search(by_hand(bundle.path, kind), USER_VECTORS, ITEMS)
    # An item put with the vector that training gave it is the same item.
    recaller.catalogue.live.apply([Change(f"i{row}", VECTORS[row]) for row in range(0, ITEMS, 3)])
    every = Wanted(allow=tuple(f"i{row}" for row in range(ITEMS)))
    for user in range(USERS):
        for asked in (RecallQuery(vector=USER_VECTORS[user].tolist(), k=ITEMS, wanted=every),
                      RecallQuery(vector=USER_VECTORS[user].tolist(), k=ITEMS)):  # fmt: skip
            found = recaller.recall(asked)
            assert found.scores.tolist() == wanted[user].tolist()
            assert found.ids == [f"i{row}" for row in rows[user]]


@KINDS
def test_a_prior_is_added_to_the_decoded_vectors(kind: VectorType, tmp_path: Path) -> None:
    bundle = write(tmp_path / "bundle", kind, prior=True)
    recaller = Recaller(bundle, ExactIndex(bundle.recall_vectors), ArithmeticEncoder())
    found = recaller.recall(RecallQuery(features={"country": "g2"}, k=ITEMS))
    vectors = by_hand(bundle.path, kind)
    wanted = {f"i{row}": vectors[row][2] + vectors[row][7] + 0.4 * SHARES[row][0] - 0.2 * SHARES[row][1]
              for row in range(ITEMS)}  # fmt: skip
    assert dict(zip(found.ids, found.scores.tolist(), strict=True)) == pytest.approx(wanted, abs=1e-5)
    replace_prior(bundle, tmp_path / "renewed", PRIOR, SHARES[::-1].copy(), np.ones(ITEMS))
    renewed = Bundle.open(tmp_path / "renewed")
    np.testing.assert_array_equal(renewed.item_vectors, vectors)
    np.testing.assert_allclose(np.asarray(renewed.recall_vectors)[:, -2:], SHARES[::-1] * [0.4, 0.2], rtol=1e-6)


def answers(bundle: Bundle) -> list[tuple[str, list[str], list[float]]]:
    """By features, of a user and of one of whom nothing is known, after an item was changed and one added."""
    recaller = Recaller(bundle, ExactIndex(bundle.recall_vectors), ArithmeticEncoder())
    recaller.catalogue.live.apply([Change("i3", VECTORS[5]), Change("new", VECTORS[6])])
    asked = RecallQuery(features={"country": "g2"}, k=ITEMS), RecallQuery(user_id="u3", k=ITEMS), RecallQuery(k=ITEMS)
    found = [recaller.recall(query) for query in asked]
    return [(each.source, each.ids, each.scores.tolist()) for each in found]


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_a_prior_without_weights_ranks_only_the_popular_items(kind: VectorType, tmp_path: Path) -> None:
    changes = {"item_vectors": VECTORS, "query_vectors": USER_VECTORS, "vectors": kind}
    counts = {"popular_counts": np.arange(ITEMS)}
    write_world(tmp_path / "bundle", **changes, **counts, prior=WEIGHTLESS, item_prior=SHARES)
    write_world(tmp_path / "without", **changes, **counts)
    bundle, without = Bundle.open(tmp_path / "bundle"), Bundle.open(tmp_path / "without")
    assert "recall_vectors.npy" not in bundle.manifest.files
    assert answers(bundle) == answers(without)
    # An index would spend its bits on log shares that no query asks for.
    assert bundle.adds_prior == (kind != "float32")
    assert not np.asarray(bundle.recall_vectors)[:, DIMENSION:].any()
    replace_prior(bundle, tmp_path / "renewed", WEIGHTLESS, SHARES[::-1].copy(), np.arange(ITEMS)[::-1])
    renewed = Bundle.open(tmp_path / "renewed")
    assert "recall_vectors.npy" not in renewed.manifest.files
    assert answers(renewed)[:2] == answers(without)[:2]
    assert renewed.popular_rows.tolist() == list(range(ITEMS))
    np.testing.assert_array_equal(np.asarray(renewed.item_prior), SHARES[::-1])


@pytest.mark.parametrize(
    ("weights", "asked"),
    [
        ({"past": 0.0}, [0]),
        ({"now": 0.0}, [1]),
        ({"now": -0.4}, [1]),
        ({"now": -0.4, "length": 0.1, "past": 0.0}, [0]),  # only histories of fifty-four and more
        ({"length": -0.2}, [0, 1]),
    ],
)
def test_a_column_of_the_prior_that_no_query_asks_for_is_zero(weights: dict[str, float], asked: list[int]) -> None:
    prior, histories = PRIOR.model_copy(update=weights), np.array([NO_PRIOR, 0, 1, 20, 1_000])
    columns, queries = item_columns(prior, SHARES), query_columns(prior, histories)
    assert np.flatnonzero(columns.any(axis=0)).tolist() == np.flatnonzero(queries.any(axis=0)).tolist() == asked
    # What a query asks for keeps the score of log shares times the weights.
    now = np.where(histories < 0, 0, np.maximum(prior.now + prior.length * np.log1p(np.maximum(histories, 0)), 0))
    past = np.where(histories < 0, 0, prior.past)
    by_hand = now[:, np.newaxis] * SHARES[:, 0] - past[:, np.newaxis] * SHARES[:, 1]
    np.testing.assert_allclose(queries @ columns.T, by_hand, rtol=1e-5, atol=1e-6)


def test_a_bundle_that_joined_the_vectors_for_a_prior_without_weights_is_read_and_renewed(tmp_path: Path) -> None:
    """As earlier releases wrote it: its index is of the joined vectors."""
    earlier = write(tmp_path / "bundle", "float32", prior=True).path
    edit_manifest(earlier, lambda manifest: manifest["prior"].update(now=0.0, past=0.0))
    bundle, without = Bundle.open(earlier), write(tmp_path / "without", "float32")
    assert bundle.recall_vectors.shape == (ITEMS, DIMENSION + 2)
    assert answers(bundle)[:2] == answers(without)[:2]
    replace_prior(bundle, tmp_path / "renewed", WEIGHTLESS, SHARES, np.ones(ITEMS))
    renewed = Bundle.open(tmp_path / "renewed")
    assert "recall_vectors.npy" not in renewed.manifest.files and not (renewed.path / "recall_vectors.npy").exists()
    assert answers(renewed)[:2] == answers(without)[:2]


def test_joined_vectors_that_the_manifest_does_not_name_are_refused(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", prior=WEIGHTLESS, item_prior=SHARES)
    np.save(tmp_path / "bundle" / "recall_vectors.npy", np.zeros((ITEMS, DIMENSION + 2), np.float32))
    with pytest.raises(BundleError, match=r"recall_vectors\.npy: not in the manifest"):
        Bundle.open(tmp_path / "bundle")
    joined = write(tmp_path / "joined", "float32", prior=True).path
    edit_manifest(joined, lambda manifest: manifest["files"].pop("recall_vectors.npy"))
    with pytest.raises(BundleError, match=r"files: must name recall_vectors\.npy"):
        Bundle.open(joined)


def test_what_float16_does_not_hold_is_refused(tmp_path: Path) -> None:
    for number, said in ((70_000, "70000"), (np.nan, "nan"), (-np.inf, "-inf")):
        vectors = VECTORS.copy()
        vectors[17, 3] = number
        with pytest.raises(
            BundleError, match=rf"^item_vectors\.npy: row 17 holds {said}; float16 holds up to 65,504: "
        ):
            write_world(tmp_path / "bundle", item_vectors=vectors, vectors="float16")
    vectors[17, 3] = 70_000
    write_world(tmp_path / "bundle", item_vectors=vectors, vectors="int8")


def test_spoilt_codes_are_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "int8", "int8").path
    for row, number in ((11, np.nan), (2, np.inf)):
        vectors = VECTORS.copy()
        vectors[row, 1] = number
        with pytest.raises(BundleError, match=rf"item_scales\.npy: row {row} holds NaN or infinity"):
            write_world(tmp_path / "other", item_vectors=vectors, vectors="int8")
    halves = write(tmp_path / "float16", "float16").path
    codes = np.load(halves / "item_vectors.npy")
    codes[5, 0] = np.inf
    save_array(halves, "item_vectors.npy", codes)
    with pytest.raises(BundleError, match=r"item_vectors\.npy: row 5 holds NaN or infinity"):
        Bundle.open(halves)
    scales = np.load(whole / "item_scales.npy")
    save_array(whole, "item_scales.npy", scales[1:])
    with pytest.raises(BundleError, match=r"item_scales\.npy: must be \[60\], is \[59\]"):
        Bundle.open(whole)
    edit_manifest(whole, lambda manifest: manifest.update(vectors="float32"))
    with pytest.raises(BundleError, match=r"item_vectors\.npy: must hold float32, holds int8"):
        Bundle.open(whole)
    edit_manifest(whole, lambda manifest: manifest.update(vectors="int4"))
    with pytest.raises(BundleError, match=r"manifest\.json: vectors: .*'float32', 'float16' or 'int8'"):
        Bundle.open(whole)
    edit_manifest(whole, lambda manifest: manifest.update(vectors="int8") or manifest["files"].pop("item_scales.npy"))
    with pytest.raises(BundleError, match=r"files: must name item_scales\.npy"):
        Bundle.open(whole)
