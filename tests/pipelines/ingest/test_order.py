"""What the order of lists tells: `data.ordered` is doubted where the test is a random part, and only there.

The validation is the end of each list where the test comes after the lists.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from pipelines.ingest.validation import Places
from pipelines.training import check
from towers.config.recipe import parse_config
from towers.config.sections import DataConfig

WARNING = "warning: data.ordered: the test does not seem to come after the lists"
ITEMS, USERS, LENGTH, HELD = 300, 400, 30, 6


def write_lists(folder: Path, test: str, *, walk: bool = True, users: int = USERS) -> None:
    """Each user goes on from item to item, in small steps; 6 of 30 items are the test, from the end or at random."""
    rng = np.random.default_rng(5)
    lines: dict[str, list[str]] = {"train": [], "test": []}
    for user in range(users):
        taken = (rng.integers(ITEMS) + np.cumsum(rng.integers(1, 4, LENGTH))) % ITEMS
        taken = taken if walk else rng.permutation(taken)
        held = np.arange(LENGTH) >= LENGTH - HELD
        held = held if test == "end" else rng.permutation(held)
        for name, part in (("train", taken[~held]), ("test", rng.permutation(taken[held]))):
            lines[name].append(" ".join(map(str, [user, *part])))
    folder.mkdir()
    for name, rows in lines.items():
        (folder / f"{name}.txt").write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("validation", ["auto", "last"])
@pytest.mark.parametrize(
    ("test", "walk", "users", "warned"),
    [
        ("random", True, USERS, True),
        ("end", True, USERS, False),
        ("random", False, USERS, False),  # no order, so none that gives anything away
        ("random", True, 40, False),  # too few to tell
    ],
)
def test_a_random_part_of_ordered_lists_is_no_test_of_what_comes_next(
    test: str, walk: bool, users: int, warned: bool, validation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lists(tmp_path / "lists", test, walk=walk, users=users)
    config = DataConfig.model_validate({"ordered": True, "validation": validation})
    prepare.run(config, tmp_path / "lists", tmp_path / "dataset")
    assert (WARNING in capsys.readouterr().err) == warned
    if validation == "auto":
        prepare.run(DataConfig(), tmp_path / "lists", tmp_path / "plain")
        assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("test", "walk", "users", "settings", "share"),
    [
        ("end", True, USERS, {}, 0.2),  # as large a share as the test's 6 of 30
        ("end", True, USERS, {"valid_share": 0.1}, 0.1),
        ("end", True, USERS, {"validation": "random"}, None),
        ("end", True, USERS, {"ordered": False}, None),  # the recipe says that they are sets
        ("end", True, 40, {}, None),  # too few to tell
        ("end", True, 40, {"ordered": True}, 0.2),  # the recipe tells
        ("end", False, USERS, {}, None),  # no order
        ("random", True, USERS, {}, None),
        ("random", True, USERS, {"ordered": True}, None),
    ],
)
def test_the_end_of_each_list_validates_where_the_test_comes_after_it(
    test: str,
    walk: bool,
    users: int,
    settings: dict[str, Any],
    share: float | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_lists(tmp_path / "lists", test, walk=walk, users=users)
    manifest = prepare.run(DataConfig.model_validate(settings), tmp_path / "lists", tmp_path / "dataset")
    said = capsys.readouterr().err
    assert manifest.timed == (share is not None)
    if share is None:
        # A random part, as large as the test's 6 of 30, too.
        assert manifest.config == DataConfig.model_validate(settings | {"valid_share": 0.2})
        assert "validation: the last" not in said
        assert "validation: 20% of the events outside the test, as the test is of all" in said
        return
    chosen = manifest.config
    assert (chosen.ordered, chosen.validation, chosen.valid_share) == (True, "last", share)
    assert f"validation: the last {share:.0%} of each user's events, because the test comes after" in said
    lists = [line.split() for line in (tmp_path / "lists" / "train.txt").read_text().splitlines()]
    data = Dataset.open(tmp_path / "dataset")
    valid, names, ids = data.events("valid"), data.users["user_id"], data.items["item_id"]
    held = {(names[user], ids[item]) for user, item in zip(valid.user.tolist(), valid.item.tolist(), strict=True)}
    count = round(share * (LENGTH - HELD))
    # An item that a user took twice counts once, where it came first: such a list ends earlier.
    assert {(user, item) for user, *items in lists if len(set(items)) == len(items) for item in items[-count:]} <= held


def test_shares_that_the_recipe_names_stay_as_they_are(tmp_path: Path) -> None:
    write_lists(tmp_path / "lists", "end")
    config = DataConfig(valid_share=0.92, test_share=0.05)
    chosen = prepare.run(config, tmp_path / "lists", tmp_path / "dataset").config
    assert (chosen.validation, chosen.valid_share, chosen.test_share) == ("last", 0.92, 0.05)


@pytest.mark.parametrize("validation", ["random", "last"])
def test_a_share_that_the_recipe_names_stays(validation: str, tmp_path: Path) -> None:
    write_lists(tmp_path / "lists", "random", users=40)
    keys = {"ordered": True, "validation": validation, "valid_share": 0.3}
    manifest = prepare.run(DataConfig.model_validate(keys), tmp_path / "lists", tmp_path / "dataset")
    assert manifest.config == DataConfig.model_validate(keys)


@pytest.mark.parametrize(
    ("held", "tested", "said"),
    [
        (7, 40, "50% of the events outside the test, the most that validate"),
        (5, 40, "50% of the events outside the test, as the test is of all"),
        (1, 5, "5% of the events outside the test, the least that validate"),
    ],
)
def test_a_share_at_its_limit_is_not_called_that_of_the_test(
    held: int, tested: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of ten items of 40 users the first few are the test of some."""
    for name, users, items in (("train", 40, range(held, 10)), ("test", tested, range(held))):
        rows = [" ".join(map(str, [user, *items])) for user in range(users)]
        (tmp_path / f"{name}.txt").write_text("\n".join(rows) + "\n")
    # A share of the test, which the files give, is in nothing's way.
    config = parse_config({"data": {"test_share": 0.6}})
    prepare.run(config.data, tmp_path, tmp_path / "dataset")
    assert f"validation: {said}\n" in capsys.readouterr().err
    check.run(config, tmp_path / "dataset")


@pytest.mark.parametrize(
    ("file", "users", "settings", "stays"),
    [
        ("random", USERS, {}, False),
        ("random", USERS, {"ordered": True}, False),
        ("random", USERS, {"validation": "given"}, True),
        ("random", 40, {"ordered": True}, True),  # too few to tell
        ("end", USERS, {}, True),
        ("end", USERS, {"ordered": True}, True),
    ],
)
def test_a_validation_file_stays_unless_it_is_unlike_the_test(
    file: str,
    users: int,
    settings: dict[str, Any],
    stays: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_lists(tmp_path / "lists", "end", users=users)
    train = [line.split() for line in (tmp_path / "lists" / "train.txt").read_text().splitlines()]
    rng = np.random.default_rng(1)
    places = [
        rng.permutation(len(items) - 1) if file == "random" else np.arange(len(items))[:0:-1] - 1 for items in train
    ]
    for name, kept in (("train", False), ("valid", True)):
        rows = [
            " ".join([user, *(item for item, place in zip(items, own, strict=True) if (place < 4) == kept)])
            for (user, *items), own in zip(train, places, strict=True)
        ]
        (tmp_path / "lists" / f"{name}.txt").write_text("\n".join(rows))
    config = DataConfig.model_validate(settings)
    manifest = prepare.run(config, tmp_path / "lists", tmp_path / "dataset")
    said = capsys.readouterr().err
    if not stays:
        chosen = manifest.config
        assert (chosen.ordered, chosen.validation, chosen.valid_share) == (True, "last", 0.2)
        assert "; the validation file trains, data.validation = 'given' keeps it" in said
    else:
        told = "validation: its file, which is not known to be a random part of the lists"
        assert (told in said) == (settings.get("validation") != "given")
        assert manifest.config == config and manifest.events["valid"] == 4 * users


@pytest.mark.parametrize(
    ("found", "after", "random"),
    [
        (Places(held=0.65, error=0.01, end=0.6, end_error=0.01), True, False),
        (Places(held=0.51, error=0.005, end=0.6, end_error=0.01), False, True),
        (Places(held=0.55, error=0.01, end=0.6, end_error=0.01), False, False),  # between the two
        (Places(held=0.65, error=0.01, end=0.52, end_error=0.01), False, False),  # the lists show no order
        (Places(held=0.5, error=0.001, end=0.52, end_error=0.01), False, False),
    ],
)
def test_places_tell_only_what_is_sure(found: Places, after: bool, random: bool) -> None:
    assert (found.after, found.random) == (after, random)


@pytest.mark.parametrize(("time", "last"), [("9", True), ("2", False)])
def test_times_tell_whether_the_test_comes_after(time: str, last: bool, tmp_path: Path) -> None:
    source = tmp_path / "given"
    source.mkdir()
    (source / "train.csv").write_text("user,item,time\nu,a,3\nu,b,1\nu,c,2\nu,d,4\n")
    (source / "test.csv").write_text(f"user,item,time\nu,e,{time}\n")
    manifest = prepare.run(DataConfig(), source, tmp_path / "dataset")
    assert manifest.timed == last
    assert (manifest.config.validation, manifest.config.ordered) == ("last" if last else "auto", False)
    if last:  # a fifth, as the test has of all: one of the four
        data = Dataset.open(tmp_path / "dataset")
        assert data.items["item_id"][data.events("valid").item.tolist()].to_list() == ["d"]


@pytest.mark.parametrize(("train", "test", "share"), [(99, 1, 0.05), (60, 40, 0.4), (2, 98, 0.5)])
def test_the_validation_is_neither_tiny_nor_most_of_the_events(
    train: int, test: int, share: float, tmp_path: Path
) -> None:
    source = tmp_path / "given"
    source.mkdir()
    for name, times in (("train", range(train)), ("test", range(train, train + test))):
        (source / f"{name}.csv").write_text("\n".join(["user,item,time", *(f"u,i{time},{time}" for time in times)]))
    manifest = prepare.run(DataConfig(), source, tmp_path / "dataset")
    assert manifest.config.valid_share == share
    assert manifest.events["valid"] == round(share * train)


@pytest.mark.long
@pytest.mark.parametrize(("name", "warned"), [("ml-1m-split", True), ("gowalla", False)])
def test_the_public_splits_are_told_apart(
    name: str, warned: bool, real_data: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare.run(DataConfig(ordered=True), real_data(name), tmp_path / "dataset")
    assert (WARNING in capsys.readouterr().err) == warned
    for file in ("train.txt", "test.txt"):  # without a validation file, if there is one
        (tmp_path / "plain").mkdir(exist_ok=True)
        (tmp_path / "plain" / file).symlink_to(real_data(name) / file)
    manifest = prepare.run(DataConfig(), tmp_path / "plain", tmp_path / "found")
    chosen = manifest.config.validation, manifest.config.valid_share, manifest.timed
    # The test is 99,455 of 895,699 and 217,242 of 936,323 events.
    assert chosen == (("auto", 0.11, False) if warned else ("last", 0.23, True))
