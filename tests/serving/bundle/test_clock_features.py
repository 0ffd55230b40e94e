"""A request's time is read on the clock of the model's time zone, against the standard library."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from serving.bundle.manifest import FeatureSpec
from serving.bundle.request_features import check_features, to_columns
from serving.errors import BundleError, RequestError
from serving.http.app import create_app
from serving.settings import Settings
from tests.support.worlds.serving import FEATURES, save_towers, write_world

ZONES = ("UTC", "Europe/Paris", "America/St_Johns", "Asia/Kolkata")


def clocks(zone: str | None) -> list[FeatureSpec]:
    return [FeatureSpec(name=kind[0], kind=kind, dtype="int64", time_zone=zone) for kind in ("hour", "weekday")]


@given(
    moment=st.datetimes(datetime(3, 1, 1), datetime(9990, 1, 1)),
    offset=st.integers(-14 * 60, 14 * 60),
    zone=st.sampled_from([None, *ZONES]),
)
def test_a_time_is_the_hour_and_the_day_on_the_clock_of_the_zone(
    moment: datetime, offset: int, zone: str | None
) -> None:
    sent = moment.replace(tzinfo=timezone(timedelta(minutes=offset)))
    local = sent.astimezone(UTC if zone is None else ZoneInfo(zone))
    specs, request = clocks(zone), {"h": sent.isoformat(), "w": sent.isoformat()}
    check_features(specs, request)
    mixed = [request, {"h": 3, "w": None}, {}]
    columns = {name: column.tolist() for name, column in to_columns(specs, mixed, {}).items()}
    assert columns == {"h": [local.hour, 3, -1], "w": [local.weekday(), -1, -1]}


@pytest.mark.parametrize(
    ("zone", "text", "hour", "weekday"),
    [
        # The calendar begins on a Monday and ends on a Friday.
        ("UTC", "0001-01-01T00:30:00+14:00", 10, 6),
        ("America/New_York", "0001-01-01T00:01:00Z", 19, 6),  # 4:56 h behind UTC before there were zones
        ("UTC", "9999-12-31T23:30:00-14:00", 13, 5),
        ("Asia/Tokyo", "9999-12-31T23:30:00Z", 8, 5),
    ],
)
def test_a_zone_may_lead_beyond_the_calendar(zone: str, text: str, hour: int, weekday: int) -> None:
    specs, request = clocks(zone), {"h": text, "w": text}
    check_features(specs, request)
    columns = to_columns(specs, [request], {})
    assert (columns["h"].tolist(), columns["w"].tolist()) == ([hour], [weekday])


@pytest.mark.parametrize(
    "text",
    ["", "noon", "2026-01-31T18:30:00", "2026-01-31", "18"],
)
def test_a_text_that_names_no_moment_is_refused(text: str) -> None:
    told = r"features.h: must be a whole number from 0 to 23, or a time with its zone, such as .*, got a string"
    with pytest.raises(RequestError, match=told):
        check_features(clocks("Europe/Paris"), {"h": text})


def test_the_service_reads_a_time_and_its_document_names_the_zone(tmp_path: Path) -> None:
    zoned = [each.model_copy(update={"time_zone": "Asia/Kolkata"} if each.kind == "hour" else {}) for each in FEATURES]
    write_world(tmp_path / "bundle", features=zoned, write_towers=save_towers)
    with TestClient(create_app(Settings(bundle=tmp_path / "bundle"))) as client:
        # 20:00 in New York is 05:30 of the next day in Kolkata.
        bodies = [{"features": {"country": "g1", "hour": hour}} for hour in ("2026-01-05T19:00:00-05:00", 5, 19)]
        vectors = client.post("/embed", json={"queries": bodies}).json()["vectors"]
        assert vectors[0] == vectors[1] != vectors[2]
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
    hour = schemas["RecallRequest"]["properties"]["features"]["anyOf"][0]["properties"]["hour"]
    assert hour["anyOf"][1] == {"type": "string", "format": "date-time"} and "Asia/Kolkata" in hour["description"]


def test_a_zone_that_this_machine_does_not_know_is_refused(tmp_path: Path) -> None:
    zoned = [FEATURES[3].model_copy(update={"time_zone": "Mars/Olympus"})]
    with pytest.raises(BundleError, match=r"time_zone: .*time zone database has no 'Mars/Olympus'; install tzdata"):
        write_world(tmp_path / "bundle", features=zoned)
