"""`towers query` names items for a person, whatever the type of the title column."""

import polars as pl
import pytest

from pipelines.query import title_column


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
