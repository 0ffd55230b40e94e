"""`towers query` names items for a person, whatever the type of the title column, from whole bundles only."""

from pathlib import Path

import polars as pl
import pytest
from serving_world import write_world

from pipelines import query
from pipelines.query import title_column
from serving.errors import BundleError


@pytest.mark.parametrize(
    ("frame", "titles"),
    [
        ({"item_id": ["a", "b"], "title": ["Toy Story", None]}, ["Toy Story", None]),
        ({"movie_title": [["Toy", "Story"], ["Heat"]]}, ["Toy Story", "Heat"]),
        ({"name": [7, 8]}, ["7", "8"]),
        ({"price": [1.0, 2.0]}, None),
    ],
)
def test_titles_are_strings(frame: dict[str, list[object]], titles: list[str | None] | None) -> None:
    found = title_column(pl.DataFrame(frame))
    assert (None if found is None else found.to_list()) == titles


@pytest.mark.parametrize("beside_a_service", [False, True])
def test_nothing_is_shown_from_an_altered_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], beside_a_service: bool
) -> None:
    bundle = tmp_path / "bundle"
    write_world(bundle)
    vectors = bundle / "query_vectors.npy"
    content = bytearray(vectors.read_bytes())
    content[-30] ^= 1
    vectors.write_bytes(content)
    monkeypatch.setattr(query, "_ask", lambda *_: ([("i1", 0.5)], "user"))
    url = "http://service" if beside_a_service else None
    with pytest.raises(BundleError, match=r"query_vectors\.npy: altered"):
        query.run("u5", bundle=bundle, url=url)
    assert capsys.readouterr().out == ""
