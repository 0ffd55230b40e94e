"""Which columns hold times, and that what is shown of a time is read back as the same number."""

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.bundle.reader import Bundle
from serving.catalogue.times import TimeColumn, time_columns
from tests.support.worlds.serving import ITEMS, write_world

SECONDS = [1_645_253_504, -200_000_000]  # 2022-02-19 and 1963


@pytest.fixture
def columns(tmp_path: Path) -> Any:
    """The time columns of a bundle with these item columns, each of them repeated over the items."""

    def found(**values: list[Any]) -> dict[str, TimeColumn]:
        frame = pl.DataFrame({name: (some * ITEMS)[:ITEMS] for name, some in values.items()}, strict=False)
        write_world(tmp_path / "bundle", item_attributes=frame)
        return time_columns(Bundle.open(tmp_path / "bundle", verify=False))

    return found


def test_a_column_is_of_times_by_its_name_and_its_numbers(columns: Any) -> None:
    assert columns(
        created=SECONDS,
        createdAt=[each * 1_000 for each in SECONDS],
        unix_review_time=[each * 1_000_000 for each in SECONDS],
        released=[float(SECONDS[0]), None],
        date=[19_000 * 86_400, -86_400],
        launched=[19_000.0 * 86_400, float("nan")],
        # The rest are none.
        views=SECONDS,
        runtime=SECONDS,
        time=[90, 120],
        date_of_year=[1994, 2020],
        date_digits=[20_240_131, 20_231_224],
        published=["2022-02-19"],
        posted=[None, float("nan")],
        added=[1e30, 1.0],
        since=[-9e10, 1e9],
    ) == {
        "created": TimeColumn(1),
        "createdAt": TimeColumn(1_000),
        "unix_review_time": TimeColumn(1_000_000),
        "released": TimeColumn(1),
        "date": TimeColumn(1, dates=True),
        "launched": TimeColumn(1, dates=True),
    }


def test_a_bundle_without_such_a_name_does_not_read_its_columns(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", item_attributes=pl.DataFrame({"views": [SECONDS[0]] * ITEMS}))
    bundle = Bundle.open(tmp_path / "bundle", verify=False)
    assert time_columns(bundle) == {}
    assert "item_attributes" not in vars(bundle)


moments = st.datetimes(timezones=st.just(UTC))


@example(datetime(2022, 2, 19, tzinfo=UTC), 1_000, True)
@example(datetime(2022, 2, 19, microsecond=999_000, tzinfo=UTC), 1_000, True)
@example(datetime(2022, 2, 19, 8, 0, 0, 123_000, tzinfo=UTC), 1_000, False)
@given(moments, st.sampled_from([1, 1_000, 1_000_000]), st.booleans())
def test_what_is_shown_is_the_time_and_is_read_back(moment: datetime, ticks: int, dates: bool) -> None:
    column, tick = TimeColumn(ticks, dates), 1_000_000 // ticks
    moment = moment.replace(microsecond=moment.microsecond // tick * tick)
    number = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=tick)
    shown = column.text(number)
    assert shown is not None
    midnight = dates and moment.time() == time()
    fraction = ".%f" * ("." in shown)
    form = "%Y-%m-%d" if midnight else f"%Y-%m-%dT%H:%M:%S{fraction}%z"
    assert datetime.strptime(shown, form).replace(tzinfo=UTC) == moment
    assert ("." in shown) == (moment.microsecond > 0)
    assert column.number(shown) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2022-02-19T06:51:44Z", 1_645_253_504),
        (" 2022-02-19 07:51:44+01:00 ", 1_645_253_504),
        ("2022-02-19T06:51:44.5", 1_645_253_504.5),
        ("2022-02-19", 1_645_228_800),
        ("yesterday", None),
        ("", None),
        ("2022-02-30", None),
    ],
)
def test_a_time_without_a_zone_is_in_utc(text: str, number: float | None) -> None:
    assert TimeColumn().number(text) == number


@pytest.mark.parametrize("number", [1e300, -1e300, float("nan"), float("inf"), 253_402_300_800, -62_135_596_801])
def test_a_number_beyond_the_calendar_is_no_time(number: float) -> None:
    assert TimeColumn().text(number) is None
