"""The options of a report's protocol against slow loops over the events, and what each bad value is told."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.evaluation import report
from pipelines.evaluation.protocol.asked import Asked, ask, target_events
from pipelines.evaluation.protocol.options import Protocol
from pipelines.ingest import prepare
from tests.support.worlds.columns import write_bundle_of
from tests.support.worlds.splits import split_world
from towers.config.sections import DataConfig

MISSING = 4  # the number of an item without a vector


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return split_world(tmp_path_factory.mktemp("protocol"), "global_time")


def moment(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()


def rows(data: Dataset) -> np.ndarray:
    found = np.arange(data.manifest.items)
    found[MISSING] = -1
    return found


Taken = list[tuple[int, int, int]]


def taken(data: Dataset, *splits: str) -> Taken:
    """User, item and time of each event that is no impression."""
    parts = [data.events(split) for split in splits]
    return [
        (int(part.user[row]), int(part.item[row]), int(part.time[row]))  # type: ignore[index]
        for part in parts
        for row in range(len(part))
    ]


def slow(
    data: Dataset, protocol: Protocol, counts: Callable[[int], bool]
) -> tuple[dict[int, list[int]], dict[str, int]]:
    """User -> targets, and reason -> number, one event at a time; `counts` tells by its time whether an event does."""
    known, test = taken(data, "train", "valid"), taken(data, "test")
    targets: dict[int, list[int]] = {}
    users, reasons = set(), {"events_again": 0, "dropped_targets": 0, "unreachable_targets": 0}
    done = set()
    first = {user: min(t for u, _, t in test if u == user and counts(t)) for user, _, t in test if counts(t)}
    for user, item, time in test:
        if not counts(time):
            continue
        users.add(user)
        before = {i for u, i, t in known if u == user and t <= first[user]}
        if (user, item) in done:
            reasons["events_again"] += 1
        elif item in before and not protocol.repeats:
            reasons["dropped_targets"] += 1
        elif item == MISSING and protocol.reachable:
            reasons["unreachable_targets"] += 1
        else:
            targets.setdefault(user, []).append(item)
        done.add((user, item))
    reasons["users_without_target"] = len(users - set(targets))
    return targets, reasons


def lists(asked: Asked) -> dict[int, list[int]]:
    parts = np.split(asked.held.target_items, asked.held.target_offsets[1:-1])
    return {int(user): part.tolist() for user, part in zip(asked.held.users, parts, strict=True)}


@settings(max_examples=60)
@given(
    repeats=st.booleans(),
    reachable=st.booleans(),
    gap=st.none() | st.integers(0, 4),
    begin=st.none() | st.integers(1_030, 1_036),
    length=st.none() | st.integers(3, 8),
)
def test_users_targets_and_what_is_left_out_are_those_of_a_slow_loop(
    data: Dataset, repeats: bool, reachable: bool, gap: int | None, begin: int | None, length: int | None
) -> None:
    end = None if length is None else (begin or 1_031) + length
    protocol = Protocol(
        repeats=repeats,
        reachable=reachable,
        gap=None if gap is None else f"{gap}s",
        begin=None if begin is None else moment(begin),
        end=None if end is None else moment(end),
    )
    last = max(time for *_, time in taken(data, "train", "valid"))
    after_gap: Callable[[int], bool] = lambda time: gap is None or time > last + gap  # noqa: E731
    inside: Callable[[int], bool] = lambda time: (begin or 0) <= time < (end or 9_999)  # noqa: E731
    expected, reasons = slow(data, protocol, lambda time: after_gap(time) and inside(time))
    if not expected:
        with pytest.raises(DataError, match=r"no test event is left|no user has a test event"):
            ask(protocol, data, rows(data))
        return
    asked = ask(protocol, data, rows(data))
    assert lists(asked) == expected
    times = [time for *_, time in taken(data, "test")]
    assert asked.left_out == reasons | {
        "impressions": len(data.events("test-impressions")),
        "events_in_gap": sum(not after_gap(time) for time in times),
        "events_outside_window": sum(after_gap(time) and not inside(time) for time in times),
        "users_not_in_sample": 0,
    }
    # Every test event is a target or left out for one reason.
    events = {name: count for name, count in asked.left_out.items() if not name.startswith("users")}
    assert len(asked.held.target_items) + sum(events.values()) == data.manifest.events["test"]
    masked = np.diff(asked.held.masked[0])
    assert not masked.any() if repeats else (masked == np.diff(asked.held.seen_offsets)).all()


def test_the_defaults_leave_nothing_out_that_was_counted_before(data: Dataset) -> None:
    asked = ask(Protocol(), data, rows(data))
    assert asked.left_out["dropped_targets"] and asked.left_out["events_again"] and asked.left_out["impressions"]
    unused = ("events_in_gap", "events_outside_window", "unreachable_targets", "users_not_in_sample")
    assert not any(asked.left_out[reason] for reason in unused)
    assert Protocol().words == []


def test_a_sample_is_that_of_its_seed_with_the_lists_of_its_users(data: Dataset) -> None:
    whole = ask(Protocol(), data, rows(data))
    drawn = [ask(Protocol(users=5, seed=seed), data, rows(data)) for seed in (0, 0, 1)]
    for each in drawn:
        assert len(each.held.users) == 5 and each.left_out["users_not_in_sample"] == len(whole.held.users) - 5
        assert lists(each).items() <= lists(whole).items()
        for place, user in enumerate(each.held.users):
            row = int(np.flatnonzero(whole.held.users == user)[0])
            mine, all_of = (
                h.seen_items[h.seen_offsets[n] : h.seen_offsets[n + 1]]
                for h, n in (
                    (each.held, place),
                    (whole.held, row),
                )
            )
            assert mine.tolist() == all_of.tolist()
    assert lists(drawn[0]) == lists(drawn[1]) != lists(drawn[2])
    assert lists(ask(Protocol(users=10_000), data, rows(data))) == lists(whole)


def test_the_event_of_a_target_is_the_first_that_counts(data: Dataset) -> None:
    asked = ask(Protocol(begin=moment(1_034)), data, rows(data))
    events = data.events("test")
    assert events.time is not None
    place = 0
    for user, items in lists(asked).items():
        for item in items:
            theirs = [
                row
                for row in range(len(events))
                if (events.user[row], events.item[row]) == (user, item) and events.time[row] >= 1_034
            ]
            assert target_events(data, asked.held, asked.window)[place] == theirs[0]
            place += 1


def test_an_impression_before_the_event_of_a_target_is_not_it(tmp_path: Path) -> None:
    rows = [(f"u{user}", f"i{item}", 1_000 + item, 5, "tv") for user in range(9) for item in range(9)]
    for user in range(9):
        rows += [
            (f"u{user}", f"new{user % 2}", 2_000 + user, 0, "web"),
            (f"u{user}", f"new{user % 2}", 3_000, 5, "phone"),
        ]
    schema = ["user", "item", "time", "rating", "device"]
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(tmp_path / "e.parquet")
    config = DataConfig(split="global_time", duplicates="keep", valid_share=0.1, test_share=0.15)
    prepare.run(config, tmp_path / "e.parquet", tmp_path / "set")
    shown = Dataset.open(tmp_path / "set")
    asked = ask(Protocol(), shown, np.arange(shown.manifest.items))
    context = shown.context("test")
    assert context is not None and asked.left_out["impressions"] > 0
    devices = context.collect()["device"].gather(target_events(shown, asked.held, asked.window))
    assert devices.to_list() == ["phone"] * 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gap": "soon"}, "--gap soon: not a time span; allowed is a whole number with s, m, h, d or w, like 7d"),
        ({"gap": "400d"}, r"--gap 400d: no test event is left; those of .* are from 1970-01-01T00:1"),
        ({"begin": "yesterday"}, "--from yesterday: not an ISO date or time"),
        ({"end": ""}, "--until : not an ISO date or time"),
        ({"begin": "1970-01-02", "end": "1970-01-01"}, "--from 1970-01-02 --until 1970-01-01: --from must be before"),
        ({"begin": "2026-11-01"}, "--from 2026-11-01: no test event is left"),
        ({"users": 0}, "--users 0: must be at least 1"),
        ({"seed": -1}, "--seed -1: must be at least 0"),
        ({"seed": 1}, "^--seed 1: is of a sample of users; give --users, too$"),
    ],
)
def test_a_bad_value_is_named(data: Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ask(Protocol(**options), data, rows(data))


@pytest.mark.parametrize("options", [{"gap": "7d"}, {"begin": "2026-11-01"}, {"end": "2026-11-01"}])
def test_data_without_times_know_no_gap_and_no_window(tmp_path: Path, options: dict[str, str]) -> None:
    untimed = split_world(tmp_path, "random")
    with pytest.raises(DataError, match=r"the events of .* are not timed \(split random\)"):
        ask(Protocol(**options), untimed, rows(untimed))  # type: ignore[arg-type]


def test_all_targets_unreachable_is_an_error(data: Dataset) -> None:
    with pytest.raises(DataError, match=r"--reachable-only: .*no user has a test event"):
        ask(Protocol(reachable=True), data, np.full(data.manifest.items, -1))


def test_a_date_without_a_zone_is_in_that_of_the_data_set(data: Dataset) -> None:
    assert Protocol(begin="1970-01-01T00:17").window(data) == (1_020, None)
    assert Protocol(end="1970-01-01T02:17+02:00").window(data) == (None, 1_020)
    assert Protocol(begin="1970-01-01T00:17:00.5").window(data) == (1_021, None)
    config = data.manifest.config.model_copy(update={"time_zone": "Asia/Kolkata"})
    there = Dataset(data.path, data.manifest.model_copy(update={"config": config}))
    assert Protocol(begin="1970-01-01T05:47").window(there) == (1_020, None)


def test_a_report_says_its_protocol_and_ranks_what_the_user_took_before(data: Dataset) -> None:
    out = data.path.parent / "report"
    protocol = Protocol(repeats=True, users=20, seed=3, begin=moment(1_033))
    report.run(write_bundle_of(data.path), data.path, out, ks=[3, 5], maps=[], protocol=protocol, user_ids=True)
    content = json.loads((out / "report.json").read_text())
    assert "nothing masked" in content["protocol"] and content["protocol_options"]["repeats"] is True
    assert content["counts"]["masked_events"] == 0
    assert len(content["protocol_options"]["words"]) == 3
    for name in ("report.html", "report.md"):
        text = (out / name).read_text()
        assert all(word in text for word in content["protocol_options"]["words"])
        assert f"{content['left_out']['events_outside_window']:,} test events left out: not between" in text
    held = ask(protocol, data, np.arange(data.manifest.items)).held
    found = pl.read_parquet(out / "per_user.parquet")
    # The bundle's vectors, in the order of the data set.
    generator = np.random.default_rng(1)
    items = generator.normal(size=(data.manifest.items, 4)).astype(np.float32)
    users = generator.normal(size=(data.manifest.users, 4)).astype(np.float32)
    counts = np.zeros(data.manifest.items)
    for _, item, _ in taken(data, "train", "valid"):
        counts[item] += 1
    popular = np.argsort(-counts, kind="stable")
    places = zip(held.users, np.split(held.target_items, held.target_offsets[1:-1]), strict=True)
    for row, (user, targets) in enumerate(places):
        best = np.argsort(-(items @ users[user]))
        for name, order in (("exact", best), ("popularity", popular)):
            assert found[f"{name}_recall@5"][row] == pytest.approx(np.isin(targets, order[:5]).mean())
            capped = np.isin(targets, order[:3]).sum() / min(3, len(targets))
            assert found[f"{name}_capped_recall@3"][row] == pytest.approx(capped)
