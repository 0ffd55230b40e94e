"""What is told of a path that is no bundle: what lies there, and the command that makes a bundle."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.dataset import dataset
from pipelines.training import train
from serving.bundle.reader import Bundle
from serving.bundle.versions import bundle_root
from serving.errors import BundleError
from tests.support.worlds.serving import write_world


def bundles(path: Path, count: int) -> None:
    path.mkdir()
    for number in range(count):
        write_world(path / f"v{number}")


def directory_with(name: str) -> Callable[[Path], object]:
    return lambda path: (path.mkdir(), (path / name).write_text("{}"))


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: None, "no such directory; `towers export --run RUN --out BUNDLE` makes a bundle"),
    "a file": (
        lambda path: path.write_text("x"),
        "a file; a bundle is a directory, and `towers export --run RUN --out BUNDLE` makes one",
    ),
    "an empty directory": (
        Path.mkdir,
        "no manifest.json in it, and no bundles; `towers export --run RUN --out BUNDLE` makes a bundle",
    ),
    # By the names that the commands themselves write.
    "a run": (
        directory_with(train.SUMMARY),
        "it is a run; `towers export --run PATH --out BUNDLE` makes a bundle of it",
    ),
    "a data set": (
        directory_with(dataset.MANIFEST),
        "it is a data set; `towers train --dataset PATH --config RECIPE --out RUN` and then "
        "`towers export --run RUN --out BUNDLE` make a bundle",
    ),
    "two bundles": (lambda path: bundles(path, 2), "it is a directory of bundles; name one: PATH/v0, PATH/v1"),
    "seven bundles": (
        lambda path: bundles(path, 7),
        "it is a directory of bundles; name one: PATH/v0, PATH/v1, PATH/v2, PATH/v3, PATH/v4 and 2 more",
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_what_is_no_bundle_is_named_with_the_way_to_one(tmp_path: Path, kind: str) -> None:
    make, reason = CASES[kind]
    path = tmp_path / "given"
    make(path)
    told = f"{path}: not a bundle: {reason.replace('PATH', str(path))}"
    with pytest.raises(BundleError, match=f"^{re.escape(told)}$"):
        Bundle.open(path)
    if "bundles" not in kind:  # of which one could be active, which has errors of its own
        with pytest.raises(BundleError, match=f"^{re.escape(told)}$"):
            bundle_root(path)
