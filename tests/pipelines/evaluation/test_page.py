"""The page of a report: complete in itself, hostile names escaped, its sentence true."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from pipelines.evaluation import page, report
from pipelines.evaluation.page import about_recall, rendered, sentence, templates
from tests.support.pages.tables import HOSTILE as HOSTILE_CELL
from tests.support.pages.tables import github_rows
from tests.support.worlds import columns

HOSTILE = "<script>alert(1)</script>&\"'"


class Page(HTMLParser):
    """The tags, the addresses they name, and the ids that they and others point to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.labels += (given["aria-labelledby"] or "").split() if "aria-labelledby" in given else []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dataset = columns.write_dataset(columns.make_events(), tmp_path_factory.mktemp("page"))
    out = dataset.parent / "report"
    report.run(columns.write_bundle_of(dataset), dataset, out, ks=[5, 10], slices=["country"])
    return out


def test_the_page_needs_nothing_else_and_is_small(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert all(address.startswith("#") for address in page.addresses)
    assert not {"script", "link", "img", "iframe", "object"} & {*page.tags}
    assert not re.search(r"url\((?!#)|@import", text)
    assert len(text) < 3_000_000
    assert page.tags.count("h1") == page.tags.count("main") == 1 and page.tags.count("svg") == 3
    assert {*page.labels} <= {*page.ids}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("\u05d0 (2) (i\u202e7)", "<bdi>\u05d0 (2)</bdi> (<bdi>i\u202e7</bdi>)"),
        ("i7", "<bdi>i7</bdi>"),
        ("a [1] (i7) [b, c]", "<bdi>a [1]</bdi> (<bdi>i7</bdi>) [<bdi>b, c</bdi>]"),
        ("(7)", "<bdi>(7)</bdi>"),
        ("a [1] [b]", "<bdi>a [1]</bdi> [<bdi>b</bdi>]"),
        (f"a{' [x]' * 2000}", f"<bdi>a{' [x]' * 1999}</bdi> [<bdi>x</bdi>]"),
        ("<b> (i7)", "<bdi>&lt;b&gt;</bdi> (<bdi>i7</bdi>)"),
    ],
)
def test_title_and_id_of_an_item_move_nothing_beside_them(name: str, told: str) -> None:
    names = templates("pipelines.evaluation").get_template("names.html.j2")
    assert names.module.isolated(name) == told  # type: ignore[attr-defined]


def test_every_item_of_the_page_is_isolated(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    lists = re.findall(r"<[ou]l><li(?: [^>]*)?>.*?</[ou]l>", text)
    entries = [entry for each in lists for entry in re.findall(r"<li(?: [^>]*)?>(.*?)</li>", each)]
    assert len(entries) > 50
    name = r"<bdi>[^<]*</bdi>(?: \(<bdi>[^<]*</bdi>\))?"
    assert [entry for entry in entries if not re.fullmatch(rf"{name}(?: \(hit\)|: -?\d\.\d\d)?", entry)] == []


def test_names_from_the_data_are_escaped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(columns, "COUNTRIES", [HOSTILE, "FR", None])
    made = columns.write_dataset(columns.make_events(), tmp_path)
    report.run(columns.write_bundle_of(made), made, tmp_path / "report", ks=[5], slices=["country"])
    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "script" not in Page(text).tags
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in text


def test_no_name_is_html_in_the_markdown(folder: Path) -> None:
    content = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    content["slices"] = {f"country: {HOSTILE}": content["slices"]["country: FR"]}
    content["baselines"][content["strongest"]["ranker"]]["title"] = content["verdict"]["baseline_title"] = HOSTILE
    content["bundle"]["model_version"] = content["verdict"]["text"] = HOSTILE
    content["findings"] = [{"name": HOSTILE, "text": HOSTILE, "value": 1.0, "limit": 0}]
    content["looks_ahead"], content["protocol_options"]["words"] = [HOSTILE], [HOSTILE]
    content["map"] = {"left_out": HOSTILE}
    text = rendered("md", {**about_recall(content), "size": HOSTILE})  # of similar items it names their column
    assert "<script>" not in text and text.count("&lt;script>alert(1)&lt;/script>&amp;\"'") >= 10
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    kinds = {child.type for token in tokens for child in (token, *(token.children or []))}
    assert not {"html_block", "html_inline"} & kinds
    (row,) = (row for row in github_rows(text) if row[0].startswith("country: "))
    assert row[0] == f"country: {HOSTILE} †"


def test_files_end_with_a_new_line(folder: Path) -> None:
    for name in ("report.html", "report.md"):
        assert (folder / name).read_text(encoding="utf-8")[-2:].strip(), name
        assert (folder / name).read_bytes().endswith(b"\n"), name


def test_the_tables_are_in_the_markdown_too(folder: Path) -> None:
    lines = (folder / "report.md").read_text(encoding="utf-8").splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert sum(line.startswith("|---") for line in tables) == 4
    lost = tables[tables.index("| where recall is lost | recall@5 | lost | recall@10 | lost |") + 2 :][:2]
    assert [line.split(" | ")[0] for line in lost] == ["| model, exact", "| model, by index"]
    assert lost[1].count("0.0000 (0.0000 to 0.0000)") == 2
    assert any(line.startswith("| country: DE † | 14 | 14 | ") for line in tables)
    assert "" not in lines[lines.index(tables[0]) : lines.index(tables[0]) + 3]


def test_the_page_says_how_many_users_are_few(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert "† marks fewer than 100 users." in (folder / "report.html").read_text(encoding="utf-8")
    monkeypatch.setattr(page, "SMALL", 7)
    assert "| slice (recall@10; †: fewer than 7 users) |" in rendered("md", about_recall(content))


def test_a_name_that_would_break_a_table_of_the_markdown_is_one_cell(folder: Path) -> None:
    content = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    content["slices"] = {HOSTILE_CELL if name == "country: DE" else name: v for name, v in content["slices"].items()}
    content["baselines"][content["strongest"]["ranker"]]["title"] = HOSTILE_CELL
    content["verdict"]["baseline_title"] = HOSTILE_CELL
    rows = github_rows(rendered("md", about_recall(content)))
    slices = next(place for place, row in enumerate(rows) if row[0].startswith("slice ("))
    assert {len(row) for row in rows[slices:]} == {5} and rows[slices][-1] == HOSTILE_CELL
    assert f"{HOSTILE_CELL} †" in [row[0] for row in rows[slices:]]
    assert [len(row) for row in rows[:slices] if row[0] == HOSTILE_CELL] == [3, 13]


def test_every_figure_of_every_ranker_is_on_the_page(folder: Path) -> None:
    content = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    text = (folder / "report.html").read_text(encoding="utf-8")
    for k in (5, 10):
        table = text.partition(f"All figures of the first {k}<")[2].partition("</table>")[0]
        rows = re.findall(r"<tr>(.*?)</tr>", table)
        names = re.findall(r"<th scope=\"col\">([^<]+)", rows[0])[1:]
        assert {name.partition("@")[0] for name in names} == {
            *("recall", "capped_recall", "ndcg", "mrr", "hit_rate", "precision", "map"),
            *("coverage", "gini", "novelty", "popularity", "similarity"),
        }
        assert len(rows) == 1 + len(content["metrics"])
        for row, ranker in zip(rows[1:], content["metrics"], strict=True):
            cells = dict(zip(names, re.findall(r"<td>([^<]+)", row), strict=True))
            for metric in ("hit_rate", "precision", "map"):
                figure = content["metrics"][ranker][f"{metric}@{k}"]
                shown = [float(each) for each in re.findall(r"[\d.]+", cells[f"{metric}@{k}"])]
                assert shown == pytest.approx([figure["value"], figure["low"], figure["high"]], abs=1e-4)
            for key, name, scale, precision in (
                ("coverage", "coverage", 100, 0.06),
                ("gini", "gini", 1, 1e-4),
                ("novelty", "novelty", 1, 0.006),
                ("mean_popularity", "popularity", 1, 0.06),
                ("similarity", "similarity", 1, 1e-4),
            ):
                figure = content[key][ranker][f"{name}@{k}"]
                shown = [float(each) for each in re.findall(r"-?[\d.]+", cells[f"{name}@{k}"])]
                expected = [scale * figure[end] for end in ("value", "low", "high")]
                assert shown == pytest.approx(expected, abs=precision), name


def test_the_definition_of_every_slice_is_a_text_of_the_page(folder: Path) -> None:
    content = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    text = (folder / "report.html").read_text(encoding="utf-8")
    told = text.partition("What each slice is")[2].partition("</dl>")[0]
    shown = re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", told)
    parts = {name: part["definition"] for name, part in content["slices"].items() if part["metrics"]}
    assert {unescape(name): unescape(definition) for name, definition in shown} == parts
    assert {"warm", "country: DE"} < {*parts} and 'title="' not in text


@pytest.mark.parametrize(
    ("value", "low", "high", "conclusion", "points", "baseline", "sure"),
    [
        (0.03, 0.01, 0.05, "proven better", "3.0 points more", "9.0%", "is more than chance"),
        (0.01, -0.01, 0.03, "not proven better", "1.0 points more", "11.0%", "may be chance"),
        (-0.01, -0.03, 0.01, "not proven worse", "1.0 points less", "13.0%", "may be chance"),
        (-0.03, -0.05, -0.01, "worse", "3.0 points less", "15.0%", "is more than chance"),
    ],
)
def test_the_sentence_says_what_the_verdict_says(
    value: float, low: float, high: float, conclusion: str, points: str, baseline: str, sure: str
) -> None:
    verdict: dict[str, Any] = {
        "metric": "recall@20",
        "value": 0.12,
        "baseline_title": "kNN",
        "kind": "strongest baseline on validation",
        "baseline_value": 0.12 - value,
        "difference": {"value": value, "low": low, "high": high},
        "conclusion": conclusion,
        "users": 20,
    }
    said = sentence({"verdict": verdict})
    assert f"{points} than the strongest simple method on validation, kNN ({baseline}). The difference {sure}: " in said
    assert "12.0% among its first 20" in said
    assert f"between {100 * low:+.1f} and {100 * high:+.1f} points" in said
    if sure == "may be chance":
        few = sentence({"verdict": verdict | {"users": 19}})
        assert few.endswith(f", kNN ({baseline}). The difference may be chance: there are only 19 to judge by.")


def test_a_proven_difference_never_looks_like_zero() -> None:
    verdict: dict[str, Any] = {
        "metric": "recall@20",
        "value": 0.12,
        "baseline_title": "kNN",
        "kind": "strongest baseline on validation",
        "baseline_value": 0.11,
        "difference": {"value": 0.01, "low": 0.0004, "high": 0.0196},
        "conclusion": "proven better",
        "users": 20,
    }
    assert "is more than chance: between +0.04 and +1.96 points" in sentence({"verdict": verdict})
