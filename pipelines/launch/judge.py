"""Judges the figures of a candidate's report, beside the baseline's, by the rules."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.bundles.blessing import Judgement
from pipelines.console import amount
from pipelines.errors import DataError
from pipelines.evaluation.findings import LATER_PRIOR
from pipelines.evaluation.report_json import REPORT, finding, protocol_of, read_report
from pipelines.evaluation.slices import SOMETIMES
from pipelines.launch.rules import LOOK_AHEAD, OF_ALL_LISTS, FigureRule, FindingsRule, SliceRule
from pipelines.launch.sides import UnpairedError, paired_values, refuse_other_prior, same_slices
from pipelines.launch.significance import difference
from pipelines.rankers.bootstrap import Estimate, bootstrap

OF_SIMILARITY = "[index], [latency] and [agreement]"
PAIRED = "paired by user"
BOUNDS = {"value": "", "low": ", lower bound", "high": ", upper bound"}


@dataclass(frozen=True)
class Report:
    """A report of the bundle that it is about.

    Attributes:
        path: its directory.
        content: of `report.json`.
    """

    path: Path
    content: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, bundle: Path, digest: str) -> "Report":
        """Reads a report.

        Args:
            path: its directory.
            bundle: the bundle.
            digest: of that bundle.

        Raises:
            DataError: it was altered, or is of another bundle, or of the bundle before it changed, or about items.
        """
        content = read_report(path)
        if content["bundle"]["digest"] != digest:
            raise DataError(
                f"{path / REPORT}: is of the bundle {content['bundle']['digest'][:12]}, but {bundle} is {digest[:12]}; "
                "run `towers report` on it as it is now"
            )
        if content.get("task") == "similarity":
            raise DataError(
                f"{path / REPORT}: of task = 'similarity'; such a bundle is judged by {OF_SIMILARITY} alone"
            )
        return cls(path, content)

    @property
    def dataset(self) -> str:
        """The fingerprint of the data set."""
        return str(self.content["dataset"]["fingerprint"])


@dataclass(frozen=True)
class Reports:
    """The report of the candidate and that of the baseline, if there is one, with the same users and targets.

    Raises:
        DataError: they are of different data sets or protocols.
    """

    candidate: Report
    baseline: Report | None

    def __post_init__(self) -> None:
        if self.baseline is None:
            return
        for key, one, two in (
            ("data set", self.candidate.dataset, self.baseline.dataset),
            ("protocol", protocol_of(self.candidate.content), protocol_of(self.baseline.content)),
            ("numbers of users and targets", _counts(self.candidate), _counts(self.baseline)),
            # An index is asked once, for the longest list, and looks at more candidates for a longer one.
            ("longest list", max(self.candidate.content["ks"]), max(self.baseline.content["ks"])),
        ):
            if one != two:
                raise DataError(
                    f"{self.baseline.path}: of the {key} {two}, but {self.candidate.path} is of {one}; "
                    "a difference needs both reports on the same"
                )

    def baseline_prior(self) -> str:
        """Names priors that may count test events, unless they do alike; DataError where the candidate's alone may."""
        if self.baseline is None:
            return ""
        later, other = (finding(each.content, LATER_PRIOR) for each in (self.candidate, self.baseline))
        if later:
            refuse_other_prior(self.candidate.path, later, self.baseline.path, other)
        told = {self.candidate.path: later, self.baseline.path: other} if later != other else {}
        return "; ".join(f"{path}: {each}" for path, each in told.items() if each)

    def judge_metric(self, rule: FigureRule) -> Judgement:
        """Judges one figure over all test users.

        Raises:
            DataError: a report lacks the figure, or a ratio has no divisor.
        """
        own = _figure(self.candidate, rule)
        if rule.relative is None or self.baseline is None:
            return _judgement(rule, own, f"{rule.metric} of {rule.ranker}")
        other = _figure(self.baseline, rule)
        note = PAIRED if rule.of_users else "not paired: of all lists"
        if rule.of_users:
            compared = self._paired(rule)
        elif rule.relative == "difference":
            compared = difference(own, other)
        else:
            compared = {"value": own["value"] / other["value"]} if other["value"] else None
        if compared is None:
            raise DataError(f"{self.baseline.path}: {rule.metric} of {rule.ranker} is or may be 0: no ratio to it")
        return _judgement(rule, compared, f"{rule.metric} of {rule.ranker}", note)

    def judge_slices(self, rule: SliceRule) -> Iterator[Judgement]:
        """Judges a figure of every slice of a rule; small ones are only listed; of a group of such, `unjudged` decides.

        Raises:
            DataError: there is no such group, none of its slices has the figure, or the baseline's differ.
        """
        found = _slices(self.candidate, rule)
        others = {} if rule.relative is None or self.baseline is None else _slices(self.baseline, rule)
        for name, part in others.items():
            if name not in found and part["users"] >= rule.least_users:
                raise DataError(
                    f"{self.candidate.path}: has no slice {name!r}, but the baseline's report has; "
                    f"{same_slices(part['group'], self.candidate.content)}"
                )
        judged = {part["group"] for part in found.values() if part["users"] >= rule.least_users}
        empty = [group for group in rule.groups or () if group not in judged]
        if not judged and rule.groups is None:
            empty = ["all"]
        if empty:
            yield Judgement(
                rule=f"{rule.metric} of {rule.ranker}, {', '.join(empty)} slices",
                figure=None,
                limit=rule.text,
                passed=rule.unjudged == "pass",
                note=f"not judged: no slice has at least {amount(rule.least_users, 'users')}",
            )
        for name, part in found.items():
            told = f"{rule.metric} of {rule.ranker}, {name}"
            if part["users"] < rule.least_users:
                yield Judgement(
                    rule=told,
                    figure=None,
                    limit=rule.text,
                    passed=True,
                    note=f"not judged: {amount(part['users'], 'users')}, fewer than {rule.least_users:,}",
                )
                continue
            estimate, note = part["metrics"][rule.ranker][rule.metric], ""
            if rule.relative is not None and self.baseline is not None:
                other = others.get(name)
                if other is None or (other["users"], other["targets"]) != (part["users"], part["targets"]):
                    raise DataError(
                        f"{self.baseline.path}: has no slice {name!r} of the same users and targets as "
                        f"{self.candidate.path}; {same_slices(part['group'], self.candidate.content)}"
                    )
                before = other["metrics"][rule.ranker][rule.metric]
                estimate, note = self._difference(rule, name, estimate, before)
            yield _judgement(rule, estimate, told, note)

    def judge_findings(self, rule: FindingsRule) -> Iterator[Judgement]:
        """Judges that the candidate's report has none of the findings: one judgement for each that it has."""
        content = self.candidate.content
        found = [
            (each["name"], each["value"], each["text"]) for each in content["findings"] if rule.covers(each["name"])
        ]
        if LOOK_AHEAD in rule.clean:
            ahead = content["looks_ahead"]
            text = "the bundle has no recipe, which would tell" if ahead is None else "; ".join(ahead)
            found += [(LOOK_AHEAD, None, text)] if text else []
        for name, figure, text in found:
            yield Judgement(rule=f"finding: {name}", figure=figure, limit="none", passed=False, note=text)
        if not found:
            yield Judgement(rule=f"findings: {', '.join(rule.clean)}", figure=None, limit="none", passed=True)

    def _paired(self, rule: FigureRule, part: str | None = None) -> Estimate | None:
        """The figure beside the baseline's, paired by user; see `paired_values`."""
        assert self.baseline is not None
        values = paired_values((self.candidate.path, self.baseline.path), rule.ranker, rule.metric, part)
        drawn = bootstrap(values, ("candidate", "baseline"))
        compare = drawn.ratio if rule.relative == "ratio" else drawn.difference
        return compare("candidate", "baseline")

    def _difference(self, rule: SliceRule, name: str, one: Estimate, other: Estimate) -> tuple[Estimate, str]:
        """The difference in a slice, paired if it can be, and a note that says which."""
        try:
            paired = self._paired(rule, name)
        except UnpairedError as error:
            return difference(one, other), f"not paired: {error}"
        assert paired is not None  # as a ratio may be
        return paired, PAIRED


def _judgement(rule: FigureRule, estimate: Mapping[str, float], what: str, note: str = "") -> Judgement:
    relative = {None: "", "difference": " minus the baseline's", "ratio": " over the baseline's"}[rule.relative]
    return rule.judge(f"{what}{relative}{BOUNDS[rule.bound]}", estimate[rule.bound], note)


def _figure(report: Report, rule: FigureRule) -> Estimate:
    key = "metrics" if rule.of_users else OF_ALL_LISTS[rule.metric.partition("@")[0]]
    figure = report.content[key][rule.ranker].get(rule.metric)
    if figure is None and rule.metric in report.content[key][rule.ranker]:
        raise DataError(f"{report.path / REPORT}: {rule.metric} of {rule.ranker} is undefined in this report")
    if figure is None:
        ks = ", ".join(map(str, report.content["ks"]))
        raise DataError(f"{report.path / REPORT}: has no {rule.metric} of {rule.ranker}; it has lists of {ks}")
    if isinstance(figure, dict):
        return figure
    if rule.bound != "value":
        raise DataError(
            f"{report.path / REPORT}: of an earlier release, {rule.metric} has no interval; run `towers report` again"
        )
    return dict.fromkeys(("value", "low", "high"), figure)


def _counts(report: Report) -> str:
    counts = report.content.get("counts", {})  # one of an earlier release may lack them
    return f"{counts.get('users')} and {counts.get('targets')}"


def _slices(report: Report, rule: SliceRule) -> dict[str, Any]:
    """The slices of a rule by name; where it names no groups, those that have its figure."""
    every = {**report.content["slices"], "new_items": report.content["new_items"]}
    if unknown := set(rule.groups or ()) - {*SOMETIMES, *(part["group"] for part in every.values())}:
        groups = ", ".join(sorted({part["group"] for part in every.values()}))
        raise DataError(f"{report.path / REPORT}: has no slices by {', '.join(sorted(unknown))}; it has {groups}")
    found = {name: part for name, part in every.items() if rule.groups is None or part["group"] in rule.groups}
    # A slice without users has no figures at all; one of targets has recall only.
    has = {
        name: part
        for name, part in found.items()
        if not part["users"] or rule.metric in part["metrics"].get(rule.ranker, {})
    }
    if lacking := [name for name in found if name not in has and rule.groups is not None]:
        raise DataError(f"{report.path / REPORT}: the slice {lacking[0]!r} has no {rule.metric} of {rule.ranker}")
    if rule.groups is None and not any(part["users"] for part in has.values()):
        raise DataError(f"{report.path / REPORT}: no slice has {rule.metric} of {rule.ranker}")
    return has
