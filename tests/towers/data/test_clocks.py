"""Hours and weekdays in a time zone, against the standard library event by event."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from towers.data.clocks import clock_rows
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables

# With summer time, without it, half hours, and a zone whose clocks change at one minute past midnight.
ZONES = ("UTC", "Europe/Paris", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/St_Johns")
LATEST = int(datetime(2099, 12, 31, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(("kind", "wanted"), [("hour", [1, 24, 4]), ("weekday", [4, 4, 6])])
def test_clock_features_read_utc(kind: str, wanted: list[int]) -> None:
    # 1970-01-01 00:00 (a Thursday), the same day 23:59:59, and Saturday 1970-01-03 03:00; row 0 is "missing".
    assert clock_rows(kind, np.array([0, 86_399, 2 * 86_400 + 3 * 3600]), 3).tolist() == wanted
    assert clock_rows(kind, None, 2).tolist() == [0, 0]


@settings(max_examples=60)
@given(zone=st.sampled_from(ZONES), seconds=st.lists(st.integers(0, LATEST), min_size=1, max_size=50))
# The second before and the first second of summer time in Paris and in Newfoundland.
@example(zone="Europe/Paris", seconds=[1_711_846_799, 1_711_846_800])
@example(zone="America/St_Johns", seconds=[954_646_259, 954_646_260, 954_646_261])
def test_clock_features_read_the_clock_of_a_zone(zone: str, seconds: list[int]) -> None:
    moments = [datetime.fromtimestamp(second, ZoneInfo(zone)) for second in seconds]
    rows = {kind: clock_rows(kind, np.array(seconds), len(seconds), zone) for kind in ("hour", "weekday")}
    assert rows["hour"].tolist() == [1 + moment.hour for moment in moments]
    assert rows["weekday"].tolist() == [1 + moment.weekday() for moment in moments]


def test_examples_read_their_clocks_in_the_zone_of_the_tables() -> None:
    # Sunday 2024-03-31 22:30 UTC is Monday 00:30 in Paris.
    time = np.array([1_711_924_200_000], np.int64)
    events = Events(np.zeros(1, np.int32), np.zeros(1, np.int32), np.array([0, 1]), time, np.zeros(1, np.int64))
    found = {}
    for zone in ("UTC", "Europe/Paris"):
        tables = FeatureTables({}, {}, clocks={"h": "hour", "w": "weekday"}, ticks_per_second=1_000, time_zone=zone)
        found[zone] = {name: rows.tolist() for name, rows in tables.of_examples(events, np.zeros(1, np.int64)).items()}
    assert found == {"UTC": {"h": [23], "w": [7]}, "Europe/Paris": {"h": [1], "w": [1]}}
