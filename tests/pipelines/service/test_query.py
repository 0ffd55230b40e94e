"""`towers query` names items for a person, whatever the type of the title column, from whole bundles only."""

from pathlib import Path

import polars as pl
import pytest

from pipelines.errors import DataError
from pipelines.service import query
from pipelines.service.answer import Answer
from pipelines.service.query import title_column
from serving.errors import BundleError
from tests.support.worlds.serving import write_world


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
    monkeypatch.setattr(query, "ask", lambda *_, **__: Answer([("i1", 0.5)], "user"))
    url = "http://service" if beside_a_service else None
    with pytest.raises(BundleError, match=r"query_vectors\.npy: altered"):
        query.run("u5", bundle=bundle, url=url)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("k", [1_001, 100_000])
def test_a_bundle_is_asked_for_no_more_than_a_service_gives(tmp_path: Path, k: int) -> None:
    bundle = tmp_path / "a bundle"
    write_world(bundle, items=1_100)
    with pytest.raises(DataError) as caught:
        query.run("u5", bundle=bundle, k=k)
    instead = f"`towers recall --bundle '{bundle}' --k {k} --out FILE` writes any number of items for every user"
    assert str(caught.value) == f"--k must be at most 1000, got {k}; {instead}"


def test_no_text_of_the_data_reaches_the_terminal_as_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = Answer([("i\u202e1", 0.5)], "user", ["\x1b]0;owned\x07 Amélie\u00a0!\n"])
    monkeypatch.setattr(query, "ask", lambda *_, **__: answer)
    query.run("u\x1b[2J", url="http://service")
    first, *table = capsys.readouterr().out.splitlines()
    assert first == r"recalled for user u\x1b[2J (source: user)"
    [row] = [line.split("│") for line in table if line.startswith("│")]
    assert [cell.strip() for cell in row[2:4]] == [r"i\u202e1", "\\x1b]0;owned\\x07 Amélie\u00a0!\\n"]


def test_the_largest_k_is_answered_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tmp_path / "bundle"
    write_world(bundle, items=1_100)
    query.run("u5", bundle=bundle, k=1_000)
    shown = capsys.readouterr().out
    ranks = [line.split()[1] for line in shown.splitlines() if line.startswith("│")]
    assert ranks == [str(rank) for rank in range(1, 1_001)]


def test_an_item_is_one_whole_line_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    item, title = "0e6f3b52-7d1c-4a58-9b43-c0f1a2d3e4f5", "Wool and more " * 9 + "wool"
    monkeypatch.setattr(query, "ask", lambda *_, **__: Answer([(item, 0.5)], "user", [title]))
    query.run("u5", url="http://service")
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row[2:4]] for row in rows] == [[item, title]]
