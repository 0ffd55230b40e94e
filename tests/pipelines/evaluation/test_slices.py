"""The slices of a report against slow loops over the files that a person wrote."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.evaluation import report
from pipelines.evaluation.slices import slices_of_values
from pipelines.ingest import prepare
from tests.support.worlds.columns import USERS, Event, country, genres, make_events, write_bundle_of, write_dataset
from towers.config.sections import DataConfig


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return make_events()


@pytest.fixture(scope="module")
def dataset(events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(events, tmp_path_factory.mktemp("slices"))


@pytest.fixture(scope="module")
def bundle(dataset: Path) -> Path:
    return write_bundle_of(dataset)


@pytest.fixture(scope="module")
def content(bundle: Path, dataset: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """The report, and recall@5 of each user, who has one target."""
    wanted = ["country", "genres", "device", "users.age"]
    report.run(bundle, dataset, dataset.parent / "report", ks=[5], slices=wanted, user_ids=True)
    written = json.loads((dataset.parent / "report" / "report.json").read_text())
    found = pl.read_parquet(dataset.parent / "report" / "per_user.parquet").select("user_id", "exact_recall@5")
    return written, dict(found.iter_rows())


def last(events: list[Event]) -> dict[str, Event]:
    return {event[0]: event for event in events}


def check(part: dict[str, Any], recall: dict[str, float], users: set[str]) -> None:
    assert (part["users"], part["targets"]) == (len(users), len(users)) and part["small"]
    value = part["metrics"]["exact"]["recall@5"]["value"]
    assert value == pytest.approx(np.mean([recall[user] for user in users]), abs=1e-6)


def test_each_user_is_known_by_slice_so_that_two_reports_can_be_paired(
    content: tuple[dict[str, Any], dict[str, float]], dataset: Path
) -> None:
    slices, rows = content[0]["slices"], pl.read_parquet(dataset.parent / "report" / "per_user.parquet")
    assert rows["country: DE"].to_list() == [country(int(user[1:])) == "DE" for user in rows["user_id"]]
    kinds = Counter()
    for name, part in [*slices.items(), ("new_items", content[0]["new_items"])]:
        figures = part["metrics"]
        kinds["users" if name in rows.columns else "targets"] += 1
        for ranker in ("exact", "index") if figures else ():
            if name in rows.columns:
                found = rows.filter(name)[f"{ranker}_recall@5"]
            else:
                found = rows[f"{ranker}_{name}@5"].drop_nans()
            assert len(found) == part["users"]
            assert found.mean() == pytest.approx(figures[ranker]["recall@5"]["value"], abs=1e-6), name
    assert kinds["users"] > 5 and kinds["targets"] > 5


def test_a_column_of_users_with_a_missing_value(content: tuple[dict[str, Any], dict[str, float]]) -> None:
    written, recall = content
    for value, label in (("DE", "DE"), ("FR", "FR"), (None, "missing")):
        users = {f"u{user}" for user in range(USERS) if country(user) == value}
        check(written["slices"][f"country: {label}"], recall, users)


def test_a_column_of_lists_of_items_is_about_targets(
    events: list[Event], content: tuple[dict[str, Any], dict[str, float]]
) -> None:
    written, recall = content
    for genre in ("drama", "comedy"):
        users = {user for user, event in last(events).items() if genre in (genres(int(event[1][1:])) or [])}
        check(written["slices"][f"genres: {genre}"], recall, users)
    users = {user for user, event in last(events).items() if not genres(int(event[1][1:]))}
    check(written["slices"]["genres: missing"], recall, users)


def test_a_column_of_events_is_that_of_the_held_out_event(
    events: list[Event], content: tuple[dict[str, Any], dict[str, float]]
) -> None:
    written, recall = content
    for device in ("phone", "web"):
        users = {user for user, event in last(events).items() if event[3] == device}
        check(written["slices"][f"device: {device}"], recall, users)


def test_the_type_of_the_held_out_event_is_a_slice_by_the_name_of_its_column(tmp_path: Path) -> None:
    kinds = ["buy", "click", None]
    rows = [(*event[:3], kinds[int(event[1][1:]) % 3]) for event in make_events()]
    pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp", "action"], orient="row").write_parquet(
        tmp_path / "events.parquet"
    )
    dataset = tmp_path / "dataset"
    prepare.run(DataConfig(split="leave_last_out"), tmp_path / "events.parquet", dataset)
    bundle = write_bundle_of(dataset)
    given: dict[str, Any] = {"ks": [5], "user_ids": True, "overwrite": True}
    for name in ("action", "events.action"):
        written = report.run(bundle, dataset, tmp_path / "report", slices=[name], **given)
        found = pl.read_parquet(tmp_path / "report" / "per_user.parquet").select("user_id", "exact_recall@5")
        recall = dict(found.iter_rows())
        for kind in kinds:
            users = {row[0] for row in {row[0]: row for row in rows}.values() if row[3] == kind}
            check(written["slices"][f"{name}: {kind or 'missing'}"], recall, users)
    with pytest.raises(DataError, match=r"--slice type: no such column; the data set has events\.action$"):
        report.run(bundle, dataset, tmp_path / "report", slices=["type"], **given)


def test_a_number_is_cut_into_bands_that_cover_everybody_once(content: tuple[dict[str, Any], dict[str, float]]) -> None:
    written, recall = content
    bands = {name: part for name, part in written["slices"].items() if part["group"] == "users.age"}
    assert list(bands) == ["users.age: 20 to 28", "users.age: 29 to 38", "users.age: 39 to 48", "users.age: 49 to 59"]
    for name, part in bands.items():
        low, high = (int(edge) - 20 for edge in name.removeprefix("users.age: ").split(" to "))
        check(part, recall, {f"u{user}" for user in range(low, high + 1)})


@pytest.mark.parametrize(
    ("counts", "bands"),
    [
        ({0: 500, 1: 500}, {"0": 500, "1": 500}),
        ({0: 900, 1: 100}, {"0": 900, "1": 100}),
        ({0: 1, 1: 2, 2: 3}, {"0": 1, "1": 2, "2": 3}),
        ({0: 800} | dict.fromkeys(range(1, 201), 1), {"0": 800, "1 to 200": 200}),
        (dict.fromkeys(range(200), 1) | {500: 800}, {"0 to 199": 200, "500": 800}),
        ({1: 300, 5: 500} | dict.fromkeys(range(6, 206), 1), {"1": 300, "5": 500, "6 to 205": 200}),
        (
            dict.fromkeys(range(249), 1) | {300: 499} | dict.fromkeys(range(400, 652), 1),
            {"0 to 248": 249, "300": 499, "400 to 651": 252},
        ),
        (
            dict.fromkeys(range(260), 1) | {500: 300} | dict.fromkeys(range(600, 1040), 1),
            {"0 to 259": 260, "500": 300, "600 to 818": 219, "819 to 1,039": 221},
        ),
    ],
)
def test_a_value_that_many_share_is_a_band_of_its_own(counts: dict[int, int], bands: dict[str, int]) -> None:
    values = pl.Series([value for value, times in counts.items() for _ in range(times)])
    found = slices_of_values("n", values, by_user=True)
    assert {each.name.removeprefix("n: "): int(each.users.sum()) for each in found if each.users is not None} == bands


def test_every_user_has_one_band_of_activity(content: tuple[dict[str, Any], dict[str, float]]) -> None:
    activity = [part for part in content[0]["slices"].values() if part["group"] == "activity"]
    assert len(activity) > 1 and sum(part["users"] for part in activity) == USERS


def test_targets_are_cut_where_each_part_of_the_items_has_a_third_of_the_events(
    events: list[Event], dataset: Path, content: tuple[dict[str, Any], dict[str, float]]
) -> None:
    written, recall = content
    held = last(events)
    counts = Counter(event[1] for event in events if event != held[event[0]])
    # Equal counts stand in the order of the data set.
    order = sorted(Dataset.open(dataset).items["item_id"].to_list(), key=lambda item: -counts[item])
    part_of, before = {}, 0
    for item in order:
        part_of[item] = 3 * before // sum(counts.values())
        before += counts[item]
    for place, name in enumerate(("most popular items", "items of middle popularity", "least popular items")):
        users = {user for user, event in held.items() if part_of[event[1]] == place}
        check(written["slices"][f"popularity: {name}"], recall, users)


def test_targets_by_the_age_of_their_item(
    events: list[Event], content: tuple[dict[str, Any], dict[str, float]]
) -> None:
    written, recall = content
    held = last(events)
    days: dict[str, set[str]] = {}
    for user, (_, item, time, _) in held.items():
        known = [event[2] for event in events if event[1] == item and event != held[event[0]] and event[2] < time]
        age = (time - min(known)) / 86_400 if known else None
        bands = {"0 to 1 days": (0, 1), "1 to 7 days": (1, 7), "7 to 30 days": (7, 30)}
        labels = [label for label, (low, high) in bands.items() if age is not None and low <= age < high]
        days.setdefault(labels[0] if labels else "unknown before", set()).add(user)
    assert {
        name.removeprefix("item age: ") for name, part in written["slices"].items() if part["group"] == "item age"
    } == {*days} and len(days) > 1
    for label, users in days.items():
        check(written["slices"][f"item age: {label}"], recall, users)


def test_values_called_like_a_slice_have_a_name_of_their_own() -> None:
    values = ["others", "missing", *"abcdefgh", None, "one", "two", "three"] + [*"abcdefgh", "others", "missing"] * 2
    parts = slices_of_values("group", pl.Series("group", values), by_user=True)
    slow = {name: [value == name for value in values] for name in "abcdefgh"} | {
        "'others'": [value == "others" for value in values],
        "'missing'": [value == "missing" for value in values],
        "others": [value in ("one", "two", "three") for value in values],
        "missing": [value is None for value in values],
    }
    assert {part.name: part.users.tolist() for part in parts if part.users is not None} == {
        f"group: {name}": mask for name, mask in slow.items()
    }


def test_of_values_that_are_equally_frequent_the_same_have_slices_each_time() -> None:
    values = [f"v{place:02}" for place in range(60)]
    parts = slices_of_values("group", pl.Series("group", values[::-1]), by_user=True)
    assert [part.name for part in parts[:10]] == [f"group: {value}" for value in values[:10]]


@pytest.mark.parametrize("values", [["few", "many", None], [["few"], ["many", "few"], None]])
def test_a_column_may_be_called_count(values: list[Any]) -> None:
    parts = slices_of_values("count", pl.Series("count", values), by_user=True)
    assert [part.name for part in parts] == ["count: few", "count: many", "count: missing"]


def test_a_column_with_the_name_of_a_group_stands_beside_it(tmp_path: Path) -> None:
    events = make_events()
    pl.DataFrame([event[:3] for event in events], schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(
        tmp_path / "events.csv"
    )
    people = sorted({event[0] for event in events})
    pl.DataFrame({"user_id": people, "activity": ["2", "9"] * (len(people) // 2)}).write_csv(tmp_path / "users.csv")
    things = sorted({event[1] for event in events})
    shelves = [("most popular items", "niche")[place % 2] for place in range(len(things))]
    pl.DataFrame({"item_id": things, "popularity": shelves}).write_csv(tmp_path / "items.csv")
    dataset = tmp_path / "dataset"
    prepare.run(
        DataConfig(split="leave_last_out"),
        tmp_path / "events.csv",
        dataset,
        users=tmp_path / "users.csv",
        items=tmp_path / "items.csv",
    )
    bundle = write_bundle_of(dataset)
    plain = report.run(bundle, dataset, tmp_path / "plain", ks=[5])["slices"]
    both = report.run(bundle, dataset, tmp_path / "both", ks=[5], slices=["activity", "popularity"])["slices"]
    own = {name: part for name, part in both.items() if name not in plain}
    assert {name: part for name, part in both.items() if name in plain} == plain
    groups = {"users.activity": ("2", "9"), "items.popularity": ("most popular items", "niche")}
    assert {name: part["group"] for name, part in own.items()} == {
        f"{group}: {value}": group for group, values in groups.items() for value in values
    }


def test_a_quoted_value_is_another_one_than_the_value() -> None:
    values = ["others", "'others'", None, "missing", "'missing'", "it's"]
    parts = slices_of_values("group", pl.Series("group", values), by_user=True)
    assert sorted(part.name for part in parts) == [
        'group: "\'missing\'"', 'group: "\'others\'"', "group: 'missing'", "group: 'others'", "group: it's",
        "group: missing",
    ]  # fmt: skip


def test_bands_of_times_of_one_day_differ_in_name() -> None:
    times = [1_718_531_600_000 + second for second in range(40)]
    parts = slices_of_values("created", pl.Series("created", times), by_user=True)
    assert len({part.name for part in parts}) == 4
    assert parts[0].name == "created: 1,718,531,600,000 to 1,718,531,600,008"


@pytest.mark.parametrize(
    ("first", "step"), [(1_718_531_600.25, 10.0), (52.520001, 0.000001), (1_234_567.5, 1.0), (0.1, 2.0**-50)]
)
def test_bands_of_numbers_that_are_close_differ_in_name(first: float, step: float) -> None:
    values = [first + step * place for place in range(400)]
    parts = slices_of_values("group", pl.Series("group", values), by_user=True)
    assert len({part.name for part in parts}) == 4
    for part in parts:
        assert part.users is not None
        low, high = (float(text.replace(",", "")) for text in part.name.removeprefix("group: ").split(" to "))
        inside = [value for value, is_in in zip(values, part.users, strict=True) if is_in]
        assert (low, high) == pytest.approx((inside[0], inside[-1]), abs=step / 2)
        assert 98 <= len(inside) <= 102


@pytest.mark.parametrize("values", [[None, None], []])
def test_numbers_that_are_all_missing_have_no_bands(values: list[None]) -> None:
    parts = slices_of_values("group", pl.Series("group", values, pl.Float64), by_user=True)
    assert [part.name for part in parts] == ["group: missing"] * bool(values)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("age", "users.age and items.age have this name"),
        ("height", "no such column; the data set has users.country"),
    ],
)
def test_a_column_that_is_not_there_is_named(bundle: Path, dataset: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        report.run(bundle, dataset, dataset.parent / "never", ks=[5], slices=[name])
    assert not (dataset.parent / "never").exists()
