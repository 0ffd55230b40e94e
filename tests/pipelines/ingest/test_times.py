"""Times in one unit and one zone: mixed magnitudes, dates written as numbers, times that name no zone."""

import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.ingest import prepare
from pipelines.ingest.clocks import told_of_future
from towers.config.recipe import parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError

ALL_TRAIN = DataConfig(valid_share=0, test_share=0)
SECOND = 1_700_000_000


def times_of(folder: Path, cells: list[object] | pl.Series, **config: object) -> list[int]:
    """The times that `prepare` stores for one user's events, in the order of the cells."""
    rows = pl.DataFrame({"user": ["u"] * len(cells), "item": [f"i{n}" for n in range(len(cells))], "time": cells})
    rows.write_parquet(folder / "e.parquet")
    prepare.run(ALL_TRAIN.model_copy(update=config), folder / "e.parquet", folder / "out", overwrite=True)
    data = Dataset.open(folder / "out")
    events = data.events("train")
    assert events.time is not None
    names = data.items["item_id"].to_list()
    by_item = {names[item]: int(time) for item, time in zip(events.item, events.time, strict=True)}
    return [by_item[f"i{n}"] for n in range(len(cells))]


@pytest.mark.parametrize(("unit", "ticks"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("other", [1, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("stated", [False, True])
def test_two_magnitudes_are_refused_also_with_a_stated_unit(
    tmp_path: Path, unit: str, ticks: int, other: int, stated: bool
) -> None:
    cells = [SECOND * ticks, SECOND * ticks + 1, SECOND * other + 2]
    config = {"time_unit": unit} if stated else {}
    if other == ticks:
        assert times_of(tmp_path, cells, **config) == cells
        return
    said = f"data.time_unit says '{unit}'" if stated else f"most times are in '{unit}'"
    looks = f"{said}, this looks like '{({1: 's', 10**3: 'ms', 10**6: 'us', 10**9: 'ns'})[other]}'"
    with pytest.raises(DataError, match=rf"row 3, column 'time': another time unit: {looks}.*, got '{cells[-1]}'"):
        times_of(tmp_path, cells, **config)


@pytest.mark.parametrize(("unit", "least"), [("ms", 10**11), ("us", 10**14), ("ns", 10**17)])
@pytest.mark.parametrize("stated", [False, True])
def test_the_least_number_of_a_unit_is_of_that_unit(tmp_path: Path, unit: str, least: int, stated: bool) -> None:
    config = {"time_unit": unit} if stated else {}
    assert times_of(tmp_path, [10 * least, least], **config) == [10 * least, least]
    with pytest.raises(DataError, match=r"row 3, column 'time': another time unit: .*, this magnitude is another"):
        times_of(tmp_path, [10 * least, least, least - least // 1_000], **config)


def test_a_clock_with_its_own_start_needs_a_stated_unit_and_stays_small(tmp_path: Path) -> None:
    assert times_of(tmp_path, [0, 5, 90_000], time_unit="ms") == [0, 5, 90_000]
    assert Dataset.open(tmp_path / "out").manifest.time_unit == "ms"
    with pytest.raises(DataError, match=r"row 3, column 'time': another time unit: data.time_unit says 'ms'"):
        times_of(tmp_path, [0, 5, SECOND * 1000], time_unit="ms")


@pytest.mark.parametrize(("unit", "ticks"), [("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("right", [0, 4, 100])
def test_seconds_are_the_odd_rows_where_a_finer_unit_is_stated(
    tmp_path: Path, unit: str, ticks: int, right: int
) -> None:
    cells = [SECOND + n for n in range(30)] + [SECOND * ticks + n for n in range(right)]
    wanted = rf"row 1, column 'time': .*says '{unit}', this looks like 's', got '{SECOND}' \(and 29 more"
    with pytest.raises(DataError, match=wanted):
        times_of(tmp_path, cells, time_unit=unit)


@pytest.mark.parametrize("days", [1, 7, 30, 47, 100, 400])
@pytest.mark.parametrize(("unit", "ticks"), [("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_a_clock_with_its_own_start_may_run_for_any_time(tmp_path: Path, days: int, unit: str, ticks: int) -> None:
    cells = [days * 86_400 * ticks * (n * 37 % 100) // 100 for n in range(100)]
    assert times_of(tmp_path, cells, time_unit=unit) == cells


@settings(max_examples=30)
@given(
    moments=st.lists(st.datetimes(datetime(1900, 1, 1), datetime(2199, 12, 31)), min_size=1, max_size=6),
    form=st.sampled_from(["%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S"]),
    kind=st.sampled_from([int, float, str]),
)
@example(moments=[datetime(2024, 1, 1), datetime(2024, 2, 29)], form="%Y%m%d", kind=int)
def test_dates_written_as_numbers_are_dates(
    tmp_path_factory: pytest.TempPathFactory, moments: list[datetime], form: str, kind: type
) -> None:
    cells = [kind(int(moment.strftime(form))) for moment in moments]
    wanted = [datetime.strptime(moment.strftime(form), form).replace(tzinfo=UTC) for moment in moments]
    folder = tmp_path_factory.mktemp("world")
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert times_of(folder, cells) == [(moment - epoch) // timedelta(microseconds=1) for moment in wanted]
    assert Dataset.open(folder / "out").manifest.time_unit == "us"


@pytest.mark.parametrize("wrong", [20240230, 20241301, 2024010, 202401011, 1_700_000_000])
def test_a_number_that_is_no_date_among_dates_is_a_bad_row(tmp_path: Path, wrong: int) -> None:
    with pytest.raises(DataError, match=rf"row 3, column 'time': no date of 8 digits, as most times are .*'{wrong}'"):
        times_of(tmp_path, [20240101, 20240102, wrong])
    # Seconds on purpose: the unit says so.
    seconds = [20240101, 20240102, wrong]
    assert times_of(tmp_path, seconds, time_unit="s") == seconds


ISO = "2026-07-01T12:00:00"
NOON = 1_782_907_200


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("N/A", NOON),
        ("n/a", ISO),
        ("", NOON),
        ("nan", ISO),
        ("NaN", NOON),
        (ISO, NOON),
        (NOON, ISO),
        (0, NOON * 1_000),
        (NOON * 1_000, NOON),
        (NOON, 20260701),
        (20260701, 20260701120000),
        (1_000, 202607011200),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_one_bad_time_is_one_bad_row_wherever_it_is(
    tmp_path: Path, suffix: str, bad: object, good: object, place: int
) -> None:
    cells = [good] * 4
    cells.insert(place, bad)
    texts = any(isinstance(each, str) for each in cells)
    times = pl.Series([str(each) for each in cells]) if texts or suffix == "csv" else pl.Series(cells)
    frame = pl.DataFrame({"user": ["u"] * 5, "item": [f"i{n}" for n in range(5)], "time": times})
    path = tmp_path / f"e.{suffix}"
    {"csv": frame.write_csv, "parquet": frame.write_parquet}[suffix](path)
    manifest = prepare.run(ALL_TRAIN, path, tmp_path / "out", on_bad_rows="skip")
    assert (manifest.rejected, manifest.events["train"]) == (1, 4)
    data = Dataset.open(tmp_path / "out")
    events = data.events("train")
    noon = {ISO: NOON * 10**6, 20260701: (NOON - 43_200) * 10**6, 20260701120000: NOON * 10**6}
    noon |= {NOON: NOON, NOON * 1_000: NOON * 1_000, 202607011200: NOON * 10**6}
    assert events.time is not None and set(events.time.tolist()) == {noon[good]}
    assert "i" + str(place) not in data.items["item_id"].to_list()


@pytest.mark.parametrize(("first", "second"), [(NOON, NOON * 1_000), (NOON, ISO), (ISO, NOON), (20260701, NOON)])
def test_of_two_forms_alike_in_number_the_first_stays(tmp_path: Path, first: object, second: object) -> None:
    path = tmp_path / "e.csv"
    path.write_text(f"user,item,time\nu,a,{first}\nu,b,{second}\n")
    with pytest.raises(DataError, match=rf"e\.csv, row 3, column 'time': .*got '{second}'"):
        prepare.run(ALL_TRAIN, path, tmp_path / "out")


def test_files_without_a_time_do_not_decide_for_those_after_them(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    for number, time in enumerate(("N/A", "unknown", str(NOON))):
        (tmp_path / "events" / f"{number}.csv").write_text(f"user,item,time\nu,i{number},{time}\n")
    manifest = prepare.run(ALL_TRAIN, tmp_path / "events", tmp_path / "out", on_bad_rows="skip")
    assert (manifest.rejected, manifest.events["train"], manifest.time_unit) == (2, 1, "s")


def test_numbers_that_are_none_do_not_decide_for_the_files_after_them(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    for number, time in enumerate((math.nan, datetime(2024, 1, 1))):
        row = {"user": "u", "item": f"i{number}", "time": time}
        pl.DataFrame([row]).write_parquet(tmp_path / "events" / f"{number}.parquet")
    manifest = prepare.run(ALL_TRAIN, tmp_path / "events", tmp_path / "out", on_bad_rows="skip")
    assert (manifest.rejected, manifest.events["train"], manifest.time_unit) == (1, 1, "us")


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize("kind", ["text", "minutes", "datetime", "date", "number"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris", "America/Sao_Paulo", "Asia/Kolkata"])
def test_times_without_a_zone_are_in_the_zone_of_the_data(tmp_path: Path, kind: str, zone: str) -> None:
    # A winter's and a summer's day, the night when Paris puts clocks back, the midnight that São Paulo skipped.
    days = [datetime(2024, 1, 15), datetime(2024, 7, 15), datetime(2024, 10, 27), datetime(2018, 11, 4)]
    hours = 2 if kind in ("text", "minutes", "datetime") else 0
    local = [day + timedelta(hours=hours, minutes=30 if hours else 0) for day in days]
    cells = {
        "text": [moment.isoformat() for moment in local],
        "minutes": [moment.strftime("%Y-%m-%d %H:%M") for moment in local],
        "datetime": local,
        "date": [moment.date() for moment in local],
        "number": [int(moment.strftime("%Y%m%d")) for moment in local],
    }[kind]
    # Python's own rule: fold = 0 is the first of two moments, and goes on after a gap by as much as lies in it.
    wanted = [micros(moment.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)) for moment in local]
    assert times_of(tmp_path, cells, time_zone=zone) == wanted


@pytest.mark.parametrize(("here", "there"), [("dates", "plain numbers"), ("plain numbers", "dates")])
def test_dates_in_one_file_and_numbers_in_another_are_refused(tmp_path: Path, here: str, there: str) -> None:
    times = {"dates": datetime(2024, 7, 1), "plain numbers": SECOND}
    for name, kind in (("1.parquet", there), ("2.parquet", here)):
        frame = pl.DataFrame({"user": ["u"], "item": ["a"], "time": [times[kind]]})
        frame.write_parquet(tmp_path / name)
    with pytest.raises(DataError, match=rf"2\.parquet, column 'time': {here} here, {there} in an earlier file"):
        prepare.run(ALL_TRAIN, tmp_path, tmp_path / "out")


def test_a_time_that_names_its_zone_keeps_it(tmp_path: Path) -> None:
    cells = ["2024-07-01T12:00:00+02:00", "2024-07-01T12:00:00Z", "2024-07-01 12:00:00 UTC", "2024-07-01T12:00:00"]
    # Kathmandu is 5 h 45 min ahead.
    wanted = [datetime(2024, 7, 1, 10), *[datetime(2024, 7, 1, 12)] * 2, datetime(2024, 7, 1, 6, 15)]
    assert times_of(tmp_path, cells, time_zone="Asia/Kathmandu") == [micros(t.replace(tzinfo=UTC)) for t in wanted]
    typed = [datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Asia/Tokyo"))]
    assert times_of(tmp_path, typed, time_zone="Asia/Kathmandu") == [micros(typed[0])]


@pytest.mark.parametrize(
    "text",
    [
        "2024-07-01 10:00:05+00",
        "2024-07-01T12:00:05+02",
        "2024-07-01T04:30:05-0530",
        "2024-07-01t10:00:05z",
        "20240701T100005Z",
        "20240701T120005+0200",
        "2024-07-01 10:00:05.000",
        "2024-07-01 10:00:05 UTC",
        "2024-07-01T10:00:05 UTC",
        "2024-07-01 10:00:05UTC",
        "20240701T100005 utc",
        "2024-07-01 10:00:05 +0000 UTC",
        "2024-07-01T12:00:05 +0200",
    ],
)
def test_every_usual_form_of_iso_8601_is_read(tmp_path: Path, text: str) -> None:
    assert times_of(tmp_path, ["2024-01-31", text]) == [
        micros(datetime(2024, 1, 31, tzinfo=UTC)),
        micros(datetime(2024, 7, 1, 10, 0, 5, tzinfo=UTC)),
    ]


ENDLESS = [
    pl.Series([19_000, 2**31 - 1], dtype=pl.Int32).cast(pl.Date),
    pl.Series([19_000, -(2**31)], dtype=pl.Int32).cast(pl.Date),
    pl.Series([1_700_000_000_000, 2**62]).cast(pl.Datetime("ms")),
    pl.Series([1_700_000_000_000_000, 2**63 - 1]).cast(pl.Datetime("us", "UTC")),
    pl.Series([1_700_000_000_000_000, -(2**63) + 1]).cast(pl.Datetime("us")),
]


@pytest.mark.parametrize("dates", ENDLESS, ids=lambda dates: f"{dates.dtype} {dates.to_physical()[1]}")
@pytest.mark.parametrize("place", ["time", "seen", "items"])
def test_a_date_without_end_is_a_bad_row(tmp_path: Path, dates: pl.Series, place: str) -> None:
    column = "added" if place == "items" else place
    events = pl.DataFrame({"user": ["u", "u"], "item": ["a", "b"]})
    items = pl.DataFrame({"item": ["a", "b"]})
    if place == "items":
        items = items.with_columns(dates.alias(column))
    else:
        events = events.with_columns(dates.alias(column))
    events.write_parquet(tmp_path / "e.parquet")
    items.write_parquet(tmp_path / "items.parquet")
    words = (ALL_TRAIN, tmp_path / "e.parquet", tmp_path / "out")
    told = rf"row 2, column '{column}': a date outside the years 1 to 9999, got '{dates.to_physical()[1]}'"
    with pytest.raises(DataError, match=told):
        prepare.run(*words, items=tmp_path / "items.parquet")
    # Without the row of an item, its event goes, too.
    manifest = prepare.run(*words, items=tmp_path / "items.parquet", on_bad_rows="skip")
    assert manifest.rejected == (2 if place == "items" else 1) and manifest.events["train"] == 1


@pytest.mark.parametrize("dates", ENDLESS, ids=lambda dates: f"{dates.dtype} {dates.to_physical()[1]}")
def test_a_date_without_end_in_a_list_is_a_bad_row(tmp_path: Path, dates: pl.Series) -> None:
    pl.DataFrame({"user": ["u", "u"], "item": ["a", "b"]}).write_parquet(tmp_path / "e.parquet")
    lists = dates.reshape((2, 1)).arr.to_list()
    pl.DataFrame({"item": ["a", "b"], "shown": lists}).write_parquet(tmp_path / "items.parquet")
    words = (ALL_TRAIN, tmp_path / "e.parquet", tmp_path / "out")
    with pytest.raises(DataError, match=r"row 2, column 'shown': a date outside the years 1 to 9999, got "):
        prepare.run(*words, items=tmp_path / "items.parquet")
    assert prepare.run(*words, items=tmp_path / "items.parquet", on_bad_rows="skip").rejected == 2


@pytest.mark.parametrize("last", ["0001-01-01", "9999-12-31"])
def test_the_ends_of_the_calendar_are_times(tmp_path: Path, last: str) -> None:
    day = datetime.fromisoformat(last).replace(tzinfo=UTC)
    assert times_of(tmp_path, [day.date()]) == [micros(day)]


@pytest.mark.parametrize(
    ("zone", "hint"), [("Europe/Pariss", "did you mean 'Europe/Paris'"), ("Europe", "got 'Europe'"), ("", "got ''")]
)
def test_an_unknown_zone_is_refused_with_the_nearest(zone: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=rf"data.time_zone: must be the IANA name of a time zone.*{hint}"):
        parse_config({"data": {"time_zone": zone}})


def test_data_of_another_meaning_have_another_fingerprint(tmp_path: Path) -> None:
    """Their files are the same: unit and zone lie in the manifest alone, and change windows of days and hours."""
    found = []
    for config in ({}, {"time_unit": "ms"}, {"time_unit": "ms", "time_zone": "Asia/Tokyo"}):
        times_of(tmp_path, [0, 5, 90_000], **config)
        manifest = Dataset.open(tmp_path / "out").manifest
        found.append((manifest.files, manifest.fingerprint))
        times_of(tmp_path, [0, 5, 90_000], **config)
        assert Dataset.open(tmp_path / "out").manifest.fingerprint == manifest.fingerprint
    assert found[0][0] == found[1][0] == found[2][0]
    assert len({fingerprint for _, fingerprint in found}) == 3


@pytest.mark.parametrize("ticks", [1, 10**3, 10**6, 10**9])
def test_events_later_than_now_are_told(tmp_path: Path, ticks: int, capsys: pytest.CaptureFixture[str]) -> None:
    later = int(datetime(2130, 5, 6, 7, 8, 9, tzinfo=UTC).timestamp())
    tomorrow = int((datetime.now(UTC) + timedelta(hours=14)).timestamp())  # a local time far in the east
    times_of(tmp_path, [SECOND * ticks, tomorrow * ticks])
    assert "warning" not in capsys.readouterr().err
    times_of(tmp_path, [SECOND * ticks, later * ticks, SECOND * ticks + 1, (later - 1) * ticks])
    assert "warning: 2 events later than now, the latest of 2130-05-06 07:08:09: " in capsys.readouterr().err
    prepare.run(DataConfig(split="random"), tmp_path / "e.parquet", tmp_path / "out", overwrite=True)
    assert "warning" not in capsys.readouterr().err  # such a split does not keep the times
    times_of(tmp_path, [0, 5, 90_000], time_unit="ms")  # a clock of its own
    assert "warning" not in capsys.readouterr().err


def test_a_few_events_from_before_the_logs_of_our_days_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """178714 is what a file that was cut short left of 1787140800."""
    times_of(tmp_path, [SECOND, 178_714, 0, SECOND + 1, SECOND + 2])
    told = "warning: 2 events earlier than 1990, the earliest of 1970-01-01 00:00:00: if that is wrong, a clock "
    assert told in capsys.readouterr().err
    first = 631_152_000  # 1990-01-01
    times_of(tmp_path, [SECOND, first, first + 1])
    assert "warning" not in capsys.readouterr().err
    times_of(tmp_path, [0, 19_675, 19_676, SECOND])  # most in days
    assert "warning: 3 events earlier than 1990" in capsys.readouterr().err


EXCEL = "; numbers of 20,000 to 60,000 may be days since 1899, as Excel writes them: write 2026-01-31T12:30:00"
OTHER = "; if 'created at' holds the times: --config default --set 'data.columns.time=created at'"


@pytest.mark.parametrize(
    ("cells", "span", "excel"),
    [
        ([46_023.25, 46_029.75], "1970-01-01 12:47:03 to 1970-01-01 12:47:09", EXCEL),
        ([20_000, 60_000], "1970-01-01 05:33:20 to 1970-01-01 16:40:00", EXCEL),
        ([19_999, 60_000], "1970-01-01 05:33:19 to 1970-01-01 16:40:00", ""),
        ([20_000.0, 60_000.5], "1970-01-01 05:33:20 to 1970-01-01 16:40:00", ""),
        ([299, 0], "1970-01-01 00:00:00 to 1970-01-01 00:04:59", ""),
        (["30.52", "17.1"], "1970-01-01 00:00:17 to 1970-01-01 00:00:30", ""),
        ([631_151_999, 5], "1970-01-01 00:00:05 to 1989-12-31 23:59:59", ""),
        ([-70_000_000_000, -69_999_999_999], "-249-10-15 19:33:20 to -249-10-15 19:33:21", ""),
        (["1970-01-01", "1970-01-02"], "1970-01-01 00:00:00 to 1970-01-02 00:00:00", ""),
    ],
)
@pytest.mark.parametrize("other", [{}, {"created at": ["2026-01-01 00:00:53", None]}], ids=["alone", "beside dates"])
def test_times_that_are_all_from_before_the_logs_of_our_days_are_told_unless_their_unit_is_stated(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    cells: list[object],
    span: str,
    excel: str,
    other: dict[str, list[object]],
) -> None:
    path, out = tmp_path / "e.parquet", tmp_path / "out"
    pl.DataFrame({"user": ["u", "u"], "item": ["a", "b"], "time": cells, **other}).write_parquet(path)
    prepare.run(ALL_TRAIN, path, out)
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    stated = "; if the clock counts from a start of its own, state its unit: --config default --set data.time_unit=s"
    own = "" if isinstance(cells[0], str) and "-" in cells[0] else stated  # dates have none
    assert told == f"warning: all times (column 'time') are of {span}{excel}{OTHER if other else ''}{own}"
    # Stated by the user, or not kept.
    for config in (ALL_TRAIN.model_copy(update={"time_unit": "s"}), DataConfig(split="random")):
        prepare.run(config, path, out, overwrite=True)
        assert "warning: " not in capsys.readouterr().err


@pytest.mark.parametrize(
    "cells", [["1985-01-31", "1986-01-31"], [19_850_131, 19_860_131], ["1971-01-01", "1971-01-02"], ["1969-12-31"] * 2]
)
def test_dates_of_other_years_than_1970_may_be_old(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cells: list[object]
) -> None:
    times_of(tmp_path, cells)
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "cells"),
    [(pl.Duration("us"), [1, 2]), (pl.Binary, [b"\xff", b"\xfe"])],
)
def test_a_column_of_no_time_s_type_beside_the_times_is_refused_as_ever(
    tmp_path: Path, kind: pl.DataType, cells: list[object]
) -> None:
    columns = {"user": ["u", "v"], "item": ["a", "b"], "time": [SECOND, SECOND + 1]}
    pl.DataFrame({**columns, "extra": pl.Series(cells, dtype=kind)}).write_parquet(tmp_path / "e.parquet")
    with pytest.raises(DataError, match=r"column 'extra': a column of type .* is not supported; drop or convert it"):
        prepare.run(ALL_TRAIN, tmp_path / "e.parquet", tmp_path / "out")


@pytest.mark.parametrize("options", [{}, {"time_unit": "s"}])
def test_a_date_of_digits_beside_seconds_is_a_bad_row(tmp_path: Path, options: dict[str, str]) -> None:
    told = "row 4, column 'time': a date of 8 digits; most times are in 's', got '20240110'; --on-bad-rows skip"
    with pytest.raises(DataError, match=told):
        times_of(tmp_path, [SECOND, SECOND + 1, SECOND + 2, 20_240_110], **options)


@pytest.mark.parametrize("text", ["14-11-23 22:31:10", "24-03-10 02:30", "14-11-2023 10:00", "14-11-23"])
def test_a_year_of_two_digits_is_no_date(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="not an ISO-8601 date and time"):
        times_of(tmp_path, ["2023-11-14 22:31:10", text])
    with pytest.raises(DataError, match="not an ISO-8601 date and time"):
        times_of(tmp_path, [text, text])


def test_times_before_all_dates_of_datetime_are_kept_and_later_ones_told(tmp_path: Path) -> None:
    assert times_of(tmp_path, [-70_000_000_000, -69_999_999_999]) == [-70_000_000_000, -69_999_999_999]
    assert told_of_future(np.array([-(2**62), 2**62]), "s").startswith("1 event later than now, the latest of 146")


def test_milliseconds_of_the_log_s_own_start_that_look_later_than_now_name_the_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells: list[object] = [n * 10**8 for n in range(60)]
    times_of(tmp_path, cells)
    assert "mend their times or data.time_unit, or leave them out" in capsys.readouterr().err
    times_of(tmp_path, cells, time_unit="ms")
    assert "warning" not in capsys.readouterr().err


def test_a_zone_of_parquet_that_polars_does_not_know_is_read(tmp_path: Path) -> None:
    """As pandas writes the times of "2024-01-31T10:00:00+05:30"."""
    moments = pl.Series(["2024-01-31T04:30:00", "2024-01-31T04:30:01"]).str.to_datetime(time_zone="UTC")
    here = moments.dt.convert_time_zone("+05:30")
    assert times_of(tmp_path, here) == moments.to_physical().to_list()
    path = tmp_path / "e.parquet"
    seen = pl.DataFrame({"user": ["u", "u"], "item": ["a", "b"], "x": here, "seen": here.reshape((2, 1)).arr.to_list()})
    seen.write_parquet(path)
    prepare.run(ALL_TRAIN, path, tmp_path / "out", overwrite=True)
    context = Dataset.open(tmp_path / "out").context("train")
    assert context is not None
    assert context.select("x", "seen").collect().rows() == [
        (1706675400, ["2024-01-31 04:30:00.000000+00:00"]),
        (1706675401, ["2024-01-31 04:30:01.000000+00:00"]),
    ]


def test_a_type_of_parquet_at_which_polars_panics_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = pl.Series([datetime(2024, 1, 31, tzinfo=UTC)]).dt.convert_time_zone("+05:30")
    path = tmp_path / "e.parquet"
    pl.DataFrame({"user": ["u"], "item": ["a"], "time": here}).write_parquet(path)
    monkeypatch.delenv("POLARS_IGNORE_TIMEZONE_PARSE_ERROR")
    told = (
        f"{path}: polars cannot read it: damaged, or a column has a type that polars does not know; leave it out or "
        "convert it: called `Result::unwrap"
    )
    with pytest.raises(DataError, match="^" + re.escape(told)):
        prepare.run(ALL_TRAIN, path, tmp_path / "out")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize(
    "text",
    ["+262142-12-31T23:59:59", "-262143-01-01T00:00:00", "+10000-01-01T00:00:00Z", "0000-12-31T23:59:59"],
)
def test_a_text_outside_the_calendar_is_a_bad_row_in_every_zone(tmp_path: Path, zone: str, text: str) -> None:
    with pytest.raises(DataError) as caught:
        times_of(tmp_path, ["2026-07-01", text], time_zone=zone)
    assert str(caught.value) == (
        f"{tmp_path / 'e.parquet'}, row 2, column 'time': not an ISO-8601 date and time of the years 1 to 9999, got "
        f"{text!r}; --on-bad-rows skip leaves such rows out"
    )


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00", "9999-12-31T23:59:59.5"])
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_the_ends_of_the_calendar_are_times_in_every_zone(tmp_path: Path, zone: str, text: str) -> None:
    (time,) = times_of(tmp_path, [text], time_zone=zone)
    assert abs(time - micros(datetime.fromisoformat(text).replace(tzinfo=UTC))) < 86_400 * 10**6


def test_a_fraction_of_a_microsecond_leaves_the_times_of_other_rows(tmp_path: Path) -> None:
    late = 13_569_465_600_000_000  # of the year 2400
    assert times_of(tmp_path, [1_700_000_000_000_000.5, late + 2.0]) == [1_700_000_000_000_000, late + 2]
    assert Dataset.open(tmp_path / "out").manifest.time_unit == "us"
