"""Comparisons of bundles against slow loops over their vectors, of reports, what is refused, and the pages."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from markupsafe import escape

from pipelines.console import towers
from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.evaluation import report, report_json
from pipelines.evaluation.page import templates
from pipelines.ingest import prepare
from pipelines.launch import compare
from pipelines.launch.conclusion import BETTER, NOT_SHOWN, SEEDS, WORSE, contrary, sentence
from pipelines.launch.page import compare_page
from pipelines.launch.sides import paths_of
from serving.bundle.manifest import PriorInfo, read_manifest
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from serving.files.staging import OutputExistsError
from tests.support import browser
from tests.support.pages.tables import HOSTILE as HOSTILE_CELL
from tests.support.pages.tables import github_rows
from tests.support.worlds import columns
from towers.config.sections import DataConfig
from towers.evaluation.metrics import METRICS

HOSTILE = "<script>alert(1)</script>|&\"'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set and three bundles, of which `a` and `b` have one recipe, beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "COUNTRIES", [HOSTILE, "FR", None])
        dataset = columns.write_dataset(columns.make_events(), tmp_path_factory.mktemp("compare"))
    for seed, name in enumerate("abc"):
        recipe = {"train": {"seed": seed, "epochs": 9 if name == "c" else 3}}
        lineage = {"dataset": Dataset.open(dataset).manifest.fingerprint, "config": recipe}
        columns.write_bundle_of(dataset, name=name, seed=seed, lineage=lineage)
    return dataset.parent


def lists_of(folder: Path, name: str, k: int) -> dict[str, list[str]]:
    """What a bundle recalls for each test user, one dot product at a time."""
    data, bundle = Dataset.open(folder / "dataset"), Bundle.open(folder / name)
    users, items = (table.to_series(0).to_list() for table in (data.users, data.items))
    taken: dict[str, set[str]] = {user: set() for user in users}
    for split in ("train", "valid"):
        events = data.events(split)
        for user, item in zip(events.user, events.item, strict=True):
            taken[users[user]].add(items[item])
    found = {}
    for user in {users[number] for number in data.events("test").user}:
        vector = bundle.query_vectors[bundle.query_rows[user]]
        scores = {item: float(vector @ bundle.item_vectors[bundle.item_rows[item]]) for item in items}
        found[user] = [item for item in sorted(items, key=lambda item: -scores[item]) if item not in taken[user]][:k]
    return found


def targets_of(folder: Path) -> dict[str, list[str]]:
    data = Dataset.open(folder / "dataset")
    users, items = (table.to_series(0).to_list() for table in (data.users, data.items))
    events, found = data.events("test"), {}
    for user, item in zip(events.user, events.item, strict=True):
        found.setdefault(users[user], []).append(items[item])
    return found


@pytest.fixture(scope="module")
def content(folder: Path) -> dict[str, Any]:
    names = [str(folder / name) for name in "abc"]
    return compare.run(
        names,
        folder / "comparison",
        dataset=folder / "dataset",
        metric="recall@5",
        family="recall@3",
        slices=["country", "genres"],
        user_ids=True,
    )


def recall(folder: Path, name: str, k: int) -> dict[str, float]:
    lists, targets = lists_of(folder, name, k), targets_of(folder)
    return {user: len({*lists[user]} & {*targets[user]}) / len(targets[user]) for user in lists}


@pytest.mark.parametrize("k", [3, 5])
def test_the_differences_are_those_of_slow_loops(folder: Path, content: dict[str, Any], k: int) -> None:
    one, two = recall(folder, "a", k), recall(folder, "c", k)
    test = content["comparisons"][str(folder / "c")]["metrics"][f"recall@{k}"]
    gains = np.array([two[user] - one[user] for user in one])
    assert test["value"] == pytest.approx(gains.mean())
    assert (test["wins"], test["losses"], test["ties"]) == tuple((np.sign(gains) == sign).sum() for sign in (1, -1, 0))
    assert test["low"] <= test["value"] <= test["high"]
    assert test["detectable"] == pytest.approx(2.8 * gains.std(ddof=1) / np.sqrt(len(gains)), rel=1e-4)


def test_slices_of_users_and_of_targets_are_those_of_slow_loops(folder: Path, content: dict[str, Any]) -> None:
    slices = content["comparisons"][str(folder / "b")]["slices"]
    one, two = recall(folder, "a", 5), recall(folder, "b", 5)
    french = {user for user in one if int(user[1:]) % 3 == 1}
    part = slices["country: FR"]
    assert part["users"] == len(french)
    assert part["value"] == pytest.approx(np.mean([two[user] - one[user] for user in french]))
    assert part["wins"] == sum(two[user] > one[user] for user in french)
    found = [recall_of_drama(folder, name) for name in "ab"]
    part = slices["genres: drama"]
    assert part["users"] == len(found[0])
    np.testing.assert_allclose([part["baseline"], part["other"]], np.mean(found, axis=1), rtol=1e-6)


def recall_of_drama(folder: Path, name: str) -> list[float]:
    """Recall at 5 of the targets of one genre, of each user who has such a target."""
    lists, targets = lists_of(folder, name, 5), targets_of(folder)
    drama = {user: [item for item in each if int(item[1:]) % 2 and item != "i7"] for user, each in targets.items()}
    return [len({*lists[user]} & {*theirs}) / len(theirs) for user, theirs in drama.items() if theirs]


def test_lists_items_and_users_are_those_of_slow_loops(folder: Path, content: dict[str, Any]) -> None:
    comparison = content["comparisons"][str(folder / "c")]
    one, two = lists_of(folder, "a", 5), lists_of(folder, "c", 5)
    common = [len({*one[user]} & {*two[user]}) / 5 for user in one]
    assert comparison["lists"]["overlap"] == pytest.approx(np.mean(common))
    assert comparison["lists"]["equal"] == sum(one[user] == two[user] for user in one)
    shares = {
        f"i{item}": [np.mean([f"i{item}" in each[user] for user in one]) for each in (one, two)]
        for item in range(columns.ITEMS)
    }
    gain = comparison["items"]["gain"]
    assert gain[0]["other"] - gain[0]["baseline"] == pytest.approx(max(b - a for a, b in shares.values()))
    for change in [*gain, *comparison["items"]["lose"]]:
        assert [change["baseline"], change["other"]] == pytest.approx(shares[change["item"]])
    before, after = recall(folder, "a", 5), recall(folder, "c", 5)
    gains = sorted((after[user] - before[user] for user in before), reverse=True)
    told = comparison["users"]["gain"]
    assert [each["other"] - each["baseline"] for each in told] == [gain for gain in gains if gain > 0][:10]
    assert all(before[each["user_id"]] == each["baseline"] for each in told)
    told = comparison["users"]["lose"]
    assert [each["other"] - each["baseline"] for each in told] == [gain for gain in gains[::-1] if gain < 0][:10]


def test_the_items_that_moved_farthest_are_those_of_a_slow_loop(folder: Path, content: dict[str, Any]) -> None:
    vectors = [Bundle.open(folder / name, verify=False) for name in "ac"]
    items = [f"i{item}" for item in range(columns.ITEMS)]
    one, other = (
        np.array([each.item_vectors[each.item_rows[item]].astype(float) for item in items]) for each in vectors
    )
    one, other = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (one, other))
    left, _, right = np.linalg.svd(one.T @ other)
    cosines = {item: float(a @ left @ right @ b) for item, a, b in zip(items, one, other, strict=True)}
    found = content["comparisons"][str(folder / "c")]["vectors"]
    assert found["items"] == pytest.approx(np.mean([*cosines.values()]), abs=1e-5)
    assert [each["cosine"] for each in found["farthest"]] == pytest.approx(sorted(cosines.values())[:10], abs=1e-5)
    assert all(each["cosine"] == pytest.approx(cosines[each["item"]], abs=1e-5) for each in found["farthest"])


def test_holms_correction_covers_all_metrics_of_all_sides(content: dict[str, Any]) -> None:
    tests = [test for each in content["comparisons"].values() for test in each["metrics"].values()]
    assert len(tests) == content["tests"] == 4
    smallest = min(tests, key=lambda test: test["p"])
    assert smallest["p_holm"] == min(1, 4 * smallest["p"])
    assert [test["shown"] for test in tests] == [test["p_holm"] <= 0.05 for test in tests]


def test_two_trainings_of_one_recipe_are_said_to_be_that(folder: Path, content: dict[str, Any]) -> None:
    notes = " ".join(content["notes"])
    assert f"{folder / 'b'} has the recipe of {folder / 'a'}" in notes
    assert f"{folder / 'c'} has the recipe" not in notes
    assert "the spread over seeds is not known" in notes


def test_two_bundles_of_one_training_are_said_to_be_that(folder: Path, content: dict[str, Any], tmp_path: Path) -> None:
    made = {"lineage": {"config": {"train": {"seed": 7}}}, "training": {"stages": [{"seconds": 1.25}]}}
    for seed, name in enumerate(("stored", "stored otherwise")):
        columns.write_bundle_of(folder / "dataset", name=name, seed=seed, **made)
    names = [str(folder / name) for name in ("stored", "stored otherwise")]
    notes = " ".join(compare.run(names, tmp_path / "out", dataset=folder / "dataset", metric="recall@5")["notes"])
    assert f"{names[1]} and {names[0]} are of one training" in notes
    assert "two trainings" not in notes


@pytest.mark.parametrize(("refits", "said"), [((False, True), 1), ((True, False), 1), ((True, True), 0)])
def test_slices_by_one_of_two_trainings_are_said_to_be_that(
    folder: Path, tmp_path: Path, refits: tuple[bool, bool], said: int
) -> None:
    names = [str(folder / f"{place} of refit {''.join(map(str, map(int, refits)))}") for place in range(2)]
    for place, (name, refit) in enumerate(zip(names, refits, strict=True)):
        training = {"refit": refit, "stages": [{"seconds": place}]}
        columns.write_bundle_of(folder / "dataset", name=name, seed=30 + place, training=training)
    told = compare.run(names, tmp_path / "out", dataset=folder / "dataset", metric="recall@5")
    note = f"{names[1]} and {names[0]} differ in data.refit: warm, cold and new are by what {names[0]} was trained on"
    assert told["notes"].count(note) == said


def test_reports_that_take_other_users_for_warm_are_said_to(tmp_path: Path) -> None:
    names = [str(write_report(tmp_path / name, np.linspace(0.1, 0.9, 6))) for name in "ab"]
    rows = pl.read_parquet(tmp_path / "b" / "per_user.parquet")
    rows.with_columns(slice=pl.Series(["cold", *["warm"] * 5])).write_parquet(tmp_path / "b" / "per_user.parquet")
    content = json.loads((tmp_path / "b" / "report.json").read_text())
    del content["digest"]
    report_json.write_report(content, tmp_path / "b", "per_user.parquet")
    told = compare.run(names, tmp_path / "out")
    assert sum("differ in data.refit" in note for note in told["notes"]) == 1


def later_prior(folder: Path, name: str, days: int, seed: int) -> str:
    """A bundle whose prior counts events up to so many days after the last one before the test."""
    data = Dataset.open(folder / "dataset")
    last = max(int(np.asarray(data.events(split).time).max()) for split in ("train", "valid"))
    prior = PriorInfo(now=1.0, past=0.5, until=last + days * 86_400, mean_count=1.0, new_item=(0.0, 0.0))
    changes = {"prior": prior, "item_prior": np.zeros((columns.ITEMS, 2), np.float32)}
    return str(columns.write_bundle_of(folder / "dataset", name=name, seed=seed, **changes))


def test_a_prior_that_knows_the_test_is_no_reason_to_ship(folder: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"dataset": folder / "dataset", "metric": "recall@5"}
    before, renewed, other = (later_prior(folder, f"prior {days}", days, 40 + days) for days in (0, 2, 3))
    for names in ([before, renewed], [renewed, before]):
        told = f"^{renewed}: the prior counts events of 2.0 days after .*: some may be the test's, and {before} has no "
        with pytest.raises(DataError, match=told + "such finding; compare it as it was trained$"):
            compare.run(names, tmp_path / "out", **asked)
    notes = compare.run([renewed, other], tmp_path / "out", **asked)["notes"]
    said = "the prior counts events of {}.0 days after the last one before the test: some may be the test's"
    of_each = [f"{renewed}: {said.format(2)}", f"{other}: {said.format(3)}"]
    assert [note for note in notes if "prior counts" in note] == of_each
    same = later_prior(folder, "prior 2 again", 2, 52)
    notes = compare.run([renewed, same], tmp_path / "same", **asked)["notes"]
    assert [note for note in notes if "prior counts" in note] == [f"all sides: {said.format(2)}"]


def test_a_report_of_a_prior_that_knows_the_test_is_compared_with_its_like_only(tmp_path: Path) -> None:
    finding = {"name": "prior of the test's time", "text": "it knows", "value": 2.0, "limit": 0}
    a, b, c = (
        str(write_report(tmp_path / name, np.linspace(0.1, 0.9, 6), findings=found))
        for name, found in (("a", [finding]), ("b", []), ("c", [finding]))
    )
    with pytest.raises(DataError, match=f"^{a}: it knows, and {b} has no such finding"):
        compare.run([b, a], tmp_path / "out")
    assert "all sides: it knows" in compare.run([a, c], tmp_path / "out")["notes"]


def test_each_bundle_beside_a_report_tells_of_its_own_training(tmp_path: Path) -> None:
    # The user "late" has no event before the validation's time, and one in the test.
    rows = [(f"u{user}", f"i{(user + step) % 8}", 7 * step + user) for step in range(6) for user in range(7)]
    rows += [("late", "i0", 75), ("u1", "i7", 76), ("late", "i1", 85), ("u2", "i0", 86)]
    events, dataset = tmp_path / "events.parquet", tmp_path / "dataset"
    pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row").write_parquet(events)
    prepare.run(DataConfig(split="global_time", valid_share=2 / 46, test_share=2 / 46), events, dataset)
    names = [
        str(columns.write_bundle_of(dataset, name=f"refit {refit}", seed=refit, training={"refit": refit}))
        for refit in (False, True)
    ]
    report.run(Path(names[0]), dataset, tmp_path / "report", maps=[])
    told = compare.run([str(tmp_path / "report"), *names], tmp_path / "out", dataset=dataset)["notes"]
    said = [note.partition(" differ")[0] for note in told if "data.refit" in note]
    assert said == [f"{names[1]} and {tmp_path / 'report'}"]


def test_reports_give_the_figures_of_their_bundles(folder: Path, content: dict[str, Any]) -> None:
    for name in "ac":
        report.run(folder / name, folder / "dataset", folder / f"report-{name}", ks=[3, 5], maps=[])
    names = [str(folder / f"report-{name}") for name in "ac"]
    told = compare.run(names, folder / "of-reports", metric="recall@5", family="recall@3")
    bundles = content["comparisons"][str(folder / "c")]
    (reports,) = told["comparisons"].values()
    for metric, test in reports["metrics"].items():
        # Holm's correction is over two tests here, over four there.
        assert {**test, "p_holm": 0, "shown": 0} == {**bundles["metrics"][metric], "p_holm": 0, "shown": 0}
    for part, figures in reports["slices"].items():
        assert figures == bundles["slices"][part]
    assert "warm" in reports["slices"] and any(part.startswith("activity") for part in reports["slices"])
    assert reports["lists"] is reports["items"] is reports["vectors"] is None
    assert any(note.startswith("left out: overlap of lists") for note in told["notes"])
    both = compare.run([names[0], str(folder / "c")], folder / "both", dataset=folder / "dataset", metric="recall@5")
    (mixed,) = both["comparisons"].values()
    assert mixed["metrics"]["recall@5"]["p"] == reports["metrics"]["recall@5"]["p"]


def test_seeds_joined_by_commas_are_one_side(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    side = f"{folder / 'a'},{folder / 'b'}"
    names, given = [side, str(folder / "c")], {"dataset": folder / "dataset", "metric": "recall@5"}
    told = compare.run(names, tmp_path / "out", slices=["genres"], **given)  # type: ignore[arg-type]
    said = capsys.readouterr().err.splitlines()
    phases = ("verify", "evaluate", "tests")
    assert said[0] == f"compare: {', '.join(phases)}"
    assert [sum(line.startswith(f"{phase}: ") for line in said) for phase in phases] == [1, 1, 1]
    models = f"--bundle {folder / 'a'} --bundle {folder / 'c'}"
    assert said[-1] == f"next: {towers()} look {models} --dataset {folder / 'dataset'}"
    means = [np.mean([*recall(folder, name, 5).values()]) for name in "abc"]
    np.testing.assert_allclose(told["sides"][side]["seeds"]["recall@5"], means[:2], rtol=1e-6)
    comparison = told["comparisons"][str(folder / "c")]
    assert comparison["metrics"]["recall@5"]["value"] == pytest.approx(means[2] - np.mean(means[:2]))
    assert comparison["seeds"]["standard_deviation"] == pytest.approx(np.std(means[:2], ddof=1))
    drama = [np.mean(recall_of_drama(folder, name)) for name in "abc"]
    part = comparison["slices"]["genres: drama"]
    np.testing.assert_allclose([part["baseline"], part["other"]], [np.mean(drama[:2]), drama[2]], rtol=1e-6)
    assert told["seeds_of_one_recipe"]["lists"]["overlap"] < 1
    assert not any("spread over seeds" in note for note in told["notes"])
    assert "Two seeds of one recipe, for comparison" in (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("conclusion", "named"),
    [(BETTER, ["ndcg@5"]), (WORSE, ["recall@5"]), (SEEDS, ["ndcg@5"]), (NOT_SHOWN, ["recall@5", "ndcg@5"])],
)
def test_another_metric_that_differs_otherwise_is_named(conclusion: str, named: list[str]) -> None:
    tests = {"recall@5": 0.02, "ndcg@5": -0.01, "recall@3": 0.5}
    metrics = {name: {"value": value, "p_holm": 0.001, "shown": name != "recall@3"} for name, value in tests.items()}
    comparison = {"metrics": metrics, "conclusion": conclusion}
    content = {"baseline": "a", "primary": "recall@5", "tests": 3, "comparisons": {"b": comparison}}
    assert [re.split(" in | by ", note)[1] for note in contrary(content)] == named


def test_many_long_names_joined_by_commas_are_several_paths(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sides = [[f"{side}-of-a-recipe-with-a-long-name-{seed}" for seed in range(8)] for side in "ab"]
    for name in (name for side in sides for name in side):
        (tmp_path / name).symlink_to(folder / "a")
    assert [*paths_of([",".join(side) for side in sides]).values()] == [tuple(map(Path, side)) for side in sides]


def test_one_training_is_no_second_seed(folder: Path, tmp_path: Path) -> None:
    training = {"stages": [{"seconds": 2.5}]}
    for seed, name in enumerate(("seed", "seed again"), start=20):
        columns.write_bundle_of(folder / "dataset", name=name, seed=seed, training=training)
    for one, two in (("a", "copy of a"), ("seed", "seed again")):
        if two == "copy of a":
            columns.write_bundle_of(folder / "dataset", name=two, seed=0)
        side = f"{folder / one},{folder / two}"
        with pytest.raises(DataError, match=f"{folder / one} and {folder / two} are of one training; name a seed once"):
            compare.run([side, str(folder / "c")], tmp_path / "out", dataset=folder / "dataset", metric="recall@5")


def test_members_of_a_side_that_differ_by_more_than_the_seed_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"named as seeds of one recipe, but differ in train\.epochs: 3 and 9"):
        names = [f"{folder / 'a'},{folder / 'c'}", str(folder / "b")]
        compare.run(names, tmp_path / "out", dataset=folder / "dataset")


def test_a_warm_start_is_no_seed_of_a_cold_training(folder: Path, tmp_path: Path) -> None:
    trainings = {"cold": {"refit": False}, "warm": {"warm_from": "ab"}, "warm too": {"warm_from": "cd"}}
    for seed, (name, training) in enumerate(trainings.items(), start=30):
        lineage = read_manifest(folder / "a").lineage
        columns.write_bundle_of(folder / "dataset", name=name, seed=seed, lineage=lineage, training=training)
    cold, warm, too = (folder / name for name in trainings)
    given: dict[str, Any] = {"dataset": folder / "dataset", "metric": "recall@5"}
    with pytest.raises(DataError, match="seeds of one recipe, but differ in warm start: False and True"):
        compare.run([f"{cold},{warm}", str(folder / "c")], tmp_path / "out", **given)
    # Each seed may start from the earlier run of its own seed.
    told = compare.run([f"{warm},{too}", f"{cold},{folder / 'a'}"], tmp_path / "out", **given)
    assert [len(side["members"]) for side in told["sides"].values()] == [2, 2]
    notes = [
        compare.run([*map(str, pair)], tmp_path / pair[1].name, **given)["notes"] for pair in ((too, cold), (too, warm))
    ]
    assert [any("two trainings of one recipe" in note for note in each) for each in notes] == [False, True]


class Page(HTMLParser):
    """The tags, the addresses they name, and the ids that they and others point to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.given: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.given += [(name, value or "") for name, value in attrs]

    def of(self, *names: str) -> set[str]:
        return {value for name, value in self.given if name in names}


def test_the_page_needs_nothing_else_and_escapes_names(folder: Path, content: dict[str, Any]) -> None:
    text = (folder / "comparison" / "compare.html").read_text(encoding="utf-8")
    page = Page(text)
    assert all(address.startswith("#") for address in page.of("src", "href", "xlink:href", "action"))
    assert not {"script", "link", "img", "iframe", "object"} & {*page.tags}
    assert not re.search(r"url\((?!#)|@import", text)
    assert page.tags.count("h1") == page.tags.count("main") == 1
    assert page.tags.count("svg") == len(content["comparisons"]) == 2
    assert page.of("aria-labelledby") <= page.of("id")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;|&amp;" in text
    farthest = next(iter(content["comparisons"].values()))["vectors"]["farthest"][0]["item"]
    names: Any = templates("pipelines.evaluation").get_template("names.html.j2").module
    assert f"<li>{names.isolated(farthest)}: cosine " in text
    assert not page.of("title")  # a phone shows none
    for comparison in content["comparisons"].values():
        for name, part in comparison["slices"].items():
            assert f"<dt>{escape(name)}</dt><dd>{escape(part['definition'])}</dd>" in text


@pytest.mark.long
def test_no_table_covers_another_and_the_page_is_accessible(folder: Path, content: dict[str, Any]) -> None:
    heights = "texts => texts.map(text => text.getBoundingClientRect().height)"
    beyond = """tables => tables.filter(table => getComputedStyle(table.parentElement).overflowX == "visible"
        && table.getBoundingClientRect().right > table.parentElement.getBoundingClientRect().right + 1).length"""
    with browser.pages(folder / "comparison" / "compare.html") as opened:
        for viewport in (browser.NARROW, browser.WIDE):
            with opened(viewport) as page:
                assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
                assert min(page.locator("svg text").evaluate_all(heights)) > 9
                assert page.locator("table").count() > 6 and page.locator("table").evaluate_all(beyond) == 0
                browser.refuse_barriers(page)


def test_every_row_of_the_markdown_has_the_columns_of_its_head(folder: Path, content: dict[str, Any]) -> None:
    lines = (folder / "comparison" / "compare.md").read_text(encoding="utf-8").splitlines()
    assert content["sentence"] in lines
    tables = "\n".join(line if line.startswith("|") else "" for line in lines).split("\n\n")
    sizes = [{len(re.findall(r"(?<!\\)\|", row)) for row in table.split("\n") if row} for table in tables]
    assert [size for size in sizes if size] == [{12}, {8}, {12}, {8}]


def test_a_comparison_says_how_many_users_are_few(content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "| slice (†: fewer than 100 users) |" in compare_page.markdown(content)
    monkeypatch.setattr(compare_page, "SMALL", 7)
    assert "| slice (†: fewer than 7 users) |" in compare_page.markdown(content)
    assert "† marks fewer than 7 users." in compare_page.html(content)


def test_a_name_that_would_break_a_table_of_the_markdown_is_one_cell(folder: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content)
    for name in (str(folder / "a"), str(folder / "b"), "country: FR"):
        text = text.replace(json.dumps(name), json.dumps(f"{name} {HOSTILE_CELL}"))
    rows = github_rows(compare_page.markdown(json.loads(text)))
    heads = [row for row in rows if row[0] == "metric"]
    assert heads[0][1:3] == [f"{folder / name} {HOSTILE_CELL}" for name in "ab"] and {*map(len, heads)} == {11}
    slices = [row for row in rows if row[0].startswith("country: FR")]
    assert {(row[0], len(row)) for row in slices} == {(f"country: FR {HOSTILE_CELL} †", 7)} and len(slices) == 2


def test_no_name_is_html_in_the_markdown(content: dict[str, Any], folder: Path) -> None:
    text = json.dumps(content | {"notes": [f"{folder / 'a'} and {folder / 'b'} differ"]})
    for name in (str(folder / "a"), str(folder / "b"), "country: FR"):
        text = text.replace(json.dumps(name)[1:-1], json.dumps(f"{name} {HOSTILE}")[1:-1])
    page = compare_page.markdown(json.loads(text))
    assert "<script>" not in page and page.count("&lt;script>alert(1)&lt;/script>\\|&amp;\"'") >= 10
    rows = github_rows(page)
    assert next(row[1:3] for row in rows if row[0] == "metric") == [f"{folder / name} {HOSTILE}" for name in "ab"]


def write_report(path: Path, recalls: np.ndarray, ndcgs: np.ndarray | None = None, **changes: Any) -> Path:
    """A report of a model that has these recalls at 20, and where none are given NDCGs, written by hand."""
    given = {
        "bundle": {"model_version": path.name},
        "dataset": {"fingerprint": "f" * 64, "split": {"kind": "last"}},
        "protocol": "as ever",
        "protocol_options": {"words": []},
        "ks": [10, 20],
        "findings": [],
    }
    path.mkdir()
    rows = {"targets": np.full(len(recalls), 2), "history": np.arange(len(recalls)), "slice": ["warm"] * len(recalls)}
    values = {f"exact_{metric}@{k}": np.asarray(recalls, np.float32) for metric in METRICS for k in (10, 20)}
    values |= {} if ndcgs is None else {"exact_ndcg@20": ndcgs.astype(np.float32)}
    pl.DataFrame(rows | values).write_parquet(path / "per_user.parquet")
    report_json.write_report(given | changes, path, "per_user.parquet")
    return path


def decided(folder: Path, gains: dict[str, np.ndarray], sides: list[str]) -> dict[str, Any]:
    base = np.random.default_rng(0).uniform(0.2, 0.6, 200)
    for name, gain in gains.items():
        write_report(folder / name, base + gain)
    names = [",".join(str(folder / name) for name in side.split(",")) for side in sides]
    return compare.run(names, folder / "out")


NOISE = np.random.default_rng(1).normal(0, 0.02, (4, 200))


def test_the_better_one_is_shipped(tmp_path: Path) -> None:
    told = decided(tmp_path, {"a": NOISE[0], "b": NOISE[1] + 0.02, "c": NOISE[2] + 0.04}, ["a", "b", "c"])
    assert told["ship"] == str(tmp_path / "c")
    assert told["sentence"].startswith(
        f"Ship {tmp_path / 'c'}: {tmp_path / 'c'} is above {tmp_path / 'a'} in recall@20 by"
    )
    assert told["sentence"].count("the difference is real (p = 0.0004, Holm over 4 tests)") == 2


def test_a_worse_one_is_not_shipped_and_its_loss_is_told(tmp_path: Path) -> None:
    told = decided(tmp_path, {"a": NOISE[0], "b": NOISE[1] - 0.02}, ["a", "b"])
    assert told["ship"] == str(tmp_path / "a")
    test = told["comparisons"][str(tmp_path / "b")]["metrics"]["recall@20"]
    figures = f"by {-test['value']:.4f} ({-test['high']:.4f} to {-test['low']:.4f})"
    assert (
        f"{tmp_path / 'b'} is below {tmp_path / 'a'} in recall@20 {figures}; the difference is real" in told["sentence"]
    )


def test_no_difference_says_what_could_have_been_shown(tmp_path: Path) -> None:
    told = decided(tmp_path, {"a": NOISE[0], "b": NOISE[1]}, ["a", "b"])
    could = 2.8 * (NOISE[1] - NOISE[0]).std(ddof=1) / np.sqrt(200)
    assert told["sentence"].startswith(f"Keep {tmp_path / 'a'}: no difference shown between")
    assert told["sentence"].endswith(f"these 200 test users could have shown {could:.4f}.")


def test_what_one_test_would_show_two_tests_do_not(tmp_path: Path) -> None:
    noise = NOISE[1] - NOISE[0]
    gain = NOISE[1] - noise.mean() + 2.1 * noise.std(ddof=1) / np.sqrt(200)  # 2.1 standard errors: p = 0.036
    told = decided(tmp_path, {"a": NOISE[0], "b": gain}, ["a", "b"])
    test = told["comparisons"][str(tmp_path / "b")]["metrics"]["recall@20"]
    assert (test["p"], test["p_holm"]) == (pytest.approx(0.036, abs=0.01), pytest.approx(2 * test["p"]))
    assert not test["shown"] and told["ship"] == told["baseline"]


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (-2.9e-5, 0.0041, "-0.00003 to +0.00410"),
        (-0.0041, 2.9e-5, "-0.00410 to +0.00003"),
        (-0.0021, 0.0, "-0.0021 to +0.0000"),
        (-1e-12, 0.0041, "+0.0000 to +0.0041"),
    ],
)
def test_a_bound_has_one_sign_in_the_conclusion_and_below_it(low: float, high: float, told: str) -> None:
    test = {"value": 0.002, "low": low, "high": high, "p": 0.05, "p_holm": 0.05, "shown": False, "detectable": 0.006}
    test |= {"wins": 3, "losses": 2, "ties": 1}
    sides = {name: {"metrics": {"recall@20": {"value": 0.1}}} for name in "ab"}
    content: dict[str, Any] = {"baseline": "a", "primary": "recall@20", "tests": 1, "ship": "a", "sides": sides}
    content |= {"counts": {"users": 6}, "notes": []}
    content["comparisons"] = {"b": {"conclusion": NOT_SHOWN, "metrics": {"recall@20": test}}}
    assert f", {told}; p" in sentence(content)
    assert f" ({told}), p" in compare_page.lines(content)[0]


@pytest.mark.parametrize(("gain", "ships", "told"), [(0.02, "b", 1), (0.0, "a", 1), (-0.02, "a", 0)])
def test_another_metric_that_is_proven_worse_is_told(tmp_path: Path, gain: float, ships: str, told: int) -> None:
    base = np.random.default_rng(0).uniform(0.2, 0.6, 200)
    write_report(tmp_path / "a", base + NOISE[0])
    write_report(tmp_path / "b", base + NOISE[1] + gain, base + NOISE[2] - 0.03)
    found = compare.run([str(tmp_path / "a"), str(tmp_path / "b")], tmp_path / "out")
    loss = 0.03 - (NOISE[2] - NOISE[0]).mean()
    said = f"{tmp_path / 'b'} is below {tmp_path / 'a'} in ndcg@20 by {loss:.4f}, too large for chance among users"
    assert found["ship"] == str(tmp_path / ships)
    assert sum(note.startswith(said) for note in found["notes"]) == told
    assert (said in (tmp_path / "out" / "compare.md").read_text()) == bool(told)


def test_models_that_are_alike_for_every_user_are_said_to_be(tmp_path: Path) -> None:
    told = decided(tmp_path, {"a": NOISE[0], "b": NOISE[0]}, ["a", "b"])
    assert told["sentence"].endswith("p = 1, Holm over 2 tests); it is the same for every user.")


def test_a_difference_that_seeds_have_too_is_no_reason_to_ship(tmp_path: Path) -> None:
    gains = {"a0": NOISE[0], "a1": NOISE[1] + 0.03, "b0": NOISE[2] + 0.02, "b1": NOISE[3] + 0.035}
    told = decided(tmp_path, gains, ["a0,a1", "b0,b1"])
    (comparison,) = told["comparisons"].values()
    assert comparison["metrics"]["recall@20"]["shown"]
    assert comparison["conclusion"] == "within the spread of seeds"
    assert told["ship"] == told["baseline"]
    assert "but two seeds of one recipe differ, too" in told["sentence"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dataset": {"fingerprint": "0" * 64, "split": {"kind": "last"}}},
            "a and .*b differ in data set: fff.* and 000",
        ),
        ({"dataset": {"fingerprint": "f" * 64, "split": {"kind": "time"}}}, "a and .*b differ in split: .*last.*time"),
        ({"protocol": "another"}, "a and .*b differ in protocol: as ever and another"),
        ({"protocol_options": {"words": ["A sample."]}}, r"differ in protocol: as ever and as ever A sample\."),
        ({"ks": [10]}, r"a and .*b differ in ks: \[10, 20\] and \[10\]"),
        ({"task": "similarity"}, "b: a report of item neighbours"),
    ],
)
def test_reports_that_differ_in_more_than_the_model_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    one, other = write_report(tmp_path / "a", NOISE[0]), write_report(tmp_path / "b", NOISE[1], **changes)
    with pytest.raises(DataError, match=message):
        compare.run([str(one), str(other)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def drop_rows(folder: Path) -> None:
    (folder / "per_user.parquet").unlink()


def raise_recall(folder: Path) -> None:
    path = folder / "per_user.parquet"
    pl.read_parquet(path).with_columns(pl.col("exact_recall@20") + 0.1).write_parquet(path)


def reorder(folder: Path) -> None:
    path = folder / "per_user.parquet"
    pl.read_parquet(path).reverse().write_parquet(path)
    content = json.loads((folder / "report.json").read_text())
    report_json.write_report({key: value for key, value in content.items() if key != "digest"}, folder, path.name)


def other_model(folder: Path) -> None:
    content = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps(content | {"bundle": {"model_version": "another"}}))


def cut_json(folder: Path) -> None:
    (folder / "report.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_rows, r"per_user\.parquet: missing"),
        (raise_recall, r"per_user\.parquet: altered since report\.json was written"),
        (reorder, "are not about the same users: history differs"),
        (other_model, r"b/report\.json: altered"),
        (cut_json, r"b/report\.json: altered, not valid JSON"),
    ],
)
def test_damaged_and_altered_reports_are_refused(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    one, other = (write_report(tmp_path / name, NOISE[0]) for name in "ab")
    damage(other)
    with pytest.raises(DataError, match=message):
        compare.run([str(one), str(other)], tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["a"], {}, "give at least two"),
        (["a", "a"], {}, "give at least two"),
        (["a", "b", "a"], {}, "a is named twice"),
        (["b", "a", "a"], {}, "a is named twice"),
        (["a,b", "b"], {}, "b is named twice"),
        (["a", "none"], {}, "none: neither a report"),
        (["a", "b"], {"metric": "recal@20"}, "metric 'recal@20': expected NAME@K"),
        (["a", "b"], {"family": "ndcg"}, "metric 'ndcg': expected NAME@K"),
        (["a", "b"], {"family": "ndcg@0"}, "metric 'ndcg@0': expected NAME@K"),
        (
            ["a", "b"],
            {"metric": "recall@1000000000001"},
            "metric 'recall@1000000000001': expected NAME@K, for example recall@20; names are "
            f"{', '.join(METRICS)}, and K is at most 1,000,000,000,000",
        ),
        (["a", "b"], {"metric": f"recall@{'9' * 5_000}"}, "9': expected NAME@K, for example recall@20; names are"),
        (
            ["a", "b"],
            {"metric": "recall@7"},
            "metric 'recall@7': the reports have no such list length; allowed are 10, 20",
        ),
        (["a", "b"], {"slices": ["country"]}, "--slice country: a is a report"),
        (["a", "b"], {"user_ids": True}, "--user-ids: a names no user"),
        (["a", "b"], {"dataset": Path("dataset")}, "--dataset dataset: measures bundles, and a is a report"),
    ],
)
def test_wrong_words_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        write_report(Path(name), NOISE[0])
    with pytest.raises(DataError, match=re.escape(message)):
        compare.run(names, Path("out"), **options)


def test_bundles_need_their_data_set(folder: Path, tmp_path: Path) -> None:
    names = [str(folder / "a"), str(folder / "b")]
    with pytest.raises(DataError, match=r"--dataset: .*a is a bundle"):
        compare.run(names, tmp_path / "out")
    strange = columns.write_dataset(columns.make_events()[:-1], tmp_path)
    with pytest.raises(BundleError, match="was trained on the data set"):
        compare.run(names, tmp_path / "out", dataset=strange)


def test_an_output_is_replaced_only_where_asked(tmp_path: Path) -> None:
    names = [str(write_report(tmp_path / name, NOISE[0])) for name in "ab"]
    compare.run(names, tmp_path / "out")
    with pytest.raises(OutputExistsError):
        compare.run(names, tmp_path / "out")
    compare.run(names, tmp_path / "out", overwrite=True)
