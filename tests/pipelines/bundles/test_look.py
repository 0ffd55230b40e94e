"""`towers look`: what it refuses before it starts, what it marks, and one run until Ctrl-C."""

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from pipelines.bundles import look
from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from tests.support.paths import ROOT
from tests.support.worlds.serving import write_world

BUNDLE, DATASET = ROOT / "tests" / "golden" / "bundle", ROOT / "tests" / "golden" / "dataset"


def pairs(data: Dataset, split: str) -> set[tuple[str, str]]:
    """Users and items of the positive events of a split."""
    users, items, events = data.users["user_id"].to_list(), data.items["item_id"].to_list(), data.events(split)
    return {(users[user], items[item]) for user, item in zip(events.user, events.item, strict=True)}


def test_what_is_marked_are_the_test_items_that_the_user_had_not_taken_before() -> None:
    data = Dataset.open(DATASET)
    wanted = pairs(data, "test") - pairs(data, "train") - pairs(data, "valid")
    held_out = look._held_out(DATASET, [Bundle.open(BUNDLE, verify=False)])
    found = {(user, item) for user in data.users["user_id"].to_list() for item in held_out(user)}
    assert found and found == wanted
    assert held_out("nobody") == []


def test_a_data_set_of_another_model_is_refused(tmp_path: Path) -> None:
    write_world(tmp_path / "world")
    with pytest.raises(BundleError, match=r"world: was trained on the data set .*, but .*golden/dataset is "):
        look.run([BUNDLE, tmp_path / "world"], DATASET, browse=False)


def test_a_bundle_without_lineage_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_world(tmp_path / "world", lineage={})
    look._held_out(DATASET, [Bundle.open(tmp_path / "world")])
    assert "world does not name its data set" in capsys.readouterr().err


@pytest.mark.parametrize("count", [0, 3])
def test_one_bundle_or_two(count: int) -> None:
    with pytest.raises(DataError, match=f"give one bundle, or two to compare them; got {count}"):
        look.run([BUNDLE] * count, browse=False)


def test_a_damaged_bundle_is_told_before_anything_listens(tmp_path: Path) -> None:
    write_world(tmp_path / "world")
    (tmp_path / "world" / "popularity.npy").write_bytes(b"")
    with pytest.raises(BundleError, match=r"popularity\.npy"):
        look.run([tmp_path / "world"], browse=False)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGHUP])
def test_it_answers_on_this_machine_until_ctrl_c_or_its_terminal_closes(
    end: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Settings of a service are not its own.
    monkeypatch.setenv("TOWERS_KEYS", "nowhere.toml")
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a child inherits it if it is ignored
    words = ["look", "--bundle", BUNDLE, "--bundle", BUNDLE, "--dataset", DATASET, "--no-open"]
    process = subprocess.Popen([sys.executable, "-m", "pipelines", *map(str, words)], stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGHUP, before)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "Ctrl-C ends it" in line)
        address = line.split()[0]
        assert address.startswith("http://127.0.0.1:")
        user = Bundle.open(BUNDLE, verify=False).query_names[0]
        answer = httpx.get(address, params={"user": user, "k": "5"}, timeout=60)
        assert answer.status_code == 200
        for part in ("A: bundle", "B: bundle", "What differs", "100 % of the items are in both lists"):
            assert part in answer.text
        # As a forwarded port is called.
        assert httpx.get(address, headers={"host": "localhost:8000"}).status_code == 200
        # A page elsewhere whose name leads here learns nothing.
        assert httpx.get(address, headers={"host": "elsewhere.example"}).status_code == 400
        process.send_signal(end)
        assert process.wait(30) == (0 if end == signal.SIGINT else -end)
    finally:
        process.kill()
        process.wait()
