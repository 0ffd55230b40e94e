"""A small bundle with known answers: items of group g, users who like group g, and towers that are plain arithmetic.

Item row r has id "i<r>", group r % 4 and vector ``e_group + (1 - r / items) e_7``: within a group the lower row wins.
The query tower adds up, in dimension 8: the user's group (ids "u<n>", group n % 4), the mean group of the history, the
group named by `country`, `age` in dimension 4, `hour` in 5, the number of `tags` in 6, and 1 in dimension 7.
The candidate tower gives ``e_group + place e_7`` with the group named by `group`, or else of the item's id, and knows
nothing of an item with neither.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from serving.bundle.manifest import FeatureSpec, Manifest
from serving.bundle.writer import write_bundle

GROUPS, DIMENSION = 4, 8
ITEMS, USERS = 60, 12

FEATURES = (
    FeatureSpec(name="user", kind="id", dtype="string"),
    FeatureSpec(name="country", kind="categorical", dtype="string"),
    FeatureSpec(name="age", kind="numeric", dtype="float32"),
    FeatureSpec(name="hour", kind="hour", dtype="int64"),
    FeatureSpec(name="tags", kind="multi", dtype="string", length=3),
    FeatureSpec(name="history", kind="history", dtype="string", length=4),
)
WITHOUT_HISTORY = FEATURES[:-1]
ITEM_FEATURES = (
    FeatureSpec(name="item", kind="id", dtype="string"),
    FeatureSpec(name="group", kind="categorical", dtype="string"),
    FeatureSpec(name="place", kind="numeric", dtype="float32"),
)


def item_vectors(items: int = ITEMS) -> np.ndarray:
    vectors = np.zeros((items, DIMENSION), np.float32)
    vectors[np.arange(items), np.arange(items) % GROUPS] = 1
    vectors[:, 7] = 1 - np.arange(items) / items
    return vectors


def query_vector(request: Mapping[str, Any], items: int = ITEMS) -> np.ndarray:
    """The tower's formula in plain Python, float32 [8]."""
    vector = np.zeros(DIMENSION)
    vector[7] = 1
    if request.get("user") in {f"u{n}" for n in range(USERS)}:
        vector[int(request["user"][1:]) % GROUPS] += 1
    if request.get("country") in {f"g{g}" for g in range(GROUPS)}:
        vector[int(request["country"][1:])] += 1
    vector[4] = request.get("age") or 0
    vector[5] = 0 if request.get("hour") is None else request["hour"]
    vector[6] = len([tag for tag in request.get("tags") or [] if tag])
    known = [i for i in (request.get("history") or [])[-4:] if i in {f"i{r}" for r in range(items)}]
    for item_id in known:
        vector[int(item_id[1:]) % GROUPS] += 1 / len(known)
    return vector.astype(np.float32)


class ArithmeticEncoder:
    """The query tower without TensorFlow."""

    def __init__(self, items: int = ITEMS) -> None:
        self.items = items

    def encode(self, requests: Sequence[Mapping[str, Any]]) -> np.ndarray:
        return np.array([query_vector(request, self.items) for request in requests], np.float32)


def seen_rows(user: int, items: int = ITEMS) -> list[int]:
    """User n has seen the first two items of their group, and user 0 nothing at all."""
    return [] if user == 0 else [user % GROUPS, user % GROUPS + GROUPS]


def no_towers(directory: Path) -> None:
    """Something that looks like two SavedModels, for tests that never load them."""
    for name in ("query_tower", "candidate_tower"):
        (directory / name).mkdir()
        (directory / name / "saved_model.pb").write_bytes(b"not a model")


def copied_towers(source: Path) -> Callable[[Path], None]:
    return lambda directory: (
        [shutil.copytree(source / name, directory / name) for name in ("query_tower", "candidate_tower")] and None
    )


def write_versions(folder: Path, *names: str) -> Path:
    """Writes whole bundles of the world side by side, each with its name as `model_version`; returns the folder."""
    whole = write_whole_world(folder)
    for name in names:
        write_world(folder / name, model_version=name, write_towers=copied_towers(whole))
    return folder


def save_towers(directory: Path, features: Sequence[FeatureSpec] = FEATURES) -> None:
    """Saves the towers' formulas as two real SavedModels, in plain TensorFlow."""
    made = _towers(tuple((spec.name, spec.dtype, spec.length is not None) for spec in features))
    shutil.copytree(made.name, directory, dirs_exist_ok=True)


@cache
def _towers(features: tuple[tuple[str, str, bool], ...]) -> TemporaryDirectory[str]:
    """Both towers, made once in a process; name, type and whether it is a list of each feature of the query."""
    import tensorflow as tf

    def table(prefix: str, count: int) -> tf.lookup.StaticHashTable:
        keys = tf.constant([f"{prefix}{n}" for n in range(count)])
        values = tf.constant([n % GROUPS for n in range(count)], tf.int64)
        return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)

    def groups(ids: tf.Tensor, its_table: tf.lookup.StaticHashTable) -> tf.Tensor:
        return tf.one_hot(its_table.lookup(ids), GROUPS)

    module = tf.Module()
    module.users, module.items, module.countries = table("u", USERS), table("i", ITEMS), table("g", GROUPS)

    def query(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        taste = groups(inputs["user"], module.users) + groups(inputs["country"], module.countries)
        if "history" in inputs:
            history = groups(inputs["history"], module.items)
            taste += tf.math.divide_no_nan(tf.reduce_sum(history, 1), tf.reduce_sum(history, [1, 2])[:, None])
        age = tf.where(tf.math.is_nan(inputs["age"]), 0.0, inputs["age"])
        hour = tf.cast(tf.maximum(inputs["hour"], 0), tf.float32)
        tags = tf.reduce_sum(tf.cast(inputs["tags"] != "", tf.float32), 1)
        return {"embeddings": tf.concat([taste, tf.stack([age, hour, tags, tf.ones_like(age)], 1)], 1)}

    def candidate(item: tf.Tensor, group: tf.Tensor, place: tf.Tensor) -> dict[str, tf.Tensor]:
        named = groups(group, module.countries)
        own = tf.where(group[:, None] == "", groups(item, module.items), named)
        height = tf.where(tf.math.is_nan(place), 0.0, place)[:, None]
        vectors = tf.concat([own, tf.zeros([tf.shape(own)[0], DIMENSION - GROUPS - 1]), height], 1)
        return {"embeddings": vectors, "informed": tf.reduce_any(own != 0, axis=1)}

    directory = TemporaryDirectory()
    specs = {name: tf.TensorSpec([None, None] if several else [None], dtype, name) for name, dtype, several in features}
    signature = tf.function(query, autograph=False).get_concrete_function(**specs)
    tf.saved_model.save(module, f"{directory.name}/query_tower", signatures={"serving_default": signature})
    inputs = {spec.name: tf.TensorSpec([None], spec.dtype, spec.name) for spec in ITEM_FEATURES}
    signature = tf.function(candidate, autograph=False).get_concrete_function(**inputs)
    tf.saved_model.save(module, f"{directory.name}/candidate_tower", signatures={"serving_default": signature})
    return directory


def write_world(
    out: Path,
    *,
    items: int = ITEMS,
    users: int = USERS,
    features: Sequence[FeatureSpec] = FEATURES,
    write_towers: Callable[[Path], None] = no_towers,
    **changes: Any,
) -> Manifest:
    """Writes the bundle; `changes` replaces arguments of `write_bundle`."""
    seen = [seen_rows(user, items) for user in range(users)]
    arguments: dict[str, Any] = {
        "model_version": "world-1",
        "metric": "dot",
        "query_features": features,
        "candidate_features": ITEM_FEATURES,
        "item_ids": [f"i{row}" for row in range(items)],
        "item_vectors": item_vectors(items),
        "item_attributes": pl.DataFrame({"title": [f"Title {row}" for row in range(items)]}),
        "popularity": np.arange(items, 0, -1) * 10,
        "query_ids": [f"u{user}" for user in range(users)],
        "query_vectors": np.array([query_vector({"user": f"u{n}"}) for n in range(users)]).reshape(-1, DIMENSION),
        "seen_offsets": np.cumsum([0, *(len(rows) for rows in seen)]),
        "seen_items": [row for rows in seen for row in rows],
        "write_towers": write_towers,
        "libraries": {"numpy": np.__version__},
        "lineage": {"dataset": "world"},
        "training": {"epochs": 0},
    }
    return write_bundle(out, **(arguments | changes))


def write_whole_world(directory: Path) -> Path:
    """Writes the bundle with its real towers; gives its path."""
    write_world(directory / "bundle", write_towers=save_towers)
    return directory / "bundle"


def loop_search(
    vectors: np.ndarray, queries: np.ndarray, k: int, excluded: Sequence[Sequence[int]] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The definition: sum in float64, round once, sort by falling score and then by row."""
    rows = np.full((len(queries), k), -1)
    scores = np.full((len(queries), k), -np.inf, np.float32)
    for q, query in enumerate(queries):
        left_out = set() if excluded is None else {int(row) for row in excluded[q]}
        pairs = []
        for row, vector in enumerate(vectors):
            if row not in left_out:
                score = np.float32(sum(float(a) * float(b) for a, b in zip(query, vector, strict=True)))
                pairs.append((-score, row))
        for place, (negative, row) in enumerate(sorted(pairs)[:k]):
            rows[q, place], scores[q, place] = row, -negative
    return rows, scores
