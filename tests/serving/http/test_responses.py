"""Answers as JSON: put together from bytes, they are what `json` makes of the same records, whatever the ids hold."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.bundle.ids import Ids
from serving.bundle.reader import Bundle
from serving.catalogue.catalogue import Wanted
from serving.catalogue.overlay import Change
from serving.http.responses import answer_bytes, answers_bytes
from serving.recall.query import Recalled, RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from tests.support.worlds.serving import DIMENSION, write_world

IDS = {
    "plain": ["1", "22", "a b", "Ærø ☕", "{}", "']", "\x7f", "x" * 64],
    "a quote": ["1", 'a"', '","score":'],
    "a backslash": ["1", "\\n", "a\\"],
    "a control character": ["1", "\x01", "tab\t"],
    "a long one": ["1", "2", "x" * 65],
}


def world(path: Path, ids: Sequence[str]) -> Recaller:
    vectors = np.linspace(-3, 3, len(ids) * DIMENSION, dtype=np.float32).reshape(-1, DIMENSION)
    write_world(
        path,
        model_version='v"1\\',
        item_ids=ids,
        item_vectors=vectors,
        item_attributes=pl.DataFrame({"item_id": ids}),
        popularity=np.arange(len(ids))[::-1],
        query_ids=["u"],
        query_vectors=vectors[:1] / 7,
        seen_offsets=[0, 0],
        seen_items=np.empty(0, np.int32),
    )
    return Recaller(Bundle.open(path), ExactIndex(vectors))


def plain(recalled: Recalled) -> dict[str, Any]:
    """The answer as records, from what the catalogue says of each row."""
    names, base = recalled.items.catalogue.bundle.item_ids.to_list(), recalled.items.view.base
    ids = [names[row] if row < base else recalled.items.view.ids[row - base] for row in recalled.rows.tolist()]
    pairs = zip(ids, recalled.scores, strict=True)
    return {
        # NumPy's own text of a float32: the fewest digits that no other one shares.
        "items": [{"id": name, "score": float(str(score))} for name, score in pairs],
        "model_version": 'v"1\\',
        "source": recalled.source,
    }


@pytest.mark.parametrize("kind", IDS)
def test_an_answer_holds_its_records_whatever_the_ids(tmp_path: Path, kind: str) -> None:
    asked = world(tmp_path / "bundle", IDS[kind])
    assert (asked.catalogue.plain_ids is None) == (kind != "plain")
    queries = [RecallQuery(user_id="u", k=k) for k in (1, 3, 20)] + [
        RecallQuery(k=2),
        RecallQuery(k=1, wanted=Wanted(allow=())),
    ]
    answers = asked.recall_many(queries)
    assert [len(each.rows) for each in answers] == [1, 3, len(IDS[kind]), 2, 0]
    for each in answers:
        assert json.loads(answer_bytes(each)) == plain(each)
    for some in (answers, answers[:4], answers[1:2], []):
        assert json.loads(answers_bytes(some)) == {"answers": [plain(each) for each in some]}


def test_live_items_stand_beside_those_of_the_bundle(tmp_path: Path) -> None:
    asked = world(tmp_path / "bundle", IDS["plain"])
    vector = np.full(DIMENSION, 3, np.float32)
    asked.catalogue.live.apply([Change('new "one"', vector, {}), Change("22", -vector, {})])
    (answer,) = asked.recall_many([RecallQuery(vector=[1.0] * DIMENSION, k=9)])
    assert 'new "one"' in answer.ids
    assert json.loads(answer_bytes(answer)) == plain(answer)


@given(st.lists(st.text(min_size=1, max_size=70), min_size=1, max_size=9, unique=True))
def test_ids_are_given_only_where_quotes_make_json_of_them(ids: list[str]) -> None:
    # No id holds a line break, and UTF-8 knows no lone surrogates.
    ids = [each for each in ids if not any(x == "\n" or "\ud800" <= x <= "\udfff" for x in each)] or ["1"]
    rows = np.arange(len(ids))[::-1]
    plain = Ids.of(pl.Series(ids, dtype=pl.String)).plain()
    if plain is None:
        assert any(len(each.encode()) > 64 or json.dumps(each, ensure_ascii=False) != f'"{each}"' for each in ids)
    else:
        assert [json.loads(b'"' + each + b'"') for each in plain.take(rows).tolist()] == [ids[row] for row in rows]
