"""Features by hand, masks, and a model that learns a world whose answer is known."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.paths import ROOT
from towers.config.features import (
    CategoricalFeature,
    ClockFeature,
    HashedFeature,
    HistoryFeature,
    IdFeature,
    MultiFeature,
    NumericFeature,
    TextFeature,
)
from towers.config.recipe import parse_config
from towers.features.encoder import EARLIER_BREAKS, FeatureEncoder, FeatureSpec, new_table
from towers.model.two_tower import TwoTower, build_encoder


def encoder(config, values: list[str], tmp_path: Path, **learnt) -> FeatureEncoder:
    path = tmp_path / "vocabulary.txt"
    path.write_text("\n".join(values) + "\n", encoding="utf-8")
    spec = FeatureSpec("f", config, str(path) if values else "", len(values), table="f", **learnt)
    return build_encoder(spec, new_table(spec, 4, seed=1), parse_config({}))


def rows(feature: FeatureEncoder, raw: object) -> list[object]:
    return feature.lookup(tf.constant(raw)).numpy().tolist()


def test_id_rows_are_places_in_the_vocabulary_and_unknown_is_missing(tmp_path: Path) -> None:
    feature = encoder(IdFeature(kind="id"), ["b", "a", "ü x"], tmp_path)
    assert rows(feature, ["a", "ü x", "zz", "", "b"]) == [2, 3, 0, 0, 1]


def test_categorical_values_outside_the_vocabulary_share_their_own_rows(tmp_path: Path) -> None:
    feature = encoder(CategoricalFeature(kind="categorical", oov_buckets=2), ["red", "blue"], tmp_path)
    known = rows(feature, ["blue", "red", ""])
    unknown = rows(feature, ["mauve", "teal", "ochre", "puce", "mauve"])
    assert known == [2, 1, 0]
    assert set(unknown) <= {3, 4}
    assert unknown[0] == unknown[4]
    assert feature.spec.rows == 5


def test_hashed_values_keep_to_their_buckets(tmp_path: Path) -> None:
    feature = encoder(HashedFeature(kind="hashed", buckets=3), [], tmp_path)
    got = rows(feature, [str(value) for value in range(50)])
    assert set(got) == {1, 2, 3}
    assert rows(feature, [""]) == [0]


def test_numbers_are_standardised_and_missing_ones_marked(tmp_path: Path) -> None:
    feature = encoder(NumericFeature(kind="numeric"), [], tmp_path, mean=10.0, deviation=4.0)
    assert rows(feature, [12.0, float("nan")]) == [[0.5, 0.0], [0.0, 1.0]]
    logged = encoder(NumericFeature(kind="numeric", log=True), [], tmp_path, mean=0.0, deviation=1.0)
    np.testing.assert_allclose(rows(logged, [-(np.e**2 - 1)]), [[-2.0, 0.0]], rtol=1e-6)


def test_clock_values_outside_their_range_are_missing(tmp_path: Path) -> None:
    feature = encoder(ClockFeature(kind="hour"), [], tmp_path)
    assert rows(feature, np.array([0, 23, -1, 24])) == [1, 24, 0, 0]


def test_text_is_split_into_lower_case_words(tmp_path: Path) -> None:
    config = TextFeature(kind="text", max_length=3, oov_buckets=1)
    feature = encoder(config, ["toy", "story", "été"], tmp_path)
    assert rows(feature, ["Toy-STORY!", "Été 1995 toy story", ""]) == [[1, 2, 0], [3, 4, 1], [0, 0, 0]]


TITLES = [
    "love \u2764\ufe0f book",
    "Star\u2122\ufe0f 1\ufe0f\u20e3 \u0301x",
    "हिन्दी फ़िल्म",
    "ภาษาไทยที่",
    "I AM LEGEND",
    "İstanbul",
    "Ísland Ìa Ĩ",
    "E\u0301te\u0301",
    "\u0645\u06cc\u200c\u0634\u0648\u062f \u09b0\u200d\u09cd\u09af \U0001f468\u200d\U0001f469",
]
WORDS = [
    "love",
    "book",
    "star",
    "1",
    "x",
    "हिन्दी",
    "फ़िल्म",
    "ภาษาไทยที่",
    "i",
    "am",
    "legend",
    "i\u0307stanbul",
    "ísland",
    "ìa",
    "ĩ",
    "e\u0301te\u0301",
    "\u0645\u06cc\u200c\u0634\u0648\u062f",
    "\u09b0\u200d\u09cd\u09af",
]


def test_marks_are_part_of_words_and_capitals_are_those_of_no_language(tmp_path: Path) -> None:
    feature = encoder(TextFeature(kind="text", max_length=3, oov_buckets=1), WORDS, tmp_path)
    told = [[1, 2, 0], [3, 4, 5], [6, 7, 0], [8, 0, 0], [9, 10, 11], [12, 0, 0], [13, 14, 15], [16, 0, 0], [17, 18, 0]]
    assert rows(feature, TITLES) == told


def test_the_words_of_an_earlier_release_stay_as_its_vocabulary_has_them(tmp_path: Path) -> None:
    config = TextFeature(kind="text", max_length=3, oov_buckets=1)
    feature = encoder(config, ["फ", "ल", "म"], tmp_path, word_breaks=EARLIER_BREAKS)
    assert rows(feature, ["फ़िल्म"]) == [[1, 2, 3]]


@pytest.mark.long
@pytest.mark.parametrize("language", ["tr_TR", "az_AZ", "lt_LT"])
def test_a_text_has_the_same_words_in_a_process_of_any_language(language: str) -> None:
    """The vocabulary is learnt by polars, which knows no languages."""
    test = f"{__file__}::{test_marks_are_part_of_words_and_capitals_are_those_of_no_language.__name__}"
    environment = {**os.environ, "LC_ALL": f"{language}.UTF-8", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and "1 passed" in run.stdout, run.stdout


@pytest.mark.parametrize(("pooling", "divisor"), [("mean", 2.0), ("sqrt", 2.0**0.5)])
def test_histories_pool_what_is_known(tmp_path: Path, pooling: str, divisor: float) -> None:
    feature = encoder(HistoryFeature(kind="history", max_length=4, pooling=pooling), ["a", "b", "c"], tmp_path)
    table = feature.table.numpy()
    got = feature.embed(feature.lookup(tf.constant([["a", "c", "nobody", ""], ["", "", "", ""]])))
    np.testing.assert_allclose(got[0], (table[1] + table[3]) / divisor, rtol=1e-6)
    np.testing.assert_array_equal(got[1], np.zeros(4))


def test_multi_values_are_averaged(tmp_path: Path) -> None:
    feature = encoder(MultiFeature(kind="multi", oov_buckets=1), ["x", "y"], tmp_path)
    table = feature.table.numpy()
    got = feature.embed(feature.lookup(tf.constant([["y", "x"]])))
    np.testing.assert_allclose(got[0], (table[1] + table[2]) / 2, rtol=1e-6)


def test_a_mask_hides_its_share_and_is_repeatable(tmp_path: Path) -> None:
    feature = encoder(IdFeature(kind="id", mask_share=0.3), ["a"], tmp_path)
    ones = tf.ones([20_000], tf.int32)
    masked = feature.mask(ones, tf.constant([1, 2]))
    # 20,000 draws: the share's standard deviation is 0.0032.
    assert abs(float(tf.reduce_mean(tf.cast(masked == 0, tf.float32))) - 0.3) < 0.015
    np.testing.assert_array_equal(masked, feature.mask(ones, tf.constant([1, 2])))
    assert (masked != feature.mask(ones, tf.constant([1, 3]))).numpy().any()


def test_a_missing_value_starts_as_nothing() -> None:
    spec = FeatureSpec("t", HashedFeature(kind="hashed", buckets=99), table="t")
    table = new_table(spec, 64, seed=3).numpy()
    np.testing.assert_array_equal(table[0], np.zeros(64))
    assert (np.abs(table[1:]) > 0).mean() > 0.99
    np.testing.assert_array_equal(table, new_table(spec, 64, seed=3).numpy())


def test_a_table_starts_with_the_numbers_of_the_seed_and_its_name() -> None:
    spec = FeatureSpec("t", HashedFeature(kind="hashed", buckets=99), table="t")
    limit = (3 / 64) ** 0.5 / 10
    drawn = tf.random.stateless_uniform([100, 64], [3, zlib.crc32(b"t") >> 1], -limit, limit).numpy()
    np.testing.assert_array_equal(new_table(spec, 64, seed=3).numpy()[1:], drawn[1:])


def model(tmp_path: Path, **settings) -> TwoTower:
    user = encoder(IdFeature(kind="id"), ["u", "v"], tmp_path).spec
    return TwoTower([user], [user], parse_config({"model": {"dimension": 4, **settings}}))


def test_cosine_towers_give_unit_vectors_and_dot_towers_do_not(tmp_path: Path) -> None:
    ids = {"f": tf.constant([1, 2])}
    cosine = model(tmp_path, similarity="cosine").query_tower(ids)
    np.testing.assert_allclose(np.linalg.norm(cosine, axis=1), [1, 1], rtol=1e-6)
    dot = np.linalg.norm(model(tmp_path, similarity="dot").query_tower(ids), axis=1)
    assert (dot < 0.5).all()


def test_hidden_layers_end_in_the_dimension(tmp_path: Path) -> None:
    deep = model(tmp_path, combine="concat", query_layers=(8, 6), candidate_layers=())
    assert deep.query_tower({"f": tf.constant([1, 2, 0])}).shape == (3, 4)
    assert [layer.units for layer in deep.query_tower.hidden] == [8, 6, 4]
    assert [layer.units for layer in deep.candidate_tower.hidden] == [4]
    # The last layer is linear: a vector may point anywhere.
    assert deep.query_tower.hidden[-1].activation(-1.0) == -1.0


@pytest.mark.parametrize("rank", [None, 2])
def test_cross_layers_are_those_of_the_paper(tmp_path: Path, rank: int | None) -> None:
    """``x_(l+1) = x_0 * (W x_l + b) + x_l``, and ``W = U V`` with a rank."""
    tower = model(tmp_path, combine="concat", cross_layers=3, cross_projection=rank).query_tower
    rows = tf.constant([1, 2])
    tower({"f": rows})
    rng = np.random.default_rng(5)
    # After the cross layers the last, linear layer alone: made the identity.
    tower.hidden[0].set_weights([np.eye(4), np.zeros(4)])
    first = x = tower.encoders[0].table.numpy()[1:]
    for layer in tower.cross:
        weights = [rng.normal(size=each.shape).astype(np.float32) for each in layer.get_weights()]
        assert [each.shape for each in weights] == ([(4, 4), (4,)] if rank is None else [(4, 2), (2, 4), (4,)])
        layer.set_weights(weights)
        *matrices, bias = weights
        x = first * (np.linalg.multi_dot([x, *matrices]) + bias) + x
    expected = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(tower({"f": rows}), expected, rtol=1e-4)


def test_dropout_drops_its_share_of_one_side_and_only_in_training(tmp_path: Path) -> None:
    towers = model(tmp_path, similarity="dot", query_dropout=0.25)
    ids = {"f": tf.ones([5_000], tf.int64)}
    seed = tf.constant([1, 2])
    whole, dropped = towers.query_tower(ids).numpy(), towers.query_tower(ids, seed).numpy()
    # 20,000 draws: the share's standard deviation is 0.003. What stays is scaled up to the same mean.
    assert abs((dropped == 0).mean() - 0.25) < 0.015
    np.testing.assert_allclose(dropped[dropped != 0], (whole / 0.75)[dropped != 0], rtol=1e-6)
    np.testing.assert_array_equal(towers.query_tower.sample(ids, seed)[0], dropped)
    assert (towers.query_tower(ids, tf.constant([1, 3])).numpy() != dropped).any()
    np.testing.assert_array_equal(towers.candidate_tower(ids, seed), towers.candidate_tower(ids))


def test_dropout_comes_before_the_vector_is_brought_to_length_one(tmp_path: Path) -> None:
    tower = model(tmp_path, query_dropout=0.5).query_tower
    tower.encoders[0].table.assign(tf.ones([3, 4]))
    vectors = tower({"f": tf.ones([100], tf.int64)}, tf.constant([1, 2])).numpy()
    lengths = np.linalg.norm(vectors, axis=1)
    # One in sixteen loses all four of its numbers.
    np.testing.assert_allclose(lengths[lengths > 0], 1, rtol=1e-5)
    assert 0 < (lengths == 0).sum() < 20
    assert (vectors == 0).mean() > 0.4


def test_a_feature_may_have_a_width_of_its_own_and_a_shared_table_has_one() -> None:
    wide = IdFeature(kind="id", dimension=6)
    query = [
        FeatureSpec("age", CategoricalFeature(kind="categorical", dimension=2), size=3, table="age"),
        FeatureSpec("past", HistoryFeature(kind="history"), size=5, table="items"),
        FeatureSpec("n", NumericFeature(kind="numeric"), table="n"),
    ]
    towers = TwoTower(
        query,
        [FeatureSpec("item", wide, size=5, table="items")],
        parse_config({"model": {"dimension": 4, "combine": "concat"}}),
    )
    widths = [int(each.table.shape[1]) for each in towers.query_tower.encoders]
    assert widths == [2, 6, 4]
    assert towers.query_tower.encoders[1].table is towers.candidate_tower.encoders[0].table
    features = {"age": tf.constant([1]), "past": tf.constant([[1, 2]]), "n": tf.constant([[0.5, 0.0]])}
    assert towers.query_tower(features).shape == (1, 4)
    assert towers.query_tower.hidden[0].kernel.shape == (12, 4)


def test_a_trained_temperature_is_a_weight_and_a_fixed_one_is_not(tmp_path: Path) -> None:
    def weights(trainable: bool) -> list[str]:
        return [v.name for v in model(tmp_path, temperature_trainable=trainable).trainable_variables]

    assert any("temperature" in name for name in weights(True))
    assert not any("temperature" in name for name in weights(False))


def test_a_feature_with_an_empty_vocabulary_has_only_missing_values_and_buckets(tmp_path: Path) -> None:
    assert rows(encoder(IdFeature(kind="id"), [], tmp_path), ["a", ""]) == [0, 0]
    assert rows(encoder(CategoricalFeature(kind="categorical"), [], tmp_path), ["a", ""]) == [1, 0]


# In processes of their own: which Keras is TensorFlow's is settled at its import.
LEGACY = "TF_USE_LEGACY_KERAS"
FIRST = "import tensorflow, keras"
TRAINED = """
import towers, tensorflow as tf
from towers.losses.two_terms import LogZ
head = LogZ("per_query", 4)
head(tf.zeros([1, 2]))
print(len(head.trainable_variables))
"""
REFUSED = "TensorFlow was imported with Keras 3"


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "value", "code", "says"),
    [
        (FIRST, "1", 0, "2"),
        ("import serving.bundle.encoder", None, 0, "2"),  # hides Keras from TensorFlow
        (FIRST, None, 1, REFUSED),
        (f"{FIRST}, tf_keras, os; os.environ['{LEGACY}'] = '1'", None, 1, REFUSED),
        ("", "0", 0, "2"),
    ],
)
def test_towers_trains_its_layers_or_refuses_keras_3(before: str, value: str | None, code: int, says: str) -> None:
    free = {name: other for name, other in os.environ.items() if name != LEGACY}
    command = [sys.executable, "-c", before + TRAINED]
    settings = free if value is None else {**free, LEGACY: value}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == code, done.stderr[-2000:]
    assert says in (done.stderr if code else done.stdout)
