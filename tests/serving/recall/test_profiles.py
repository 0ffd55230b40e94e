"""The tower gets the whole profile of a known user, not only what a request or an event of today says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.bundle.reader import Bundle
from serving.catalogue.user_events import Taken, UserEvents
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from tests.support.worlds.serving import USERS, ArithmeticEncoder, item_vectors, query_vector, write_world

# Of users 0 to 11; the fourth's is empty.
PROFILES: list[dict[str, Any]] = [
    {} if user == 3 else {"country": f"g{(user + 1) % 4}", "age": 0.5 * user, "tags": ["a", "b"]}
    for user in range(USERS)
]


def opened(path: Path, **changes: Any) -> Recaller:
    write_world(path, **changes)
    bundle = Bundle.open(path)
    return Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder(), UserEvents())


@pytest.mark.parametrize("user", [0, 3, 5])
def test_after_an_event_the_tower_gets_the_profile_beside_id_and_history(tmp_path: Path, user: int) -> None:
    recaller = opened(tmp_path / "bundle", profiles=PROFILES)
    recaller.planner.users.apply([(f"u{user}", Taken(100, 1, "i30", "event"))])
    stored = [] if user == 0 else [f"i{user % 4}", f"i{user % 4 + 4}"]
    expected = query_vector({"user": f"u{user}", "history": [*stored, "i30"], **PROFILES[user]})
    (embedded,) = recaller.embed([RecallQuery(user_id=f"u{user}")])
    assert embedded.source == "history"
    np.testing.assert_array_equal(embedded.vector, expected)
    left = [row for row in range(60) if f"i{row}" not in {*stored, "i30"}]
    best = sorted(left, key=lambda row: (-float(item_vectors()[row] @ expected), row))[:5]
    assert recaller.recall(RecallQuery(user_id=f"u{user}", k=5)).ids == [f"i{row}" for row in best]


CASES: dict[str, tuple[RecallQuery, dict[str, Any]]] = {
    "a history of the caller": (RecallQuery(user_id="u5", history=["i2"]), {"history": ["i2"]}),
    "one feature": (RecallQuery(user_id="u5", features={"hour": 7}), {"hour": 7, "history": ["i1", "i5"]}),
    "what is sent goes first": (
        RecallQuery(user_id="u5", features={"country": "g0", "age": None, "tags": ["x"]}),
        {"country": "g0", "tags": ["x"], "history": ["i1", "i5"]},
    ),
    "named by the feature": (RecallQuery(features={"user": "u5"}), {"history": ["i1", "i5"]}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_request_leaves_out_comes_from_the_profile(tmp_path: Path, name: str) -> None:
    query, sent = CASES[name]
    (embedded,) = opened(tmp_path / "bundle", profiles=PROFILES).embed([query])
    np.testing.assert_array_equal(embedded.vector, query_vector({"user": "u5", **PROFILES[5], **sent}))


def test_an_unknown_user_and_an_older_bundle_have_no_profile(tmp_path: Path) -> None:
    unknown = RecallQuery(user_id="nobody", features={"age": 3.0})
    (embedded,) = opened(tmp_path / "bundle", profiles=PROFILES).embed([unknown])
    np.testing.assert_array_equal(embedded.vector, query_vector({"age": 3.0}))
    (embedded,) = opened(tmp_path / "older").embed([RecallQuery(user_id="u5", features={"hour": 7})])
    expected = query_vector({"user": "u5", "hour": 7, "history": ["i1", "i5"]})
    np.testing.assert_array_equal(embedded.vector, expected)
