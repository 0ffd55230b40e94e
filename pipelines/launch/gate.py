"""`towers gate`: judges whether a bundle may go live, by rules from a file, and blesses it if it may.

The figures are those of `towers report`, and of searches that are made and timed here. Each rule is printed with its
figure and limit. A bundle that passes gets `NAME.blessing.json` beside it; one that does not loses an earlier one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pipelines.bundles import requirement
from pipelines.bundles.blessing import Blessing, Judgement, blessing_path, evidence, write_blessing
from pipelines.console import amount, phase, phases, printable, say
from pipelines.errors import DataError, GateError
from pipelines.evaluation.report_json import FILES, REPORT
from pipelines.launch import tracking
from pipelines.launch.judge import OF_SIMILARITY, Report, Reports
from pipelines.launch.records.outputs import of_gate
from pipelines.launch.rules import Rules, read_rules
from pipelines.launch.searches import judge_agreement, judge_index, judge_latency
from pipelines.service.verify import PROBE, VERIFY, probed, verify
from serving.bundle.arrays import CANDIDATE_TOWER, QUERY_TOWER, QUERY_VECTORS
from serving.bundle.digest import bundle_digest
from serving.bundle.manifest import Manifest, read_manifest
from serving.recall.loading import open_recaller
from serving.recall.recaller import Recaller

JUDGE = "judge"
MOST_DECIMALS = 17
MODEL = (f"{QUERY_TOWER}/", f"{CANDIDATE_TOWER}/", QUERY_VECTORS)
# TensorFlow writes them in another order each time, also when `towers forget` saves the same tower of two bundles.
GRAPH = ("/saved_model.pb", "/fingerprint.pb")


@dataclass(frozen=True)
class Opened:
    """A bundle with its digest, and its report if one is given."""

    recaller: Recaller
    digest: str
    report: Report | None

    @property
    def manifest(self) -> Manifest:
        """Of the bundle."""
        return self.recaller.bundle.manifest


def run(
    rules: Path,
    candidate: Path,
    *,
    baseline: Path | None = None,
    report: Path | None = None,
    baseline_report: Path | None = None,
    track: tracking.Tracker | None = None,
) -> Blessing:
    """Judges a bundle.

    Args:
        rules: the file of rules.
        candidate: the bundle.
        baseline: the bundle that it would replace; a candidate with its model is judged as a renewal.
        report: the candidate's report.
        baseline_report: the baseline's report.
        track: a tracker that gets the judgements, passed or not, besides TensorBoard.

    Returns:
        The blessing, as it was written.

    Raises:
        GateError: the bundle breaks a rule.
        DataError: the rules are wrong, or need a bundle, a report or a figure that is not there.
        BundleError: a bundle is damaged, or fails a real search.
    """
    tracking.refuse_unready(track)
    file, digest = read_rules(rules)
    if baseline is None and baseline_report is not None:
        raise DataError("--baseline-report needs --baseline, the bundle that it is of")
    phases("gate", VERIFY, PROBE, JUDGE)
    # The digests first, also those of the reports: what changes meanwhile has others, and voids the blessing.
    new, old = bundle_digest(candidate), None if baseline is None else bundle_digest(baseline)
    if new == old:
        raise DataError(f"{candidate} and --baseline {baseline} are the same bundle, {new[:12]}")
    own = Report.read(report, candidate, new) if report else None
    its = Report.read(baseline_report, baseline, old) if baseline_report and baseline and old else None
    tables = [each.path / name for each in (own, its) if each is not None for name in (REPORT, *each.content[FILES])]
    files = evidence(candidate, [rules, *tables])
    model, replaced = read_manifest(candidate), None if baseline is None else read_manifest(baseline)
    renewal = file.renewal is not None and replaced is not None and model_of(model) == model_of(replaced)
    needed = file.renewal if renewal and file.renewal is not None else file
    section = f"{rules}: renewal" if renewal else str(rules)
    if needed.of_report and model.is_similarity:
        raise DataError(
            f"{section}: judges figures of a report, but {candidate} is of task = 'similarity'; "
            f"such a bundle is judged by {OF_SIMILARITY} alone"
        )
    _refuse_missing(needed, section, own, baseline, its)
    verify(*filter(None, (candidate, baseline)))
    judged = Opened(probed(candidate), new, own)
    before = Opened(open_recaller(baseline, verify=False, tower=False), old, its) if baseline and old else None
    with phase(JUDGE):
        judgements = tuple(_judgements(needed, judged, before))
    _show(judgements)
    blessing = Blessing(
        created_at=datetime.now(UTC),
        candidate=new,
        baseline=old,
        dataset=None if judged.report is None else judged.report.dataset,
        rules=digest,
        section="renewal" if renewal else "new model",
        files=files,
        judgements=judgements,
    )
    path = blessing_path(candidate)
    failed, earlier = [each for each in judgements if not each.passed], path.exists()
    if failed:
        path.unlink(missing_ok=True)
    else:
        write_blessing(blessing, candidate)
    tracking.tell(of_gate(blessing.model_dump(mode="json"), path), track)
    if failed:
        gone = f"; its earlier blessing is removed: {path}" if earlier else ""
        every = amount(len(judgements), "judgements")
        raise GateError(f"{candidate}: refused by {len(failed)} of {every} of {rules}{gone}")
    say(f"blessed as a {blessing.section}: {candidate}; {path}")
    return blessing


def require(rules: Path, root: Path) -> None:
    """Makes a root activate only bundles that these rules have blessed.

    Raises:
        DataError: the rules are wrong, or in the place of the root's `gate.toml`.
        BundleError: there is no such root.
    """
    requirement.refuse_own_file(rules, root)
    _, digest = read_rules(rules)
    requirement.require(root, digest, rules.name)


def model_of(manifest: Manifest) -> dict[str, str]:
    """What training made: the digests of the towers' weights and vocabularies and of the users' vectors, and their
    width, to which `towers export` may have cut them."""
    files = {name: info.sha256 for name, info in manifest.files.items() if name.startswith(MODEL)}
    return {name: each for name, each in files.items() if not name.endswith(GRAPH)} | {"": str(manifest.dimension)}


def _refuse_missing(rules: Rules, section: str, own: Report | None, baseline: Path | None, its: Report | None) -> None:
    """Refuses arguments that lack what the rules need, before the long work."""
    if (rules.of_both_reports or rules.agreement) and baseline is None:
        raise DataError(
            f"{section}: compares with a baseline; give --baseline, the bundle that answers now, or for a first bundle "
            "rules without `relative` and [agreement]"
        )
    if rules.of_report and own is None:
        raise DataError(f"{section}: judges figures of a report; give --report, of `towers report`")
    if rules.of_both_reports and its is None:
        raise DataError(f"{section}: judges differences to the baseline; give --baseline-report, of `towers report`")


def _judgements(rules: Rules, judged: Opened, before: Opened | None) -> Iterator[Judgement]:
    if judged.report is not None:
        reports = Reports(judged.report, None if before is None else before.report)
        # Rules know no protocol, so who reads a judgement must see one that is not the usual.
        words = "; ".join(judged.report.content.get("protocol_options", {}).get("words", ()))
        prior = reports.baseline_prior() if rules.of_both_reports else ""
        of_slices = (judgement for rule in rules.slices for judgement in reports.judge_slices(rule))
        for each in (*map(reports.judge_metric, rules.metrics), *of_slices):
            yield each.model_copy(update={"note": "; ".join(filter(None, (each.note, words, prior)))})
        if rules.findings is not None:
            yield from reports.judge_findings(rules.findings)
    if rules.index is not None:
        yield judge_index(judged.recaller, rules.index)
    if rules.latency is not None:
        yield from judge_latency(judged.recaller, rules.latency)
    if rules.agreement is not None and before is not None:
        yield judge_agreement(judged.recaller, before.recaller, rules.agreement)


def _show(judgements: tuple[Judgement, ...]) -> None:
    for each in judgements:
        figure = "" if each.figure is None else f"{_shown(each.figure, each)}, must be "
        note = f" ({each.note})" if each.note else ""
        # A rule of a slice quotes a value of the data.
        line = printable(f"{'passed' if each.passed else 'refused':<8} {each.rule}: {figure}{each.limit}{note}")
        print(line)  # noqa: T201


def _shown(figure: float, judged: Judgement) -> str:
    """A figure with four decimals, or as many as it takes to be on its own side of the limit."""
    side, _, limit = judged.limit.rpartition(" ")
    for decimals in range(4, MOST_DECIMALS + 1):
        rounded = float(f"{figure:.{decimals}f}")
        if not side or judged.passed == (rounded >= float(limit) if side == "at least" else rounded <= float(limit)):
            break
    return f"{figure:,.{decimals}f}"
