"""`data.ordered` is doubted where the test is a random part of ordered lists, and only there."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipelines.ingest import prepare
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


@pytest.mark.long
@pytest.mark.parametrize(("name", "warned"), [("ml-1m-split", True), ("gowalla", False)])
def test_the_public_splits_are_told_apart(
    name: str, warned: bool, real_data: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare.run(DataConfig(ordered=True), real_data(name), tmp_path / "dataset")
    assert (WARNING in capsys.readouterr().err) == warned
