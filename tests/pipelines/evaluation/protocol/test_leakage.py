"""What leaks into a test: each finding on data made for it, and none on sound data."""

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout
from pipelines.evaluation.findings import NAMES, look
from pipelines.evaluation.protocol.leakage import leak_checks
from pipelines.ingest import prepare
from serving.bundle.manifest import PriorInfo
from tests.support.worlds.columns import Event, make_events, write_dataset
from towers.config.sections import DataConfig

START = 1_700_000_000


def found(data: Dataset) -> dict[str, float]:
    told = {each.name: each.value for each in look(leak_checks(data, heldout(data, "test")))}
    # A rule of a gate can name each of them, whatever the column.
    assert {re.sub(r"^(users|items)\.\w+ ", "", name) for name in told} <= {*NAMES}
    return told


def prepared(folder: Path, events: list[Event], **config: Any) -> Dataset:
    """The data set of these events, with the columns of `users.parquet` and `items.parquet` in the folder."""
    schema = ["user_id", "item_id", "timestamp", "device"]
    frame = pl.DataFrame(events, schema=schema, orient="row")
    if config.get("split") == "random":
        frame = frame.drop("timestamp")
    frame.write_parquet(folder / "events.parquet")
    sides: dict[str, Any] = {
        side: folder / f"{side}.parquet" for side in ("users", "items") if (folder / f"{side}.parquet").exists()
    }
    prepare.run(DataConfig(**config), folder / "events.parquet", folder / "dataset", overwrite=True, **sides)
    return Dataset.open(folder / "dataset")


def last_of(events: list[Event]) -> dict[str, str]:
    return {user: item for user, item, *_ in events}


def test_a_prior_that_ends_before_the_first_test_event_that_counts_knows_none(tmp_path: Path) -> None:
    day = 86_400
    events: list[Event] = [(f"u{user}", f"i{user % 7}", START + user, "web") for user in range(40)]
    events += [(f"u{user}", f"i{(user + 1) % 7}", START + (3 + user % 4) * day, "web") for user in range(10)]
    data = prepared(tmp_path, events, split="global_time", test_share=0.2, valid_share=0.1)
    held, tested = heldout(data, "test"), data.events("test").time
    assert tested is not None and tested.min() == START + 3 * day

    def told(days: float, window: tuple[int | None, int | None] = (None, None)) -> list[float]:
        prior = PriorInfo(now=1.0, past=0.5, until=int(START + days * day), mean_count=1.0, new_item=(0.0, 0.0))
        return [round(each.value) for each in look(leak_checks(data, held, prior, window=window))]

    assert told(2.9) == [] and told(3) == [3]
    assert told(4.5, (START + 5 * day, None)) == [] and told(4.5, (None, START + 6 * day)) == [4]


def test_sound_data_leak_nothing(tmp_path: Path) -> None:
    assert found(Dataset.open(write_dataset(make_events(), tmp_path))) == {}


@pytest.mark.parametrize("block", [30, 10**6])
def test_events_that_were_logged_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("pipelines.dataset.heldout.BLOCK_EVENTS", block)
    events = make_events()
    doubled = [event for event in events if event[0] in ("u3", "u7", "u8") and event[1] == last_of(events)[event[0]]]
    # An item that is only taken again, at another time, is no leak.
    again = [(user, item, time + 60, device) for user, item, time, device in events if user == "u1"][-1:]
    data = prepared(tmp_path, events + doubled + again, split="leave_last_out", duplicates="keep")
    assert found(data) == {"test events in training": 3}


def test_users_and_items_under_two_ids(tmp_path: Path) -> None:
    events = make_events()
    copied = [("copy", *event[1:]) for event in events if event[0] == "u5"]
    # The same items as another user, but at other times.
    other = [("other", item, time + 1, device) for user, item, time, device in events if user == "u6"]
    data = prepared(tmp_path, events + copied + other, split="leave_last_out")
    assert found(data) == {"users under two ids": 2}
    (finding,) = look(leak_checks(data, heldout(data, "test")))
    assert "u5" not in finding.text and "copy" not in finding.text  # a report names no user
    pairs = [(user, "twin", time, device) for user, item, time, device in events if item == "i4"]
    data = prepared(tmp_path, events + pairs, split="leave_last_out")
    assert found(data) == {"items under two ids": 2}
    (finding,) = look(leak_checks(data, heldout(data, "test")))
    assert "'i4'" in finding.text and "'twin'" in finding.text


def test_without_a_clock_equal_sets_of_ten_are_needed(tmp_path: Path) -> None:
    events = [(f"u{user}", f"i{(user * 7 + place * place) % 53}", 0, "web") for user in range(9) for place in range(12)]
    events = list(dict.fromkeys(events))
    twin = [("copy", *event[1:]) for event in events if event[0] == "u2"]
    few = [(name, f"x{place}", 0, "web") for name in ("short", "shorter") for place in range(9)]
    assert len(twin) >= 10
    assert found(prepared(tmp_path, events + twin + few, split="random")) == {"users under two ids": 2}
    assert found(prepared(tmp_path, events + few, split="random")) == {}


def columns_of(events: list[Event], folder: Path, told: int, kind: str) -> None:
    """Columns of users, one of which names the last item of the first `told` of them, as a text or in a list."""
    last = last_of(events)
    names = sorted(last, key=lambda name: int(name[1:]))
    values: list[Any] = [last[name] if place < told else "i999" for place, name in enumerate(names)]
    if kind == "list":
        values = [["i999", value] for value in values]
    users = {"user_id": names, "next": values, "country": ["DE", "FR"] * (len(names) // 2)}
    pl.DataFrame(users).write_parquet(folder / "users.parquet")


@pytest.mark.parametrize("kind", ["text", "list"])
def test_a_column_of_users_that_names_the_target(tmp_path: Path, kind: str) -> None:
    events = make_events()
    columns_of(events, tmp_path, 12, kind)
    leaking = found(prepared(tmp_path, events, split="leave_last_out"))
    assert leaking == pytest.approx({"users.next names the target": 12 / 40})
    columns_of(events, tmp_path, 2, kind)
    assert found(prepared(tmp_path, events, split="leave_last_out")) == {}


def test_a_number_can_name_a_target_and_one_value_for_all_is_chance(tmp_path: Path) -> None:
    events = [(user[1:], item[1:], time, device) for user, item, time, device in make_events()]
    last = last_of(events)
    names = sorted(last)
    most = max(set(last.values()), key=list(last.values()).count)
    numbers = [float(last[name]) for name in names]
    users = {"user_id": names, "next": numbers, "bestseller": [most] * len(names), "weight": [0.5] * len(names)}
    pl.DataFrame(users).write_parquet(tmp_path / "users.parquet")
    assert found(prepared(tmp_path, events, split="leave_last_out")) == {"users.next names the target": 1.0}


def test_a_column_of_items_that_names_the_user(tmp_path: Path) -> None:
    events = make_events()
    buyers: dict[str, list[str]] = {f"i{item}": [] for item in range(20)}
    for user, item in last_of(events).items():
        buyers[item].append(user)
    pl.DataFrame({"item_id": list(buyers), "buyers": list(buyers.values())}).write_parquet(tmp_path / "items.parquet")
    assert found(prepared(tmp_path, events, split="leave_last_out")) == {"items.buyers names the target": 1.0}


def test_a_long_number_names_a_target_with_all_its_digits(tmp_path: Path) -> None:
    """Beyond 2**53 a float cannot tell one item from the next."""
    first = 1_234_567_890_123_456_789
    events = [(user, str(first + int(item[1:])), time, device) for user, item, time, device in make_events()]
    last = last_of(events)
    pl.DataFrame({"user_id": list(last), "next": [*map(int, last.values())]}).write_parquet(tmp_path / "users.parquet")
    assert found(prepared(tmp_path, events, split="leave_last_out")) == {"users.next names the target": 1.0}


@pytest.mark.parametrize(
    ("later", "folded", "days"),
    [
        (0, None, None),
        (0, 0, None),
        (86_400, None, 1.0),
        (86_400, 0, 1.0),
        (0, 86_400, 1.0),
        (None, 86_400, 1.0),
        (None, None, 0.0),  # renewed from events without times
        (None, 0, 0.0),
    ],
)
def test_a_prior_that_counts_events_after_the_last_one_that_may_be_known(
    tmp_path: Path, later: int | None, folded: int | None, days: float | None
) -> None:
    data = prepared(tmp_path, make_events())
    times = [data.events(split).time for split in ("train", "valid")]
    last = max(int(time.max()) for time in times if time is not None)
    until, folded_until = (None if each is None else last + each for each in (later, folded))
    prior = PriorInfo(now=1.0, past=0.5, until=until, folded_until=folded_until, mean_count=1.0, new_item=(0.0, 0.0))
    told = {each.name: each.value for each in look(leak_checks(data, heldout(data, "test"), prior))}
    assert told == ({} if days is None else {"prior of the test's time": days})
    # Without a weight the counts only rank the popular items, the answer to users of whom nothing is known.
    weightless, held = prior.model_copy(update={"now": 0.0, "past": 0.0}), heldout(data, "test")
    assert look(leak_checks(data, held, weightless)) == []
    texts = [each.text for each in look(leak_checks(data, held, weightless, unknown=3))]
    counted = "of 1.0 days" if days else "without times: some may be the test's"
    said = f"the list of popular items, the answer to 3 test users of whom nothing is known, counts events {counted}"
    assert [text.startswith(said) for text in texts] == ([] if days is None else [True])
