"""Judging the figures of reports: against slow loops over the lists; the interval of a difference by its formula."""

import math
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest

from pipelines.bundles.blessing import Judgement
from pipelines.errors import DataError
from pipelines.evaluation import report
from pipelines.evaluation.report_json import PER_USER
from pipelines.ingest import prepare
from pipelines.launch import compare, gate, judge
from pipelines.launch.judge import Report, Reports
from pipelines.launch.rules import FigureRule, FindingsRule, Rules, SliceRule
from pipelines.launch.significance import difference
from serving.bundle.digest import bundle_digest
from tests.support.worlds.launch import (
    ITEMS,
    KS,
    USERS,
    first,
    query_vectors,
    recalls,
    taken,
    write_dataset,
    write_model,
)
from towers.config.sections import DataConfig

GOOD, BAD = 1.0, 6.0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("judge") / "dataset")


def reported(out: Path, dataset: Path, noise: float, **changes: Any) -> Report:
    bundle = write_model(out, dataset, noise, **changes)
    place = out.with_name(f"{out.name}.report")
    report.run(bundle, dataset, place, ks=KS, maps=[])
    return Report.read(place, bundle, bundle_digest(bundle))


@pytest.fixture(scope="module")
def reports(dataset: Path) -> Reports:
    return Reports(*(reported(dataset.parent / f"{noise}", dataset, noise) for noise in (GOOD, BAD)))


@pytest.mark.parametrize("ranker", ["index", "exact"])
def test_figures_equal_the_slow_loop(reports: Reports, ranker: Any) -> None:
    good, bad = (np.array(recalls(noise, 5)) for noise in (GOOD, BAD))
    expected = {None: good.mean(), "difference": good.mean() - bad.mean(), "ratio": good.mean() / bad.mean()}
    assert expected["difference"] > 0.05
    for relative, value in expected.items():
        rule = FigureRule(metric="recall@5", ranker=ranker, relative=relative, bound="value", at_least=value - 1e-6)
        judged = reports.judge_metric(rule)
        assert judged.figure == pytest.approx(value, abs=1e-6) and judged.passed, relative
        assert not reports.judge_metric(rule.model_copy(update={"at_least": value + 1e-6})).passed
        other = FigureRule(metric="recall@5", ranker=ranker, relative=relative, bound="value", at_most=value + 1e-6)
        assert reports.judge_metric(other).passed
        assert not reports.judge_metric(other.model_copy(update={"at_most": value - 1e-6})).passed


def test_a_figure_of_all_lists_equals_the_slow_loop(reports: Reports) -> None:
    shown = [{item for user in range(USERS) for item in first(noise, user, 5)} for noise in (GOOD, BAD)]
    good, bad = (len(items) / ITEMS for items in shown)
    for relative, value in ((None, good), ("difference", good - bad), ("ratio", good / bad)):
        rule = FigureRule(metric="coverage@5", relative=relative, bound="value", at_least=0.0)  # type: ignore[arg-type]
        assert reports.judge_metric(rule).figure == pytest.approx(value, abs=1e-9)


def test_bounds_of_a_figure_of_all_lists_are_those_of_the_report(reports: Reports) -> None:
    assert reports.baseline is not None
    one, other = (each.content["gini"]["index"]["gini@5"] for each in (reports.candidate, reports.baseline))
    assert one["low"] < one["value"] < one["high"]
    expected = difference(one, other)
    for bound in ("low", "high"):
        rule = FigureRule(metric="gini@5", bound=bound, at_least=0)  # type: ignore[arg-type]
        assert reports.judge_metric(rule).figure == one[bound]
        assert reports.judge_metric(rule.model_copy(update={"relative": "difference"})).figure == expected[bound]


def test_a_report_of_an_earlier_release_has_values_of_lists_only(reports: Reports) -> None:
    old = made({})
    old = Report(old.path, {**old.content, "coverage": {"index": {"coverage@5": 0.25}}})
    rule = FigureRule(metric="coverage@5", bound="value", at_least=0.2)
    assert Reports(old, None).judge_metric(rule).figure == 0.25
    relative = rule.model_copy(update={"relative": "difference"})
    assert Reports(old, old).judge_metric(relative).figure == 0
    with pytest.raises(DataError, match="of an earlier release, coverage@5 has no interval; run `towers report`"):
        Reports(old, None).judge_metric(rule.model_copy(update={"bound": "low"}))


def test_a_ratio_to_nothing_does_not_pass(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    def covered(share: float) -> Report:
        one = made({})
        return Report(one.path, {**one.content, "coverage": {"index": {"coverage@5": share}}})

    rule = FigureRule(metric="coverage@5", relative="ratio", bound="value", at_least=0.9)
    with pytest.raises(DataError, match=r"coverage@5 of index is or may be 0: no ratio to it"):
        Reports(covered(0.25), covered(0.0)).judge_metric(rule)
    monkeypatch.setattr(judge, "paired_values", lambda *_: np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]))
    with pytest.raises(DataError, match=r"recall@5 of index is or may be 0: no ratio to it"):
        reports.judge_metric(rule.model_copy(update={"metric": "recall@5"}))


def test_bounds_of_a_difference_are_those_of_resampled_users(reports: Reports) -> None:
    per_user = np.array(recalls(GOOD, 5)) - np.array(recalls(BAD, 5))
    # The normal approximation; the bootstrap of 1,000 resamples is within a few per cent of it.
    half = 1.96 * per_user.std(ddof=1) / math.sqrt(USERS)
    for bound, expected in (("low", per_user.mean() - half), ("high", per_user.mean() + half)):
        rule = FigureRule(metric="recall@5", relative="difference", bound=bound, at_least=0.0)  # type: ignore[arg-type]
        assert reports.judge_metric(rule).figure == pytest.approx(expected, abs=0.2 * half)


def test_the_same_lists_differ_by_nothing_whatever_their_interval(
    reports: Reports, dataset: Path, tmp_path: Path
) -> None:
    twice = reported(tmp_path / "twice", dataset, BAD, query_vectors=2 * query_vectors(BAD))
    assert reports.baseline is not None
    paired = Reports(twice, reports.baseline)
    for relative, value in (("difference", 0.0), ("ratio", 1.0)):
        for bound in ("low", "high"):
            rule = FigureRule(metric="ndcg@10", relative=relative, bound=bound, at_least=0)  # type: ignore[arg-type]
            assert paired.judge_metric(rule).figure == value


def test_a_figure_that_no_report_has(reports: Reports) -> None:
    with pytest.raises(DataError, match=r"has no recall@7 of index; it has lists of 5, 10"):
        reports.judge_metric(FigureRule(metric="recall@7", bound="low", at_least=0))


def estimate(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def part(value: float, half: float, users: int = 500, group: str = "country", metric: str = "recall@20") -> Any:
    figures = {"index": {metric: estimate(value, half)}} if users else {}
    return {"group": group, "users": users, "targets": 2 * users, "metrics": figures}


def made(slices: dict[str, Any], findings: list[dict[str, Any]] | None = None, path: Path = Path("made")) -> Report:
    content = {
        "dataset": {"fingerprint": "f"},
        "protocol": "p",
        "protocol_options": {"words": []},
        "ks": [20],
        "slices": slices,
        "new_items": part(0, 0, 0, "new_items"),
        "findings": findings or [],
    }
    return Report(path, content)


def test_the_interval_of_a_difference_of_independent_means() -> None:
    # Of normal intervals the half-widths add up in squares.
    found = difference(estimate(0.5, 0.03), estimate(0.4, 0.04))
    assert found == pytest.approx({"value": 0.1, "low": 0.1 - 0.05, "high": 0.1 + 0.05})
    skewed = difference({"value": 1.0, "low": 0.7, "high": 1.1}, {"value": 0.5, "low": 0.3, "high": 0.9})
    assert skewed == pytest.approx(
        {"value": 0.5, "low": 0.5 - math.hypot(0.3, 0.4), "high": 0.5 + math.hypot(0.1, 0.2)}
    )


def test_no_slice_may_be_worse_and_small_ones_are_only_listed() -> None:
    names = {"FR": (0.30, 0.31), "DE": (0.30, 0.40), "IT": (0.10, 0.40)}
    small = {"IT"}
    both = Reports(
        *(
            made({name: part(values[side], 0.03, 40 if name in small else 500) for name, values in names.items()})
            for side in (0, 1)
        )
    )
    rule = SliceRule(metric="recall@20", relative="difference", bound="value", at_least=-0.05)
    judged = list(both.judge_slices(rule))
    assert [(each.figure, each.passed) for each in judged[:2]] == [
        (pytest.approx(-0.01), True),
        (pytest.approx(-0.1), False),
    ]
    assert {each.note for each in judged[:2]} == {"not paired: made has no per_user.parquet"}
    assert (judged[2].rule, judged[2].figure, judged[2].passed) == ("recall@20 of index, IT", None, True)
    assert judged[2].note == "not judged: 40 users, fewer than 100"
    # The upper bound of DE is -0.1 + 0.0424: above -0.06, so it is not surely worse.
    lenient = SliceRule(metric="recall@20", relative="difference", bound="high", at_least=-0.06, least_users=40)
    assert [each.passed for each in both.judge_slices(lenient) if each.figure is not None] == [True, True, False]


def test_a_slice_without_users_is_listed_though_it_has_no_figures() -> None:
    both = made({"FR": part(0.3, 0.01), "IT": part(0, 0, users=0)})
    rule = SliceRule(metric="recall@20", bound="value", at_least=0.2, groups=("country",))
    judged = list(Reports(both, None).judge_slices(rule))
    assert [(each.passed, each.note) for each in judged] == [(True, ""), (True, "not judged: 0 users, fewer than 100")]


@pytest.mark.parametrize(("unjudged", "passed"), [(None, False), ("refuse", False), ("pass", True)])
def test_a_rule_of_small_slices_alone_passes_only_where_it_says_so(unjudged: str | None, passed: bool) -> None:
    small = Reports(made({"FR": part(0.3, 0.01, users=99), "hits": part(0.3, 0.01, group="popularity")}), None)
    said = {} if unjudged is None else {"unjudged": unjudged}
    rule = SliceRule(metric="recall@20", bound="value", at_least=0.5, groups=("country",), **said)  # type: ignore[arg-type]
    judged, listed = small.judge_slices(rule)
    assert (judged.rule, judged.figure, judged.passed) == ("recall@20 of index, country slices", None, passed)
    assert judged.note == "not judged: no slice has at least 100 users"
    assert (listed.rule, listed.passed) == ("recall@20 of index, FR", True)
    # Each group counts by itself.
    every = list(small.judge_slices(rule.model_copy(update={"groups": ("country", "popularity")})))
    assert [(each.rule, each.passed) for each in every] == [
        ("recall@20 of index, country slices", passed),
        ("recall@20 of index, FR", True),
        ("recall@20 of index, hits", False),
    ]


def popular_thirds() -> set[int]:
    """The most popular items, which have a third of the 6 events of each user before the test."""
    events = Counter(item for split in ("train", "valid") for row in taken()[split] for item in row)
    most, before = set(), 0
    for item in sorted(range(ITEMS), key=lambda item: -events[item]):
        if before < 6 * USERS / 3:
            most.add(item)
        before += events[item]
    return most


def in_slice(reports: Reports, name: str, bound: str, ranker: str = "index") -> Judgement:
    given = {"metric": "recall@10", "ranker": ranker, "bound": bound, "relative": "difference", "least_users": 50}
    judged = reports.judge_slices(SliceRule(at_least=0, **given))  # type: ignore[arg-type]
    return next(each for each in judged if f"of {ranker}, {name} minus" in each.rule)


def test_a_difference_in_a_slice_is_paired_by_user(reports: Reports) -> None:
    """Against slow loops: the value, and the normal interval of the differences of the slice's users."""
    assert reports.baseline is not None
    wide = Reports(*(Report(Path("gone"), each.content) for each in (reports.candidate, reports.baseline)))
    both = []
    for user, targets in enumerate(taken()["test"]):
        if most := {*targets} & popular_thirds():
            both.append([len({*first(noise, user, 10)} & most) / len(most) for noise in (GOOD, BAD)])
    assert 50 <= len(both) < USERS
    slices = {"activity: 6": np.array([recalls(noise, 10) for noise in (GOOD, BAD)]).T}
    for name, values in (slices | {"popularity: most popular items": np.array(both)}).items():
        change = values[:, 0] - values[:, 1]
        half = 1.96 * change.std(ddof=1) / math.sqrt(len(change))
        for bound, expected, exactness in (
            ("value", change.mean(), 1e-6),
            ("low", change.mean() - half, 0.2 * half),
            ("high", change.mean() + half, 0.2 * half),
        ):
            paired, unpaired = in_slice(reports, name, bound), in_slice(wide, name, bound)
            assert paired.figure == pytest.approx(expected, abs=exactness), name
            assert (paired.note, unpaired.note) == ("paired by user", "not paired: gone has no per_user.parquet")
            assert unpaired.figure is not None and paired.figure is not None
            assert np.sign(unpaired.figure - paired.figure) == {"value": 0, "low": -1, "high": 1}[bound]


def test_the_interval_of_a_slice_is_that_of_a_comparison(reports: Reports, tmp_path: Path) -> None:
    assert reports.baseline is not None
    paths = [str(each.path) for each in (reports.baseline, reports.candidate)]
    told = compare.run(paths, tmp_path / "compared", metric="recall@10")["comparisons"][paths[1]]["slices"]
    for name in ("warm", "activity: 6"):
        for bound in ("value", "low", "high"):
            assert in_slice(reports, name, bound, "exact").figure == pytest.approx(told[name][bound], abs=1e-12)


def test_slices_that_cannot_be_paired_are_judged_by_wider_intervals_that_say_why(
    reports: Reports, tmp_path: Path
) -> None:
    assert reports.baseline is not None
    rows = pl.read_parquet(reports.baseline.path / PER_USER)
    changed = {
        "have other users in the slice 'warm'": rows.with_columns(warm=~pl.col("warm")),
        "does not say who is in the slice 'warm': it is of an earlier release": rows.drop("warm"),
    }
    estimates = [each.content["slices"]["warm"]["metrics"]["index"]["recall@10"] for each in (
        reports.candidate, reports.baseline)]  # fmt: skip
    for why, table in changed.items():
        table.write_parquet(tmp_path / PER_USER)
        judged = in_slice(Reports(reports.candidate, Report(tmp_path, reports.baseline.content)), "warm", "low")
        assert judged.note.startswith("not paired: ") and why in judged.note
        assert judged.figure == difference(*estimates)["low"]
    rows.with_columns(targets=pl.col("targets") + 1).write_parquet(tmp_path / PER_USER)
    with pytest.raises(DataError, match="are not about the same users: targets differs"):
        in_slice(Reports(reports.candidate, Report(tmp_path, reports.baseline.content)), "warm", "low")


@pytest.mark.parametrize("words", [[], ["Repeats count."]])
def test_a_judgement_names_a_protocol_that_is_not_the_usual_one(words: list[str]) -> None:
    own = made({"FR": part(0.3, 0.01)})
    own.content["protocol_options"]["words"] = words
    rule = SliceRule(metric="recall@20", bound="value", at_least=0, groups=("country",))
    (judged,) = gate._judgements(Rules(slices=(rule,)), gate.Opened(Mock(), "digest", own), None)
    assert judged.passed and judged.note == "".join(words)


def test_slices_that_cannot_be_judged_are_no_pass() -> None:
    country = {"FR": part(0.3, 0.01), "hits": part(0.3, 0.01, group="popularity")}
    rule = SliceRule(metric="recall@20", relative="difference", bound="value", at_least=0, groups=("country",))
    own = made(country)
    with pytest.raises(DataError, match="no slices by colour; it has country, new_items, popularity"):
        list(Reports(own, own).judge_slices(rule.model_copy(update={"groups": ("colour",)})))
    with pytest.raises(DataError, match="the slice 'FR' has no ndcg@20 of index"):
        list(Reports(own, own).judge_slices(rule.model_copy(update={"metric": "ndcg@20"})))
    with pytest.raises(DataError, match="no slice has ndcg@20"):
        list(Reports(own, own).judge_slices(rule.model_copy(update={"metric": "ndcg@20", "groups": None})))
    others = made({"DE": part(0.3, 0.01)}, path=Path("before"))
    with pytest.raises(DataError, match="made: has no slice 'DE', but the baseline's report has; report both with"):
        list(Reports(own, others).judge_slices(rule))
    # One that is too small is not judged in the candidate either.
    others = made({"DE": part(0.3, 0.01, users=2)})
    with pytest.raises(DataError, match="has no slice 'FR' of the same users"):
        list(Reports(own, others).judge_slices(rule))
    for other in (part(0.3, 0.01, users=499), part(0.3, 0.01) | {"targets": 999}):
        with pytest.raises(DataError, match="has no slice 'FR' of the same users and targets"):
            list(Reports(own, made({"FR": other})).judge_slices(rule))


@pytest.mark.parametrize("refitted", [0, 1])
def test_a_model_trained_on_validation_events_too_is_named_as_the_reason(
    dataset: Path, tmp_path: Path, refitted: int
) -> None:
    """Validation events of users and items without a training event make another warm, new and known of a refit."""
    lists = taken()
    late, fresh = range(60), lists["valid"][0][0]
    for split in ("train", "test"):
        rows = [[item for item in row if item != fresh] for row in lists[split]]
        lines = [str(user) if split == "train" and user in late else " ".join(map(str, [user, *rows[user]]))
                 for user in range(USERS)]  # fmt: skip
        (tmp_path / f"{split}.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "valid.txt").write_text((dataset.with_name("dataset-lists") / "valid.txt").read_text())
    prepare.run(DataConfig(), tmp_path, tmp_path / "dataset", format="lightgcn")
    both = [
        reported(tmp_path / str(place), tmp_path / "dataset", GOOD, training={"refit": place == refitted})
        for place in range(2)
    ]
    given = {"metric": "recall@5", "relative": "difference", "bound": "value", "at_least": -1, "least_users": 10}
    reason = (
        r"one model was trained on validation events, too \(data\.refit\); leave out the groups training, items and "
    )
    rule = SliceRule(**given)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=f"{reason}new_items: name activity, popularity"):
        list(Reports(*both).judge_slices(rule))
    kept = SliceRule(**given, groups=("activity", "popularity"))  # type: ignore[arg-type]
    assert all(each.passed for each in Reports(*both).judge_slices(kept))


def test_findings_by_name_or_all_of_them() -> None:
    hub = {"name": "hub", "text": "one item is everywhere", "value": 0.7, "limit": 0.5}
    found = Reports(made({}, [hub]), None)
    for clean, passed in ((["all"], False), (["hub", "item norms"], False), (["item norms"], True)):
        (judged,) = found.judge_findings(FindingsRule(clean=tuple(clean)))
        assert judged.passed == passed
        assert (judged.figure, judged.note) == ((None, "") if passed else (0.7, "one item is everywhere"))
    (clean,) = Reports(made({}), None).judge_findings(FindingsRule(clean=("all",)))
    assert clean.passed


@pytest.mark.parametrize(
    ("clean", "worse"), [("hub", "one list for all"), ("ties at the last place", "constant scores")]
)
def test_a_finding_that_is_named_covers_the_worse_one_that_takes_its_place(clean: str, worse: str) -> None:
    found = Reports(made({}, [{"name": worse, "text": "", "value": 1.0}]), None)
    (judged,) = found.judge_findings(FindingsRule(clean=(clean,)))
    assert (judged.rule, judged.passed) == (f"finding: {worse}", False)


@pytest.mark.parametrize(
    ("ahead", "note"),
    [
        ([], ""),
        (["candidate.pairs: cooccurrence", "query.history"], "candidate.pairs: cooccurrence; query.history"),
        (None, "the bundle has no recipe, which would tell"),
    ],
)
def test_features_that_look_ahead_are_refused_by_name_alone(ahead: list[str] | None, note: str) -> None:
    report = made({})
    report.content["looks_ahead"] = ahead
    (judged,) = Reports(report, None).judge_findings(FindingsRule(clean=("looks ahead",)))
    assert (judged.passed, judged.note) == (not note, note)
    (judged,) = Reports(report, None).judge_findings(FindingsRule(clean=("all",)))
    assert judged.passed


def test_a_leak_of_any_column_has_one_name() -> None:
    leaks = [{"name": f"{column} names the target", "text": "", "value": 0.9} for column in ("users.a", "items.b")]
    found = Reports(made({}, leaks), None)
    judged = list(found.judge_findings(FindingsRule(clean=("names the target",))))
    assert [(each.rule, each.passed) for each in judged] == [
        ("finding: users.a names the target", False),
        ("finding: items.b names the target", False),
    ]
    (clean,) = found.judge_findings(FindingsRule(clean=("test events in training", "ties at the last place")))
    assert clean.passed


def test_reports_of_other_data_or_another_protocol_are_not_compared() -> None:
    one = made({})
    for change, told in (
        ({"dataset": {"fingerprint": "g"}}, "data set g"),
        ({"protocol": "q"}, "protocol q"),
        ({"protocol_options": {"words": ["Repeats count."]}}, r"protocol p Repeats count\."),
        ({"ks": [20, 1_000]}, "longest list 1000"),
    ):
        other = Report(Path("other"), {**one.content, **change})
        with pytest.raises(DataError, match=f"other: of the {told}, but made is of"):
            Reports(one, other)


def test_a_candidate_whose_prior_knows_the_test_is_not_judged_beside_one_that_does_not() -> None:
    finding = {"name": "prior of the test's time", "text": "it knows the test", "value": 2.0}
    knows, more, other = (
        gate.Opened(Mock(), "digest", made({"FR": part(0.3, 0.01)}, found, Path(name)))
        for name, found in (("knows", [finding]), ("more", [finding | {"text": "it knows more"}]), ("other", []))
    )
    rule = SliceRule(metric="recall@20", bound="value", at_least=0, groups=("country",))
    assert [each.passed for each in gate._judgements(Rules(slices=(rule,)), knows, other)] == [True]
    relative = Rules(slices=(rule.model_copy(update={"relative": "difference"}),))
    with pytest.raises(DataError, match=r"^knows: it knows the test, and other has no such finding; compare it as"):
        list(gate._judgements(relative, knows, other))
    for own, before, told in ((other, knows, True), (knows, knows, False), (other, other, False)):
        (judged,) = gate._judgements(relative, own, before)
        assert judged.passed and judged.note.endswith("; knows: it knows the test") == told
    (judged,) = gate._judgements(relative, more, knows)
    assert judged.passed and judged.note.endswith("; more: it knows more; knows: it knows the test")


@pytest.mark.parametrize("unjudged", ["pass", "refuse"])
@pytest.mark.parametrize("group", ["new_items", "items", "item age"])
def test_a_group_without_targets_is_not_judged(group: str, unjudged: Any) -> None:
    rule = SliceRule(metric="recall@20", bound="low", at_least=0.05, groups=(group,), unjudged=unjudged)
    report = Reports(made({"FR": part(0.3, 0.01)}), None)
    judged = next(iter(report.judge_slices(rule)))
    assert (judged.passed, judged.note) == (unjudged == "pass", "not judged: no slice has at least 100 users")
    missing, *others = report.judge_slices(rule.model_copy(update={"groups": (group, "country")}))
    assert (missing.rule, missing.passed) == (f"recall@20 of index, {group} slices", unjudged == "pass")
    found, *empty = sorted(others, key=lambda each: each.figure is None)
    assert found.passed and found.figure == pytest.approx(0.29)
    # Of these groups only new items have a slice without users.
    assert [each.note for each in empty] == ["not judged: 0 users, fewer than 100"] * (group == "new_items")
