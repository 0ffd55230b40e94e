"""`--warm-from`: rows, moments and counts are found by id, new ids start as ever, and what does not fit is refused."""

import json
import re
import shutil
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tensorflow as tf

from pipelines.bundles.run import load_run
from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.forget.dataset import forget_in_dataset
from pipelines.ingest import prepare
from pipelines.training import train
from pipelines.training.check import check_recipe
from pipelines.training.earlier_run import RANKS, EarlierRun, earlier_rows
from pipelines.training.stage import Stage, build_trainer
from pipelines.training.structure import differences
from tests.support.worlds.interrupted import weights
from towers.config.features import CategoricalFeature, HashedFeature, IdFeature, VectorFeature
from towers.config.recipe import Config, load_config, parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError
from towers.features.encoder import FeatureSpec
from towers.training.checkpoints import STATE
from towers.training.trainer import Trainer

SHARE = 0.75  # a sum of powers of two: the products below are exact
STAGE = Stage("train", ("train",), validated=True)
LEARNED = {"name": "learned_unigram", "negatives": 8, "capacity": 256}
GONE, NEW = "i3", "i90"


def write_events(path: Path, days: int) -> None:
    """Each user takes an item an hour; on the second day other items are frequent, one is gone, and ids are new."""
    rng = np.random.default_rng(0)
    rows = [
        (f"u{user}", f"i{item}", 3_600 * hour)
        for hour in range(16)
        for user, item in enumerate(np.minimum(rng.geometric(0.15, 30), 20))
    ]
    if days == 2:
        rows = [row for row in rows if row[1] != GONE]
        rows += [
            (f"u{user}", f"i{item}", 3_600 * hour)
            for hour in range(24, 40)
            for user, item in zip(range(10, 50), 90 - np.minimum(rng.geometric(0.2, 40) - 1, 80), strict=True)
        ]
    pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(path)


def recipe(**sections: dict[str, Any]) -> Config:
    own: dict[str, dict[str, Any]] = {
        "data": {"duplicates": "keep"},
        "features": {
            "query": {"user_id": {"kind": "id"}, "past": {"kind": "history", "max_length": 4}},
            "candidate": {"item_id": {"kind": "id"}},
        },
        "model": {"dimension": 4},
        "sampler": LEARNED,
        "optimizer": {"learning_rate": 0.05},
        "train": {"epochs": 2, "batch_size": 64, "metric": "recall@5", "warm_share": SHARE, "keep_state": True},
    }
    return parse_config(own | {name: own.get(name, {}) | keys for name, keys in sections.items()})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`monday` and `tuesday`, data sets, and `run`, trained on monday."""
    folder = tmp_path_factory.mktemp("warm")
    for days, name in ((1, "monday"), (2, "tuesday")):
        write_events(folder / f"{name}.csv", days)
        prepare.run(DataConfig(duplicates="keep"), folder / f"{name}.csv", folder / name)
    train.run(recipe(), folder / "monday", folder / "run")
    return folder


@pytest.fixture(scope="module")
def cold(world: Path) -> Path:
    """A run on tuesday that no earlier one began."""
    train.run(recipe(), world / "tuesday", world / "cold")
    return world / "cold"


def built(world: Path, directory: Path, warm: Path | None, **sections: dict[str, Any]) -> Trainer:
    """The trainer of tuesday, before its first step."""
    data = Dataset.open(world / "tuesday")
    directory.mkdir(exist_ok=True)
    config = check_recipe(recipe(**sections), data)
    earlier = None if warm is None else EarlierRun.open(warm)
    return build_trainer(config, data, STAGE, directory, directory, warm=earlier)[1]


@pytest.mark.parametrize("folder", ["runs[old]", "runs\\old"])
def test_a_run_that_was_moved_where_tensorflow_reads_nothing_is_refused(
    world: Path, tmp_path: Path, folder: str
) -> None:
    moved = tmp_path / folder / "run"
    shutil.copytree(world / "run", moved)
    told = re.escape(f"{moved}") + ".*: TensorFlow reads no checkpoint in a path with .*; give it another one"
    with pytest.raises(ConfigError, match=told):
        built(world, tmp_path / "warm", moved)
    with pytest.raises(ConfigError, match=told):
        load_run(moved, world / "monday")


def values(prefix: Path) -> dict[str, np.ndarray]:
    """What a checkpoint holds, by path of attributes."""
    reader = tf.train.load_checkpoint(str(prefix))
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    return {
        name.removesuffix(suffix): reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if name.endswith(suffix)
    }


def lines(folder: Path, name: str) -> list[str]:
    (file,) = (folder / "vocabulary").glob(f"*/{name}.txt")
    return file.read_text().split()


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_a_row_of_a_known_id_is_the_mixture_and_any_other_that_of_a_cold_run(
    world: Path, tmp_path: Path, optimizer: str
) -> None:
    run, settings = world / "run", {"optimizer": {"name": optimizer}}
    if optimizer != "adam":
        run = tmp_path / "run"
        train.run(recipe(**settings), world / "monday", run)
    cold, warm = built(world, tmp_path / "cold", None, **settings), built(world, tmp_path / "warm", run, **settings)
    weights_then, state = values(run / "checkpoints" / "final"), values(run / "checkpoints" / STATE / "weights")
    # By its vocabulary: tower, feature, and place in a checkpoint; the items' table is that of their history, too.
    tables = {
        "query.user_id": ("query_tower", "user_id", "query_tower/encoders/0"),
        "candidate.item_id": ("candidate_tower", "item_id", "query_tower/encoders/1"),
    }
    checked = moved = 0
    for name, (tower, feature, place) in tables.items():
        old_ids, ids = lines(run, name), lines(tmp_path / "warm", name)
        table = table_of(warm, tower, feature)
        there = [variable is table for variable in warm.optimizer.variables_in_order].index(True)
        before = weights_then[f"model/{place}/table"]
        pairs = [(cold.task.trainable_variables[there], warm.task.trainable_variables[there], before)]
        pairs += [
            (start, slot, state[f"optimizer/slots/{there}/{number}"])
            for number, (start, slot) in enumerate(
                zip(cold.optimizer.slots[there], warm.optimizer.slots[there], strict=True)
            )
        ]
        for start, now, then in pairs:
            expected = start.numpy()
            for row, each in enumerate(ids, start=1):
                if each in old_ids and before[1 + old_ids.index(each)].any():
                    old = then[1 + old_ids.index(each)]
                    expected[row] = np.float32(SHARE) * old + np.float32(1 - SHARE) * expected[row]
                    checked, moved = checked + 1, moved + (old_ids.index(each) != row - 1)
            np.testing.assert_array_equal(now.numpy(), expected)
        assert set(ids) - set(old_ids)
    assert GONE in lines(run, "candidate.item_id") and GONE not in lines(tmp_path / "warm", "candidate.item_id")
    assert checked > 80 and moved > checked / 3
    steps = json.loads((run / "summary.json").read_text())["stages"][-1]["optimizer_steps"]
    assert steps == state["optimizer/step"] and warm.optimizer.earlier_steps == round(SHARE * steps)


def table_of(trainer: Trainer, tower: str, feature: str) -> tf.Variable:
    (found,) = (each.table for each in getattr(trainer.task.towers, tower).encoders if each.spec.name == feature)
    return found


def test_a_share_of_zero_is_a_cold_run(world: Path, cold: Path, tmp_path: Path) -> None:
    settings = {"train": {"warm_share": 0.0}}
    train.run(recipe(**settings), world / "tuesday", tmp_path / "warm", warm_from=world / "run")
    one, other = weights(cold), weights(tmp_path / "warm")
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def seen_of(state: dict[str, np.ndarray], ids: list[str]) -> list[str]:
    """The positives in a learned unigram's list, oldest first."""
    seen, position = state["task/sampler/noise/seen"], int(state["task/sampler/noise/position"])
    assert position > len(seen), "the list has wrapped round"
    return [ids[int(seen[(position + place) % len(seen)])] for place in range(len(seen))]


def ids_by_rank(folder: Path) -> list[str]:
    return pl.read_parquet(folder / RANKS)["item_id"].to_list()


@pytest.mark.parametrize("share", [1.0, SHARE])
def test_the_sampler_goes_on_from_the_newest_positives_by_id(world: Path, tmp_path: Path, share: float) -> None:
    noise = built(world, tmp_path, world / "run", train={"warm_share": share}).task.sampler.noise
    then = seen_of(values(world / "run" / "checkpoints" / STATE / "weights"), ids_by_rank(world / "run"))
    expected = [each for each in then[len(then) - round(share * len(then)) :] if each != GONE]
    ids = ids_by_rank(tmp_path)
    count = int(noise.position)
    assert [ids[number] for number in noise.seen.numpy()[:count]] == expected
    assert GONE in then and NEW in ids
    counted = Counter(expected)
    assert noise.learned.counts.numpy().tolist() == [1 + counted[each] for each in ids]
    assert int(noise.learned.total) == len(ids) + len(expected)


def test_learned_frequencies_of_the_batch_keep_their_share(world: Path, tmp_path: Path) -> None:
    in_batch = parse_config({"sampler": {"name": "in_batch", "frequencies": "learned"}}).sampler
    config = recipe().model_copy(update={"sampler": in_batch})
    train.run(config, world / "monday", tmp_path / "run")
    data = Dataset.open(world / "tuesday")
    (tmp_path / "warm").mkdir()
    earlier = EarlierRun.open(tmp_path / "run")
    resolved = check_recipe(config, data)
    _, warm = build_trainer(resolved, data, STAGE, tmp_path / "warm", tmp_path / "warm", warm=earlier)
    then = values(tmp_path / "run" / "checkpoints" / STATE / "weights")["task/sampler/learned/counts"]
    before = dict(zip(ids_by_rank(tmp_path / "run"), then.tolist(), strict=True))
    expected = [1 + int(SHARE * (before.get(each, 1) - 1)) for each in ids_by_rank(tmp_path / "warm")]
    assert warm.task.sampler.learned.counts.numpy().tolist() == expected
    assert int(warm.task.sampler.learned.total) == sum(expected)
    assert max(expected) > 10


@pytest.mark.long
def test_an_interrupted_warm_run_goes_on_as_if_it_had_not_been(world: Path, tmp_path: Path) -> None:
    settings = {"train": {"checkpoint_steps": 3}}
    whole = built(world, tmp_path / "whole", world / "run", **settings)

    def keep(done: int, _: float) -> None:
        """What a kill after this step would leave."""
        if done == 5:
            shutil.copytree(tmp_path / "whole", tmp_path / "cut")

    whole.fit(keep)
    again = built(world, tmp_path / "cut", world / "run", **settings)
    assert again.done == 3
    again.fit()
    for one, other in zip(whole.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=one.name)


@pytest.mark.long
def test_each_stage_starts_from_the_same_stage(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refit = {"data": {"duplicates": "keep", "refit": True}}
    train.run(recipe(**refit), world / "monday", tmp_path / "monday")
    summary = train.run(recipe(**refit), world / "tuesday", tmp_path / "tuesday", warm_from=tmp_path / "monday")
    before = json.loads((tmp_path / "monday" / "summary.json").read_text())["stages"]
    assert [stage["stage"] for stage in summary["stages"]] == ["train", "refit"]
    for stage, earlier in zip(summary["stages"], before, strict=True):
        own = stage["epochs"] * (stage["examples"] // 64)
        assert stage["optimizer_steps"] == own + round(SHARE * earlier["optimizer_steps"])
    assert capsys.readouterr().err.count(f"warm start from {tmp_path / 'monday'}: rows") == 2
    # The first one from the weights that never saw the validation events.
    first = built(world, tmp_path / "first", tmp_path / "monday", train={"warm_share": 1.0}, **refit)
    choose, name = tmp_path / "monday" / "choose", "query.user_id"
    then = values(choose / "checkpoints" / "final")["model/query_tower/encoders/0/table"]
    now, old_ids = table_of(first, "query_tower", "user_id").numpy(), lines(choose, name)
    rows = {
        row: 1 + old_ids.index(each) for row, each in enumerate(lines(tmp_path / "first", name), 1) if each in old_ids
    }
    np.testing.assert_array_equal(now[list(rows)], then[list(rows.values())])
    assert len(rows) == 30 and then[list(rows.values())].any(axis=1).all()
    with pytest.raises(ConfigError, match="its stages are train, this recipe's train, refit"):
        train.run(recipe(**refit), world / "tuesday", tmp_path / "other", warm_from=world / "run")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dimension": ({"model": {"dimension": 8}}, r"model\.dimension is 4 there and 8 here"),
    "optimizer": ({"optimizer": {"name": "sgd"}}, r"optimizer\.name is 'adam' there and 'sgd' here"),
    "loss": ({"loss": {"correction": 0.5}}, r"loss\.correction is 1\.0 there and 0\.5 here"),
    "sampler": ({"sampler": LEARNED | {"negatives": 9}}, r"sampler\.negatives is 8 there and 9 here"),
    "one feature less": (
        {"features": {"query": {"user_id": {"kind": "id"}}}},
        r"features\.query\.past is only there",
    ),
    "one feature more": (
        {"features": {"query": recipe().features.model_dump()["query"] | {"hour": {"kind": "hour"}}}},
        r"features\.query\.hour is only here",
    ),
    "a feature's setting": (
        {"features": {"query": {"user_id": {"kind": "id"}, "past": {"kind": "history", "max_length": 5}}}},
        r"features\.query\.past\.max_length is 4 there and 5 here",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_recipe_is_refused_by_the_key_that_differs(world: Path, tmp_path: Path, name: str) -> None:
    sections, told = REFUSED[name]
    with pytest.raises(ConfigError, match=told):
        train.run(recipe(**sections), world / "tuesday", tmp_path / "run", warm_from=world / "run")
    assert not list(tmp_path.iterdir())


def test_features_in_another_order_start_from_their_own_rows(world: Path, tmp_path: Path) -> None:
    """Weights have their places by the order of the features, which may come from the columns of a file."""
    given = recipe().model_dump(mode="json", exclude_unset=True)["features"]
    turned = recipe(features={"query": dict(reversed(given["query"].items())), "candidate": given["candidate"]})
    assert list(turned.features.query or ()) == ["past", "user_id"]
    for name, config in (("one", recipe()), ("other", turned)):
        train.run(config, world / "tuesday", tmp_path / name, warm_from=world / "run")
        assert list(load_config(tmp_path / name / "config.toml").features.query or ()) == ["user_id", "past"]
    one, other = (values(tmp_path / name / "checkpoints" / "final") for name in ("one", "other"))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_where_the_rows_of_items_start_is_no_difference() -> None:
    features = recipe().features.model_dump(mode="json")
    features["candidate"]["item_id"] |= {"start": "cooccurrence", "start_window": 3}
    assert differences(recipe(), recipe(features=features)) == []


def test_a_run_that_saw_held_out_events_is_refused(world: Path, cold: Path, tmp_path: Path) -> None:
    held = Dataset.open(world / "monday").events("valid")
    with pytest.raises(DataError, match=rf"'train' trained on \d+ of the {len(held):,} valid events of .*monday"):
        train.run(recipe(), world / "monday", tmp_path / "monday", warm_from=cold)
    # Its own data set again: the same events are held out.
    train.run(recipe(train={"epochs": 1}), world / "tuesday", tmp_path / "again", warm_from=cold)


def test_a_run_that_saw_a_held_out_impression_is_refused(tmp_path: Path) -> None:
    shown, taken, asked = "u1,c,2,0", ["u1,a,1,1", "u2,b,1,1"], ["u2,c,9,1"]
    files = {
        "old": {"train": [*taken, shown], "test": asked},
        "new": {"train": taken, "valid": [shown, "u2,a,3,1"], "test": asked},
    }
    for name, splits in files.items():
        (tmp_path / name).mkdir()
        for split, rows in splits.items():
            text = "\n".join(["user_id,item_id,timestamp,rating", *rows]) + "\n"
            (tmp_path / name / f"{split}.csv").write_text(text)
        prepare.run(DataConfig(valid_share=0), tmp_path / name, tmp_path / f"{name}-data")
    old, new = (Dataset.open(tmp_path / f"{name}-data") for name in ("old", "new"))
    summary = {"dataset": old.manifest.fingerprint, "dataset_path": "../old-data"}
    with pytest.raises(DataError, match=r"stage 'train' trained on 1 of the 2 valid events of .*new-data"):
        EarlierRun(tmp_path / "run", recipe(), summary).refuse_leak(new, {"train": ("valid",)})


@pytest.mark.parametrize(("duplicates", "leaks"), [("last", True), ("first", False), ("keep", False)])
def test_a_pair_whose_last_event_alone_is_kept_leaks_by_its_earlier_one(
    tmp_path: Path, duplicates: str, leaks: bool
) -> None:
    """ada took tea before the old data set ended, and takes it again in the new one's test."""
    rows = [f"u{day % 5},i{day},{day}" for day in range(1, 18)]
    old, new = [*rows[:15], "ada,jam,3", "ada,tea,4"], [*rows, "ada,jam,3", "ada,tea,4", "ada,tea,19"]
    for name, lines in (("old", old), ("new", new)):
        (tmp_path / f"{name}.csv").write_text("\n".join(["user_id,item_id,timestamp", *lines]) + "\n")
        config = parse_config(
            {"data": {"duplicates": duplicates, "valid_share": 0, "test_share": 0.05, "time_unit": "s"}}
        )
        prepare.run(config.data, tmp_path / f"{name}.csv", tmp_path / f"{name}-data")
    summary = {"dataset": Dataset.open(tmp_path / "old-data").manifest.fingerprint, "dataset_path": "../old-data"}
    earlier = EarlierRun(tmp_path / "run", recipe(), summary)
    refused = pytest.raises(
        DataError,
        match=r"stage 'train' trained on 1 of the 1 test events of .*new-data.* or train without --warm-from; with "
        r"data\.duplicates = 'last' each pair that repeats is one; with 'first', or 'keep' and times, none is$",
    )
    with refused if leaks else nullcontext():
        earlier.refuse_leak(Dataset.open(tmp_path / "new-data"), {"train": ("test",)})


def test_where_no_times_tell_a_pair_that_repeats_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """Of lists in order nothing tells ada's second tea from the first, which was trained on."""
    config = DataConfig(split="leave_last_out", duplicates="keep")
    for name, more in (("old", ""), ("new", " jam tea")):
        lists = [f"u{user} a b c d" for user in range(4)] + [f"ada tea bun{more}"]
        (tmp_path / name).mkdir()
        (tmp_path / name / "sequences.txt").write_text("\n".join(lists) + "\n")
        prepare.run(config, tmp_path / name, tmp_path / f"{name}-data")
    data = [Dataset.open(tmp_path / f"{name}-data") for name in ("old", "new")]
    summary = {"dataset": data[0].manifest.fingerprint, "dataset_path": "../old-data"}
    with pytest.raises(DataError) as error:
        EarlierRun(tmp_path / "run", recipe(), summary).refuse_leak(data[1], {"train": ("test",)})
    assert str(error.value).endswith(
        "or train without --warm-from; where no times tell, each pair that repeats is one; with "
        "data.duplicates = 'first' none is"
    )


@pytest.mark.parametrize("kind", ["impression", "given"])
def test_no_pair_leaks_whose_earlier_event_is_still_there_or_an_impression(tmp_path: Path, kind: str) -> None:
    rows = [f"u{day % 5},i{day},{day},1" for day in range(1, 16)]
    ahead = "ada,tea,4,0" if kind == "impression" else "ada,tea,4,1"
    head, settings = "user_id,item_id,timestamp,rating", {"duplicates": "last", "valid_share": 0, "time_unit": "s"}
    known, asked = [*rows, "ada,jam,3,1", ahead], ["ada,tea,19,1", "ada,bun,20,1"]
    (tmp_path / "old.csv").write_text("\n".join([head, *known]) + "\n")
    prepare.run(DataConfig.model_validate(settings | {"test_share": 0}), tmp_path / "old.csv", tmp_path / "old-data")
    if kind == "given":
        (tmp_path / "new").mkdir()
        for name, lines in (("train", known), ("test", asked)):
            (tmp_path / "new" / f"{name}.csv").write_text("\n".join([head, *lines]) + "\n")
    else:
        (tmp_path / "new").with_suffix(".csv").write_text("\n".join([head, *known, *asked]) + "\n")
    source = tmp_path / ("new" if kind == "given" else "new.csv")
    prepare.run(DataConfig.model_validate(settings | {"test_share": 0.11}), source, tmp_path / "new-data")
    new = Dataset.open(tmp_path / "new-data")
    assert new.manifest.events["test"] == 2
    summary = {"dataset": Dataset.open(tmp_path / "old-data").manifest.fingerprint, "dataset_path": "../old-data"}
    EarlierRun(tmp_path / "run", recipe(), summary).refuse_leak(new, {"train": ("test",)})


def test_a_run_whose_data_set_forgot_a_user_since_is_an_earlier_run_all_the_same(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "run", tmp_path / "run")
    shutil.copytree(world / "monday", tmp_path / "monday")
    user = Dataset.open(tmp_path / "monday").users["user_id"][0]
    forget_in_dataset(tmp_path / "monday", user, dry_run=False)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert Dataset.open(tmp_path / "monday").manifest.fingerprint != summary["dataset"]
    earlier = EarlierRun.open(tmp_path / "run")
    earlier.refuse_leak(Dataset.open(world / "tuesday"), {"choose": ("valid", "test")})
    # What it holds still tells.
    with pytest.raises(DataError, match="stage 'choose' trained on"):
        earlier.refuse_leak(Dataset.open(world / "tuesday"), {"choose": ("train",)})


def test_a_data_set_that_forgot_a_user_is_still_the_one_of_its_run(tmp_path: Path) -> None:
    """Pairs that repeat over the splits of untimed events are no leak of it."""
    rows = [f"u{user},i{number % 3}" for user in range(6) for number in range(9)]
    (tmp_path / "events.csv").write_text("\n".join(["user_id,item_id", *rows]) + "\n")
    prepare.run(DataConfig(split="random", duplicates="keep"), tmp_path / "events.csv", tmp_path / "data")
    summary = {"dataset": Dataset.open(tmp_path / "data").manifest.fingerprint, "dataset_path": "../data"}
    forget_in_dataset(tmp_path / "data", "u0", dry_run=False)
    data = Dataset.open(tmp_path / "data")
    assert data.manifest.fingerprint != summary["dataset"]
    EarlierRun(tmp_path / "run", recipe(), summary).refuse_leak(data, {"choose": ("valid", "test")})


def test_without_its_data_set_nothing_tells_what_a_run_saw(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "run", tmp_path / "run")
    with pytest.raises(
        DataError, match=r"--warm-from .*run: its data set tells what it was trained on; .*not a data set"
    ):
        train.run(recipe(), world / "tuesday", tmp_path / "warm", warm_from=tmp_path / "run")
    shutil.copytree(world / "tuesday", tmp_path / "monday")
    with pytest.raises(DataError, match="no longer the data set that it was trained on"):
        train.run(recipe(), world / "tuesday", tmp_path / "warm", warm_from=tmp_path / "run")


def test_a_run_without_its_state_starts_the_moments_anew(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train.run(recipe(train={"keep_state": False}), world / "monday", tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints" / STATE).exists() and not (tmp_path / "run" / RANKS).exists()
    warm = built(world, tmp_path / "warm", tmp_path / "run")
    assert "kept no moments, they start over; a run with train.keep_state = true keeps them" in capsys.readouterr().err
    assert not any(slot.numpy().any() for slots in warm.optimizer.slots for slot in slots)
    assert warm.optimizer.earlier_steps == 0
    cold = built(world, tmp_path / "cold", None)
    assert (warm.task.trainable_variables[0].numpy() != cold.task.trainable_variables[0].numpy()).any()


def test_a_run_of_two_stages_that_kept_one_is_refused(world: Path, tmp_path: Path) -> None:
    refit = {"data": {"duplicates": "keep", "refit": True}, "train": {"keep_state": False}}
    train.run(recipe(**refit), world / "monday", tmp_path / "run")
    with pytest.raises(DataError, match=r"holds no weights of the stage 'train'.*train\.keep_state"):
        train.run(recipe(**refit), world / "tuesday", tmp_path / "warm", warm_from=tmp_path / "run")
    with pytest.raises(DataError, match="not a finished run"):
        train.run(recipe(), world / "tuesday", tmp_path / "warm", warm_from=world / "monday")
    with (tmp_path / "run" / "config.toml").open("a") as later:
        later.write("\n[later]\n")
    with pytest.raises(ConfigError, match=r"^--warm-from .*run: .*config\.toml: later: no such key"):
        train.run(recipe(**refit), world / "tuesday", tmp_path / "warm", warm_from=tmp_path / "run")


def test_a_run_that_its_sampler_refuses_is_in_nobodys_way(world: Path, tmp_path: Path) -> None:
    drawn = {"name": "uniform", "negatives": 10_000, "distinct": True}

    def only_of(sampler: dict[str, Any]) -> Config:
        return parse_config(recipe().model_dump(exclude_unset=True) | {"sampler": sampler})

    with pytest.raises(ConfigError, match=r"^sampler\.negatives = 10000 with distinct = true: only "):
        train.run(only_of(drawn), world / "tuesday", tmp_path / "run")
    assert not (tmp_path / ".run.unfinished").exists()
    train.run(only_of(drawn | {"negatives": 2}), world / "tuesday", tmp_path / "run")


def test_what_was_trained_stays_where_its_resume_is_refused(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **options: Any) -> None:
        raise ConfigError("another version of this program made it")

    monkeypatch.setattr(train, "publish", lambda *paths: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(RuntimeError):
        train.run(recipe(), world / "tuesday", tmp_path / "run")
    work = tmp_path / ".run.unfinished"
    (work / "summary.json").unlink()
    monkeypatch.setattr(train, "run_stage", refuse)
    with pytest.raises(ConfigError, match="another version of this program made it"):
        train.run(recipe(), world / "tuesday", tmp_path / "run")
    assert (work / "checkpoints" / "final.index").is_file()


def test_an_unfinished_run_of_another_start_is_in_the_way(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "publish", lambda *paths: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(RuntimeError):
        train.run(recipe(), world / "tuesday", tmp_path / "run")
    same = r"--warm-from is in the way \(the recipe is the same, so the data set or --warm-from is another\); finish it"
    with pytest.raises(DataError, match=same):
        train.run(recipe(), world / "tuesday", tmp_path / "run", warm_from=world / "run")
    with pytest.raises(DataError, match=same):
        train.run(recipe(), world / "monday", tmp_path / "run")
    keys = (
        r"is in the way \(optimizer\.clip_norm is None there and 2\.0 here; train\.epochs is 2 there and 3 here\); "
        "finish it with its own command, or discard it with --fresh"
    )
    with pytest.raises(DataError, match=keys):
        train.run(recipe(train={"epochs": 3}, optimizer={"clip_norm": 2.0}), world / "tuesday", tmp_path / "run")
    work = tmp_path / ".run.unfinished"
    lines = (work / "config.toml").read_text().splitlines()
    (work / "config.toml").write_text("\n".join(line for line in lines if not line.startswith("explode_factor")))
    (work / "key").write_text("of a version without this setting, whose default is as before")
    with pytest.raises(DataError, match=r"is in the way \(another version of this program began it\); finish it"):
        train.run(recipe(), world / "tuesday", tmp_path / "run")
    (work / "config.toml").unlink()  # as after a kill before it was written
    with pytest.raises(DataError, match="is in the way; finish it"):
        train.run(recipe(), world / "monday", tmp_path / "run")


def spec(folder: Path, config: Any, values: list[str] | None = None, size: int = 0) -> FeatureSpec:
    if values is None:
        return FeatureSpec("f", config, size=size)
    folder.mkdir(exist_ok=True)
    (folder / "f.txt").write_text("".join(f"{value}\n" for value in values))
    return FeatureSpec("f", config, str(folder / "f.txt"), len(values))


def test_rows_are_found_by_their_values_and_buckets_by_their_number(tmp_path: Path) -> None:
    kind = CategoricalFeature(kind="categorical", oov_buckets=2)
    then, now = spec(tmp_path / "a", kind, ["x", "y", "z"]), spec(tmp_path / "b", kind, ["z", "new", "x\xa0", "x"])
    assert earlier_rows(now, then).tolist() == [0, 3, -1, -1, 1, 4, 5]
    nothing = FeatureSpec("f", IdFeature(kind="id"))
    assert earlier_rows(spec(tmp_path / "c", IdFeature(kind="id"), ["a"]), nothing).tolist() == [0, -1]
    assert earlier_rows(nothing, spec(tmp_path / "c", IdFeature(kind="id"), ["a"])).tolist() == [0]
    hashed = HashedFeature(kind="hashed", buckets=3)
    assert earlier_rows(FeatureSpec("f", hashed), FeatureSpec("f", hashed)).tolist() == [0, 1, 2, 3]
    vector = VectorFeature(kind="vector")
    with pytest.raises(ConfigError, match="f: 3 numbers there, 4 here"):
        earlier_rows(FeatureSpec("f", vector, size=4), FeatureSpec("f", vector, size=3))
