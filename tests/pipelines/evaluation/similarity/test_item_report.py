"""The report of item neighbours: its sentence, slices, examples and page against slow loops; what it refuses."""

import json
import re
import shutil
import sys
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer

from pipelines.cli import app
from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.evaluation import report
from pipelines.evaluation.findings import checks, look
from pipelines.evaluation.protocol.options import Protocol
from pipelines.forget.dataset import forget_in_dataset
from pipelines.ingest.formats.copies import Copies
from pipelines.launch.records.outputs import of_report
from serving.bundle.digest import bundle_digest
from serving.bundle.manifest import MANIFEST, IndexInfo, read_manifest, write_manifest
from serving.bundle.reader import Bundle
from tests.support import browser
from tests.support.worlds import alike
from tests.support.worlds.alike import HOSTILE, ITEMS, KINDS, kind, title

K = 20


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set, a bundle and its report, with a map and a slice by price."""
    folder = tmp_path_factory.mktemp("alike")
    bundle = alike.write_bundle(alike.write_dataset(folder), training={"stages": [STAGE]})
    with redirect_stderr(StringIO()) as said:
        report.run(bundle, folder / "dataset", folder / "report", slices=["price"])
    (folder / "said.txt").write_text(said.getvalue())
    return folder


STAGE = {
    "stage": "train",
    "best_epoch": 2,
    "metric": "precision@10",
    "history": [{"epoch": epoch, "loss": 3.0 / epoch, "precision@10": 0.1 * epoch} for epoch in (1, 2)],
}


@pytest.fixture(scope="module")
def content(world: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((world / "report" / "report.json").read_text())
    return found


@pytest.fixture(scope="module")
def page(world: Path) -> str:
    return (world / "report" / "report.html").read_text(encoding="utf-8")


def nearest(bundle: Path) -> dict[int, list[int]]:
    """All other items, nearest first, for each item."""
    opened = Bundle.open(bundle)
    vectors = {int(name[1:]): opened.item_vectors[row] for name, row in opened.item_rows.items()}
    return {
        item: sorted((other for other in vectors if other != item), key=lambda other: -float(own @ vectors[other]))
        for item, own in vectors.items()
    }


@pytest.fixture(scope="module")
def near(world: Path) -> dict[int, list[int]]:
    return nearest(world / "bundle")


@pytest.fixture(scope="module")
def own(near: dict[int, list[int]]) -> dict[int, float]:
    """The share of the K nearest items that are of an item's kind."""
    return {item: sum(kind(other) == kind(item) for other in others[:K]) / K for item, others in near.items()}


def held_out(world: Path) -> list[int]:
    rows = pl.read_parquet(world / "report" / "per_item.parquet").filter(pl.col("group") == "held_out")
    return [int(name[1:]) for name in rows["item_id"]]


def test_the_sentence_says_what_a_slow_loop_finds(
    world: Path, content: dict[str, Any], page: str, own: dict[int, float]
) -> None:
    asked, verdict = held_out(world), content["verdict"]
    value = np.mean([own[item] for item in asked])
    assert len(asked) == ITEMS * alike.SHARE / 2
    assert (verdict["metric"], verdict["group"], verdict["value"]) == (
        f"precision@{K}",
        "held_out",
        pytest.approx(value),
    )
    baselines = {
        ranker: each[f"precision@{K}"]["value"]
        for ranker, each in content["metrics"]["training"].items()
        if ranker not in ("exact", "best_attainable")
    }
    assert content["strongest"]["ranker"] == verdict["baseline"] == max(baselines, key=lambda name: baselines[name])
    points = 100 * (value - content["metrics"]["held_out"][verdict["baseline"]][f"precision@{K}"]["value"])
    said = f"Of the {K} items nearest to an item that the model was not trained on, {value:.1%} share its kind, "
    assert points > 0
    for text in (page, (world / "report" / "report.md").read_text()):
        claim = f"{said}{points:.1f} points more than the strongest simple method on the training items"
        assert f"{claim}, {verdict['baseline_title']} (" in text


def test_the_bars_count_items_resamples_and_checks(world: Path, content: dict[str, Any]) -> None:
    head, *lines = (world / "said.txt").read_text().splitlines()
    assert head == "report: verify, item-kNN, evaluate, intervals, findings, page"
    counts = content["counts"]
    asked, without = (sum(counts[name].values()) for name in ("asked", "asked_without_vector"))
    # Each item asks for its neighbours, and if it has a vector, its distances to all others are sorted.
    assert [line for line in lines if line.startswith(f"evaluate: {2 * asked - without:,} items in ")]
    # Of each group its figures and the shares of nearer pairs, and of each slice its figures.
    resamples = 1_000 * (2 * len(counts["asked"]) + len(content["slices"]))
    assert [line for line in lines if line.startswith(f"intervals: {resamples:,} resamples in ")]
    assert [line for line in lines if line.startswith("findings: 2 checks in ")]


def test_slices_equal_the_slow_loop(world: Path, content: dict[str, Any], page: str, own: dict[int, float]) -> None:
    asked = held_out(world)
    data = Dataset.open(world / "dataset")
    counts = np.zeros(ITEMS)
    for split in ("train", "valid"):
        np.add.at(counts, [int(data.items["item_id"][item][1:]) for item in data.events(split).item.tolist()], 1)
    number = {"events before the test": counts.__getitem__, "price": float}
    found: dict[str, int] = {}
    for name, part in content["slices"].items():
        group, _, label = name.partition(": ")
        if group == "kind":
            inside = [item for item in asked if kind(item) == label]
        else:
            low, _, high = label.partition(" to ")
            inside = [item for item in asked if float(low) <= number[group](item) <= float(high or low)]
        found[group] = found.get(group, 0) + part["items"]
        assert part["items"] == len(inside) and part["small"]
        value = np.mean([own[item] for item in inside])
        assert part["metrics"]["exact"][f"precision@{K}"]["value"] == pytest.approx(value)
    assert found == dict.fromkeys(("events before the test", "kind", "price"), len(asked))
    assert page.count("†</th>") == len(content["slices"])


def test_examples_mark_the_neighbours_of_the_same_kind(
    world: Path, page: str, near: dict[int, list[int]], own: dict[int, float]
) -> None:
    asked = held_out(world)
    examples = re.findall(r"<summary>(\w[^<]*): [^<]*\(i(\d+)\) \[[^<]*\]: (\d+) of the first 20 are like it", page)
    assert [what for what, _, _ in examples] == ["best", "median", "worst", *(f"seed 0, {n}" for n in (1, 2, 3))]
    for what, item, hits in examples:
        assert int(item) in asked and int(hits) == round(K * own[int(item)])
        shown = page.partition(f"<summary>{what}: ")[2].partition("</details>")[0]
        rows = re.findall(r'<li value="(\d+)"( class="hit")?><bdi>[^<]*</bdi> \(<bdi>i(\d+)</bdi>\)', shown)
        expected = [
            (str(rank), ' class="hit"' if kind(other) == kind(int(item)) else "", str(other))
            for rank, other in enumerate(near[int(item)][:K], start=1)
            if rank <= 10 or kind(other) == kind(int(item))
        ]
        assert rows == [each for each in expected if int(each[2]) != 7]  # which has no title, so it is not in brackets
    values = {what: own[int(item)] for what, item, _ in examples}
    of_asked = [own[item] for item in asked]
    assert (values["best"], values["worst"]) == (max(of_asked), min(of_asked))


def test_names_are_escaped_and_nothing_is_loaded(page: str) -> None:
    assert title(0) is not None and HOSTILE in KINDS and "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in page
    assert not re.search(r"url\((?!#)|@import|<link|<img|(src|href)=\"[^#]", page)


@pytest.mark.long
def test_the_page_opens_for_everybody_on_a_phone(world: Path) -> None:
    with browser.pages(world / "report" / "report.html") as opened, opened(browser.NARROW) as page:
        browser.refuse_barriers(page)
        assert page.evaluate("document.documentElement.scrollWidth") == browser.NARROW["width"]
        assert page.evaluate("[...document.querySelectorAll('svg > title')].map(each => each.textContent)") == [
            "Precision by length of the list",
            f"precision@{K} by slice",
            "Item vectors by kind",
            "Training: train",
        ]
        assert page.get_by_role("region").all_inner_texts()[0].startswith("24 held-out items.")
        assert page.get_by_text("Where recall is lost").count() == 0


def test_a_tracker_is_told_of_verdict_and_slices(world: Path, content: dict[str, Any]) -> None:
    told = of_report(world / "report", world / "bundle")
    assert told.figures["verdict/difference"] == content["verdict"]["difference"]["value"]
    kinds = content["slices"]["kind: lamp"]["metrics"]["exact"][f"precision@{K}"]["value"]
    assert told.figures[f"slices/kind: lamp/precision@{K}"] == kinds
    assert {file.name for file in told.files} == {"report.html", "report.md", "report.json"}


def test_pairs_have_recall_and_show_their_partners(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"i{item}" for item in range(ITEMS)]
    pl.DataFrame({"item_a": names, "item_b": names[3:] + names[:3]}).write_csv(tmp_path / "pairs.csv")
    bundle = alike.write_bundle(world / "dataset", "paired", noise=0.1, pairs=tmp_path / "pairs.csv")
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)
    words = ["report", "--bundle", bundle, "--dataset", world / "dataset", "--out", tmp_path / "report"]
    words += ["--k", "5", "--k", "500", "--no-map", "--open"]
    monkeypatch.setattr(sys, "argv", ["towers", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        app.main()
    said, file = capsys.readouterr(), tmp_path / "report" / "report.html"
    assert (ended.value.code, opened) == (0, [str(file)])
    content, page = json.loads((tmp_path / "report" / "report.json").read_text()), file.read_text()
    assert said.out.startswith(content["verdict"]["text"])
    left_out = "lists of 500 are left out: an item has only 119 labelled others"
    assert left_out in said.err and left_out in page and "not asked for (--no-map)" in page
    value = content["metrics"]["held_out"]["exact"]["recall@5"]["value"]
    assert f"was not trained on, {value:.1%} are among its 5 nearest" in page
    others = nearest(bundle)
    for example in page.partition("<h2>Examples</h2>")[2].partition("<h2>")[0].split("<summary>")[1:]:
        item = int(re.findall(r"\(i(\d+)\)", example)[0])
        partners = re.findall(
            r'<li( class="hit")?><bdi>[^<]*</bdi> \(<bdi>i(\d+)</bdi>\)',
            example.partition("<h3>Its partners</h3>")[2].partition("</ul>")[0],
        )
        expected = {(item + 3) % ITEMS, (item - 3) % ITEMS} - {7}
        assert {int(other) for _, other in partners} == expected
        assert all(bool(mark) == (int(other) in others[item][:5]) for mark, other in partners)


def test_the_secrets_of_an_address_of_pairs_are_in_no_output(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"i{item}" for item in range(ITEMS)]
    pl.DataFrame({"item_a": names, "item_b": names[3:] + names[:3]}).write_csv(tmp_path / "pairs.csv")
    address = "https://ann:s3cret@files.invalid/pairs.csv?X-Amz-Signature=s1gned"
    bundle = alike.write_bundle(world / "dataset", "addressed", noise=0.1, pairs=tmp_path / "pairs.csv")
    manifest = read_manifest(bundle)
    manifest.lineage["config"]["similarity"]["pairs"] = address
    write_manifest(manifest, bundle / MANIFEST)
    local = Copies.local
    monkeypatch.setattr(
        Copies, "local", lambda self, place: local(self, tmp_path / "pairs.csv" if str(place) == address else place)
    )
    report.run(bundle, world / "dataset", tmp_path / "report", ks=[5], maps=[])
    for file in tmp_path.glob("report/report.*"):
        text = file.read_text()
        assert "s3cret" not in text and "s1gned" not in text
        assert "https://***@files.invalid/pairs.csv?***" in text or file.suffix == ".html"
    (tmp_path / "pairs.csv").write_text("item_a,item_b\ni1,i2\n")
    with pytest.raises(DataError, match=r"^https://\*\*\*@files\.invalid/pairs\.csv\?\*\*\*: not the pairs that"):
        report.run(bundle, world / "dataset", tmp_path / "again", ks=[5], maps=[])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": Protocol(repeats=True, users=9)}, "^--repeats --users 9: about users; .* of item similarity"),
        ({"protocol": Protocol(users=9, seed=3)}, "^--users 9 --seed 3: about users"),
        (
            {"url": "http://127.0.0.1:1", "user_ids": True},
            "^--url --user-ids: about users; .* takes --k, --no-map, and",
        ),
        ({"slices": ["country"]}, "--slice country: no such column of items; the data set has .*items.kind"),
        ({"slices": ["events.country"]}, "--slice events.country: no such column of items"),
        ({"slices": ["shape"]}, "--slice shape: holds Array.*; allowed are numbers, texts and lists of texts"),
        ({"maps": ["country"]}, "--map country: no such column of items; allowed are title, kind"),
    ],
)
def test_what_means_nothing_for_items_is_refused(
    world: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        report.run(world / "bundle", world / "dataset", tmp_path / "report", **options)
    assert not (tmp_path / "report").exists()


def test_items_of_which_none_is_like_another_are_refused(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = np.empty(0, np.int64)
    monkeypatch.setattr("pipelines.evaluation.similarity.neighbours.questions", lambda *_: (nothing, nothing))
    with pytest.raises(DataError, match="dataset: no training item is like another one; there is nothing to measure"):
        report.run(world / "bundle", world / "dataset", world / "never")
    assert not (world / "never").exists()


def test_a_data_set_that_forgot_a_user_since_no_longer_tells_what_was_held_out(world: Path, tmp_path: Path) -> None:
    for name in ("bundle", "dataset"):
        shutil.copytree(world / name, tmp_path / name)
    user = Dataset.open(tmp_path / "dataset").users["user_id"][0]
    forget_in_dataset(tmp_path / "dataset", user, dry_run=False)
    told = f"{tmp_path / 'dataset'}: a user was forgotten in it since {tmp_path / 'bundle'} was trained, so the items "
    with pytest.raises(DataError, match=f"^{re.escape(told)}that were held out cannot be told any more; train again$"):
        report.run(tmp_path / "bundle", tmp_path / "dataset", tmp_path / "report")


@pytest.mark.long
def test_a_bundle_that_is_indexed_while_it_is_measured_has_no_report(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, original = tmp_path / "bundle", report.open_inputs
    shutil.copytree(world / "bundle", bundle)
    before = bundle_digest(bundle)

    def slow(*given: Any) -> Any:
        found = original(*given)
        index = IndexInfo(kind="exact", measured={"recall": 1.0})
        write_manifest(read_manifest(bundle).model_copy(update={"index": index}), bundle / "manifest.json")
        return found

    monkeypatch.setattr(report, "open_inputs", slow)
    with pytest.raises(DataError) as error:
        report.run(bundle, world / "dataset", tmp_path / "report", maps=[])
    assert str(error.value) == (
        f"{bundle}: was {before[:12]} when the report began, and is {bundle_digest(bundle)[:12]}; another command, "
        "such as `towers index`, has changed it meanwhile; nothing was written: run `towers report` again"
    )
    assert not (tmp_path / "report").exists()


def test_findings_of_items_know_how_many_dimensions_classes_need() -> None:
    corners = np.repeat(np.eye(16, dtype=np.float32)[:2], 30, axis=0)
    line = corners + 1e-3 * np.random.default_rng(0).normal(size=corners.shape).astype(np.float32)
    even = np.full(60, 10)
    items = pl.DataFrame({"item_id": [f"i{item}" for item in range(60)]})
    assert look(checks(even, 60, 10, {"item": line}, items, side="items", dimensions=1)) == []
    assert [each.name for each in look(checks(even, 60, 10, {"item": line}, items, side="items", dimensions=16))] == [
        "item vectors collapsed"
    ]
    hub = np.array([9] * 59 + [60])
    (found,) = look(checks(hub, 60, 10, {"item": line}, items, side="items", dimensions=1))
    assert (found.name, found.text) == ("hub", "one item is in the first 10 of 100% of the items: 'i59'")
    one = [
        each.text
        for each in look(checks(np.array([600] + [0] * 59), 60, 10, {"item": line}, items, side="items", dimensions=1))
    ]
    assert (
        one[0].endswith("the model hardly tells items apart")
        and one[1] == "98.3% of the items are in no item's first 10"
    )
