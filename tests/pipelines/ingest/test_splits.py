"""Splits against a slow loop over the events, written from their definitions."""

import random
from collections import defaultdict
from pathlib import Path

import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.leaks import refuse_leaks
from pipelines.errors import DataError
from pipelines.ingest import prepare
from towers.config.sections import DataConfig

Event = tuple[str, str, int]


def world(seed: int, users: int = 30, items: int = 20, events: int = 400, span: int = 150) -> list[Event]:
    """Random events with many equal times, in random order, at least two of each user."""
    draw = random.Random(seed)
    some = [
        (f"u{draw.randrange(users)}", f"i{draw.randrange(items)}", 1000 + draw.randrange(span)) for _ in range(events)
    ]
    return some + [(f"u{user}", f"i{place}", 1000 + draw.randrange(span)) for user in range(users) for place in (0, 1)]


def prepared(tmp_path: Path, rows: list[Event], **settings: object) -> Dataset:
    file = tmp_path / "events.csv"
    file.write_text("user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in rows))
    return prepared_from(file, tmp_path, **settings)


def prepared_from(source: Path, tmp_path: Path, **settings: object) -> Dataset:
    prepare.run(DataConfig(**{"duplicates": "keep", **settings}), source, tmp_path / "out", overwrite=True)
    return Dataset.open(tmp_path / "out")


def by_user(data: Dataset, split: str) -> dict[str, list[str]]:
    """The items of each user in stored order, read through the offsets alone."""
    events, items = data.events(split), data.items["item_id"].to_list()
    spans = zip(data.users["user_id"], events.offsets[:-1], events.offsets[1:], strict=True)
    return {user: [items[item] for item in events.item[a:b]] for user, a, b in spans if a < b}


def grouped(rows: list[Event]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for user, item, _ in sorted(rows, key=lambda row: row[2]):
        found[user].append(item)
    return dict(found)


@pytest.mark.parametrize("seed", range(3))
def test_global_time_holds_out_the_latest_events(tmp_path: Path, seed: int) -> None:
    rows = world(seed)
    data = prepared(tmp_path, rows, split="global_time", valid_share=0.2, test_share=0.1)
    times = sorted(time for _, _, time in rows)
    test_from = times[len(rows) - round(0.1 * len(rows))]
    valid_from = times[len(rows) - round(0.3 * len(rows))]
    assert data.manifest.split.boundaries == {"valid": valid_from, "test": test_from}
    assert by_user(data, "train") == grouped([row for row in rows if row[2] < valid_from])
    assert by_user(data, "valid") == grouped([row for row in rows if valid_from <= row[2] < test_from])
    assert by_user(data, "test") == grouped([row for row in rows if row[2] >= test_from])


@pytest.mark.parametrize(("valid_share", "test_share", "held"), [(0.1, 0.1, 2), (0, 0.1, 1), (0.1, 0, 1), (0, 0, 0)])
def test_leave_last_out_holds_out_the_last_events_of_each_user(
    tmp_path: Path, valid_share: float, test_share: float, held: int
) -> None:
    rows = [*world(4), ("two", "i1", 5), ("two", "i2", 3)]
    data = prepared(tmp_path, rows, split="leave_last_out", valid_share=valid_share, test_share=test_share)
    expected: dict[str, dict[str, list[str]]] = {"train": {}, "valid": {}, "test": {}}
    for user, items in grouped(rows).items():
        back = min(held, len(items) - 1)
        expected["train"][user] = items[: len(items) - back]
        if back and test_share:
            expected["test"][user] = items[-1:]
        if back and valid_share and (back == 2 or not test_share):
            expected["valid"][user] = items[len(items) - back :][:1]
    assert {name: by_user(data, name) for name in expected} == expected
    assert data.manifest.timed


def test_histories_hold_exactly_the_strictly_earlier_events(tmp_path: Path) -> None:
    data = prepared(tmp_path, world(5), split="global_time")
    train = data.events("train")
    assert train.time is not None and train.history_end is not None
    assert len(set(train.time.tolist())) < len(train), "the world must hold equal times"
    for event in range(len(train)):
        begin = int(train.offsets[train.user[event]])
        earlier = [
            e for e in range(len(train)) if train.user[e] == train.user[event] and train.time[e] < train.time[event]
        ]
        assert list(range(begin, int(train.history_end[event]))) == earlier


def test_a_random_split_draws_its_shares_ignores_time_and_repeats_with_its_seed(tmp_path: Path) -> None:
    rows = [(f"u{n % 50}", f"i{n}", 1000 + n) for n in range(4000)]
    first = prepared(tmp_path, rows, split="random", valid_share=0.2, test_share=0.3, seed=7)
    counts = first.manifest.events
    # Binomial: six deviations of 4,000 draws are at most 6 sqrt(1000) = 190.
    assert abs(counts["valid"] - 800) < 190 and abs(counts["test"] - 1200) < 190
    assert sum(counts.values()) == 4000
    assert not first.manifest.timed and first.manifest.time_unit is None
    assert first.events("train").time is None and first.events("train").history_end is None
    kept = by_user(first, "test")
    assert by_user(prepared(tmp_path, rows, split="random", valid_share=0.2, test_share=0.3, seed=7), "test") == kept
    assert by_user(prepared(tmp_path, rows, split="random", valid_share=0.2, test_share=0.3, seed=8), "test") != kept


@pytest.mark.parametrize(
    ("test_times", "timed"),
    [((30, 40), True), ((20, 40), True), ((19, 40), False)],
)
def test_a_given_split_is_timed_only_if_it_respects_time(
    tmp_path: Path, test_times: tuple[int, int], timed: bool
) -> None:
    source = tmp_path / "given"
    source.mkdir()
    (source / "train.csv").write_text("user,item,time\nu,a,10\nu,b,15\nv,a,100\n")
    (source / "valid.csv").write_text("user,item,time\nu,c,20\n")
    (source / "test.csv").write_text("user,item,time\n" + "".join(f"u,t{time},{time}\n" for time in test_times))
    manifest = prepare.run(DataConfig(), source, tmp_path / "out")
    assert manifest.timed is timed
    assert ((tmp_path / "out" / "train" / "history_end.npy").exists(), manifest.time_unit) == (
        timed,
        "s" if timed else None,
    )


@pytest.mark.parametrize("split", ["global_time", "leave_last_out", "random"])
def test_files_of_another_split_are_one_log_in_which_a_pair_stands_once(tmp_path: Path, split: str) -> None:
    source = tmp_path / "given"
    source.mkdir()
    (source / "train.csv").write_text("user,item,time\nu,a,10\nu,b,15\nv,a,16\nv,b,17\n")
    (source / "test.csv").write_text("user,item,time\nu,a,20\nv,c,21\nu,c,22\n")
    data = prepared_from(source, tmp_path, split=split, duplicates="first", valid_share=0, test_share=0.2)
    refuse_leaks(data)
    pairs = [
        (user, item) for split in ("train", "test") for user, some in by_user(data, split).items() for item in some
    ]
    assert sorted(pairs) == [("u", "a"), ("u", "b"), ("u", "c"), ("v", "a"), ("v", "b"), ("v", "c")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [("user,item,time\nu,a,1\nu,b,2\nu,c,3\n", "global_time"), ("user,item\nu,a\nu,b\nu,c\n", "random")],
)
def test_auto_takes_time_where_there_is_one(tmp_path: Path, text: str, kind: str) -> None:
    (tmp_path / "e.csv").write_text(text)
    config = DataConfig(valid_share=0.3, test_share=0.3)
    assert prepare.run(config, tmp_path / "e.csv", tmp_path / "out").split.kind == kind


def test_order_of_the_file_is_no_global_time(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("u a\nu b\n")
    with pytest.raises(DataError, match="'global_time' needs a time column"):
        prepare.run(DataConfig(split="global_time"), tmp_path / "e.txt", tmp_path / "out")


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ((5, 5, 5, 5), "no moment between|no event to train on"),
        ((1, 2, 2, 2), "no moment between .* the same time, 2; take another data.split"),
    ],
)
def test_times_that_cannot_tell_the_parts_apart_are_refused(
    tmp_path: Path, times: tuple[int, ...], message: str
) -> None:
    rows = [("u", f"i{place}", time) for place, time in enumerate(times)]
    with pytest.raises(DataError, match=message):
        prepared(tmp_path, rows, split="global_time", valid_share=0.25, test_share=0.25)


def folder_of_lists(tmp_path: Path, **parts: dict[str, list[str]]) -> Path:
    source = tmp_path / "given"
    source.mkdir()
    for name, lists in parts.items():
        (source / f"{name}.txt").write_text("".join(f"{' '.join([user, *items])}\n" for user, items in lists.items()))
    return source


def test_last_validation_is_the_end_of_each_list(tmp_path: Path) -> None:
    train = {f"u{n}": [f"i{n}-{k}" for k in range(n)] for n in range(1, 12)}
    source = folder_of_lists(tmp_path, train=train, test={"u3": ["x", "y"]})
    data = prepared_from(source, tmp_path, validation="last", ordered=True, valid_share=0.3)
    held = {user: items[len(items) - round(0.3 * len(items)) :] for user, items in train.items() if len(items) > 1}
    assert by_user(data, "valid") == held
    assert by_user(data, "train") == {u: items[: len(items) - len(held.get(u, []))] for u, items in train.items()}
    assert data.manifest.timed and data.manifest.time_unit == "order"


def test_of_lists_too_short_for_their_share_some_give_an_event(tmp_path: Path) -> None:
    train = {f"u{n}": [f"i{n}-{k}" for k in range(4)] for n in range(100)}
    source = folder_of_lists(tmp_path, train=train, test={"u3": ["x"]})
    data = prepared_from(source, tmp_path, validation="last", ordered=True, valid_share=0.1)
    held = by_user(data, "valid")
    assert len(held) == 0.1 * 400 and all(items == [train[user][-1]] for user, items in held.items())
    every_tenth = [sum(f"u{n}" in held for n in range(first, first + 10)) for first in range(0, 100, 10)]
    assert every_tenth == [4] * 10


def test_a_validation_file_is_spread_over_the_lists(tmp_path: Path) -> None:
    source = folder_of_lists(
        tmp_path, train={"u": list("abcdef")}, valid={"u": ["x", "y"], "v": ["z"]}, test={"u": ["t"]}
    )
    data = prepared_from(source, tmp_path, validation="last", ordered=True, valid_share=0.4)
    # x belongs at a quarter of u's six, y at three quarters.
    assert by_user(data, "train") == {"u": list("abxcd"), "v": ["z"]}
    assert by_user(data, "valid") == {"u": ["e", "y", "f"]}
    assert by_user(data, "test") == {"u": ["t"]} and data.manifest.timed


def test_last_validation_goes_by_time_where_there_is_one(tmp_path: Path) -> None:
    source = tmp_path / "given"
    source.mkdir()
    (source / "train.csv").write_text("user,item,time\nu,a,40\nu,b,15\nu,c,30\nv,a,1\n")
    (source / "valid.csv").write_text("user,item,time\nu,d,20\n")
    (source / "test.csv").write_text("user,item,time\nu,e,50\n")
    data = prepared_from(source, tmp_path, validation="last", valid_share=0.5)
    assert by_user(data, "valid") == {"u": ["c", "a"]}, "half of u's four; half of v's one rounds to none"
    assert by_user(data, "test") == {"u": ["e"]} and data.manifest.timed


def test_every_user_keeps_an_event_to_train_on(tmp_path: Path) -> None:
    source = folder_of_lists(tmp_path, train={"u": ["a", "b"]}, test={"u": ["c"]})
    data = prepared_from(source, tmp_path, validation="last", ordered=True, valid_share=0.85)
    assert by_user(data, "train") == {"u": ["a"]}


def test_random_validation_is_drawn_from_all_that_is_not_the_test(tmp_path: Path) -> None:
    taken = [f"i{n}" for n in range(400)]
    source = folder_of_lists(tmp_path, train={"u": taken[:300]}, valid={"u": taken[300:]}, test={"u": ["t"]})
    data = prepared_from(source, tmp_path, validation="random", valid_share=0.5)
    held = set(by_user(data, "valid")["u"])
    # Binomial: six deviations of 400 draws are 60.
    assert abs(len(held) - 200) < 60 and held & set(taken[:300]) and set(taken[300:]) - held
    assert sorted([*held, *by_user(data, "train")["u"]]) == sorted(taken)


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("user,item,time\nu,a,1\nu,b,2\n", {"validation": "last"}, "'last' is for a given split, and this is global"),
        ("user,item\nu,a\nu,b\n", {"validation": "random"}, "'random' is for a given split, and this is random"),
        ("user,item\nu,a\nu,b\n", {"validation": "given"}, "'given' is for a given split, and this is random"),
        (None, {"validation": "given"}, "'given' needs events of a validation file, and there are none"),
        (None, {"validation": "last"}, r"'last' needs times, or data\.ordered = true"),
    ],
)
def test_a_validation_that_the_split_does_not_have_is_refused(
    tmp_path: Path, text: str | None, settings: dict[str, object], said: str
) -> None:
    source = folder_of_lists(tmp_path, train={"u": ["a", "b"]}, test={"u": ["c"]})
    if text is not None:
        source = tmp_path / "e.csv"
        source.write_text(text)
    with pytest.raises(DataError, match=rf"data\.validation = {said}"):
        prepare.run(DataConfig.model_validate(settings), source, tmp_path / "out")
