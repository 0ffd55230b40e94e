"""The gate from the command line: what it blesses, what voids a blessing, and what a root with a gate activates."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipelines.bundles import fold, renew
from pipelines.bundles.blessing import blessing_path, valid_blessing
from pipelines.cli import app
from pipelines.console import towers
from pipelines.errors import GateError
from pipelines.evaluation import report
from pipelines.evaluation.report_json import read_report, write_report
from pipelines.launch import gate, tracking
from pipelines.launch.records.record import Record
from pipelines.launch.rules import Limit
from pipelines.service import verify
from serving.bundle.manifest import PriorInfo
from serving.bundle.versions import Versions
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.files.lock import exclusive
from serving.recall.loading import open_recaller
from tests.support.worlds.launch import ITEMS, KS, write_dataset, write_model

RULES = """
[[metrics]]
metric = "recall@5"
bound = "low"
at_least = {least}

[[metrics]]
metric = "recall@5"
relative = "difference"
bound = "low"
at_least = 0.0

[[slices]]
metric = "recall@10"
relative = "difference"
bound = "high"
at_least = -0.01
groups = ["training", "activity"]

[index]
k = 10
at_least = 0.99

[renewal.agreement]
k = 10
at_least = 0.5
"""
OLD, NEW, WORSE = "old", "new", "worse"
NOISE = {OLD: 3.0, NEW: 1.0, WORSE: 9.0}


class Root:
    """A root of three bundles with their reports and the rules; commands in this process."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self.root, self.patch, self.capture = root, patch, capture
        self.rules = root / "rules.toml"

    def __call__(self, *words: str) -> tuple[int, str]:
        """Exit code and all that `towers` prints."""
        self.patch.setattr(sys, "argv", ["towers", *words])
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main()
        said = self.capture.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out + said.err

    def bundles(self, *words: str) -> tuple[int, str]:
        return self("bundles", *words, "--root", str(self.root))

    def gate(
        self, name: str = NEW, baseline: str | None = OLD, reports: bool = True, track: str | None = None
    ) -> tuple[int, str]:
        words = ["gate", str(self.rules), "--candidate", str(self.root / name)]
        words += ["--track", track] if track else []
        words += ["--report", str(self.root / f"{name}.report")] if reports else []
        if baseline is not None:
            words += ["--baseline", str(self.root / baseline)]
            words += ["--baseline-report", str(self.root / f"{baseline}.report")] if reports else []
        return self(*words)

    def active(self) -> str:
        return Versions(self.root).read().active

    def log(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in (self.root / "gate.log").read_text(encoding="utf-8").split("\n") if line]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gate")
    dataset = write_dataset(folder / "dataset")
    root = folder / "root"
    root.mkdir()
    for name, noise in NOISE.items():
        write_model(root / name, dataset, noise)
        report.run(root / name, dataset, root / f"{name}.report", ks=KS, maps=[])
    return root


@pytest.fixture
def root(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Root:
    """The root with its gate, of which `old` is active; no bundle has towers, so none are tried."""
    shutil.copytree(world, tmp_path / "root")
    monkeypatch.setattr(verify, "open_probed", partial(open_recaller, tower=False))
    made = Root(tmp_path / "root", monkeypatch, capsys)
    made.rules.write_text(RULES.format(least=0.1), encoding="utf-8")
    assert made.bundles("activate", OLD)[0] == 0
    assert made.bundles("gate", str(made.rules))[0] == 0
    return made


def test_a_better_bundle_is_blessed_and_activated(root: Root) -> None:
    code, said = root.bundles("activate", NEW)
    assert code == 3 and "new: has no blessing, new.blessing.json; `towers gate` judges it" in said
    code, said = root.gate()
    assert code == 0 and "blessed as a new model" in said and "refused" not in said
    phases = ["verify", "probe", "judge"]
    begun = [
        line.split(": ")[0] for line in said.splitlines() if line.startswith(tuple(f"{each}: " for each in phases))
    ]
    assert "gate: verify, probe, judge" in said.splitlines() and begun == phases
    blessing = json.loads((root.root / "new.blessing.json").read_text())
    manifests = {name: json.loads((root.root / name / "manifest.json").read_text()) for name in (OLD, NEW)}
    assert (blessing["candidate"], blessing["baseline"]) == (manifests[NEW]["digest"], manifests[OLD]["digest"])
    assert blessing["dataset"] == manifests[NEW]["lineage"]["dataset"]
    tables = [f"{name}.report/{file}" for name in (NEW, OLD) for file in ("report.json", "per_user.parquet")]
    assert set(blessing["files"]) == {"rules.toml", *tables}
    told = {each["rule"]: (each["limit"], each["passed"]) for each in blessing["judgements"]}
    assert told["recall@5 of index, lower bound"] == ("at least 0.1", True)
    assert told["recall@5 of index minus the baseline's, lower bound"] == ("at least 0", True)
    notes = {each["note"] for each in blessing["judgements"] if "minus the baseline's" in each["rule"]}
    assert notes == {"paired by user"} and said.count("(paired by user)") >= 3
    assert root.bundles("canary", NEW, "--share", "0.1")[0] == 0
    assert root.bundles("activate", NEW)[0] == 0 and root.active() == NEW
    # What answers already may be opened again, and what answered before needs no blessing.
    assert root.bundles("activate", NEW)[0] == 0
    assert root.bundles("rollback")[0] == 0 and root.active() == OLD


def test_every_refused_rule_is_printed_and_an_earlier_blessing_is_gone(root: Root) -> None:
    assert root.gate()[0] == 0
    root.rules.write_text(RULES.format(least=0.99), encoding="utf-8")
    code, said = root.gate()
    assert code == 3 and "refused by 1 of" in said and "its earlier blessing is removed" in said
    assert not (root.root / "new.blessing.json").exists()
    code, said = root.gate(WORSE)
    rows = [line for line in said.splitlines() if line.startswith("refused ")]
    assert code == 3 and f"refused by {len(rows)} of" in said and len(rows) >= 3
    lower = (
        r"refused  recall@5 of index minus the baseline's, lower bound: -0\.\d+, must be at least 0 \(paired by user\)"
    )
    assert any(re.fullmatch(lower, row) for row in rows)
    for words in (["activate", WORSE], ["canary", WORSE, "--share", "0.5"]):
        assert root.bundles(*words)[0] == 3
    assert root.active() == OLD and Versions(root.root).read().canary is None


def board(root: Root, name: str) -> dict[str, float]:
    """The figures of the judgements of a bundle in TensorBoard's files."""
    (file,) = (root.root / f"{name}.blessing.tensorboard").glob("events.out.tfevents.*")
    events = EventAccumulator(str(file), size_guidance={"tensors": 0}).Reload()
    values = {tag: tf.make_ndarray(events.Tensors(tag)[0].tensor_proto) for tag in events.Tags()["tensors"]}
    return {tag: float(value) for tag, value in values.items() if value.dtype == np.float32}


def test_a_gate_is_tracked_whether_it_passes_or_refuses(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = root.gate()
    judgements = json.loads((root.root / "new.blessing.json").read_text())["judgements"]
    expected = {f"rules/{each['rule']}/passed": 1.0 for each in judgements}
    expected |= {f"rules/{each['rule']}/figure": each["figure"] for each in judgements if each["figure"] is not None}
    assert code == 0 and board(root, NEW) == pytest.approx(expected, rel=1e-6)
    assert said.splitlines()[-1] == f"next: {towers()} bundles activate new --root {root.root}"
    code, said = root.gate(WORSE)
    told = board(root, WORSE)
    refused = [tag for tag, value in told.items() if tag.endswith("/passed") and value == 0.0]
    assert code == 3 and f"refused by {len(refused)} of {len(judgements)} judgements" in said and len(refused) >= 3
    # A tracker that does not answer changes no verdict; of what the gate left it says how to tell it later.
    monkeypatch.setenv(tracking.URI, "http://tracker.invalid")

    def down(record: Record) -> None:
        raise ConnectionError(f"no tracker for {record.params['verdict']}")

    monkeypatch.setattr(tracking, "write_mlflow", down)
    monkeypatch.setattr(tracking, "find_spec", lambda name: name)
    for name, expected_code, then in (
        (NEW, 0, f"then: towers track --gate {root.root / 'new.blessing.json'} --track mlflow"),
        (WORSE, 3, "no tracker for refused; fix it, then judge again"),
    ):
        code, said = root.gate(name, track="mlflow")
        assert code == expected_code and then in said, said


def flip(path: Path, place: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    path.write_bytes(bytes(content))


def other_rules(root: Root) -> None:
    other = root.root / "other.toml"
    other.write_text(RULES.format(least=0.2), encoding="utf-8")
    assert root.bundles("gate", str(other))[0] == 0


def other_baseline(root: Root) -> None:
    assert root.bundles("activate", WORSE, "--override", "an accident")[0] == 0


VOIDS: dict[str, tuple[Callable[[Root], object], int, str]] = {
    "rules": (lambda root: flip(root.rules), 3, "rules.toml: changed since the blessing"),
    "other rules": (other_rules, 3, "blessed by the rules"),
    "report": (lambda root: flip(root.root / "new.report" / "report.json"), 3, "report.json: changed since"),
    "users": (lambda root: flip(root.root / "new.report" / "per_user.parquet"), 3, "per_user.parquet: changed since"),
    "baseline's report": (lambda root: flip(root.root / "old.report" / "report.json"), 3, "report.json: changed since"),
    "no report": (lambda root: shutil.rmtree(root.root / "old.report"), 3, "report.json: missing"),
    "vectors": (lambda root: flip(root.root / NEW / "item_vectors.npy"), 2, "item_vectors.npy: altered"),
    "manifest": (lambda root: flip(root.root / NEW / "manifest.json"), 2, "manifest.json"),
    "blessing": (lambda root: flip(root.root / "new.blessing.json"), 3, "new.blessing.json: altered"),
    "another's blessing": (
        lambda root: (root.root / "new.blessing.json").rename(root.root / "worse.blessing.json"),
        3,
        "has no blessing",
    ),
    "other baseline": (other_baseline, 3, "but worse, "),
    "damaged baseline": (lambda root: flip(root.root / OLD / "manifest.json"), 3, "the active bundle, with which"),
    "damaged gate": (lambda root: flip(root.root / "gate.toml", 0), 2, "gate.toml: damaged"),
}


@pytest.mark.parametrize("what", VOIDS)
def test_what_changes_voids_the_blessing(what: str, root: Root) -> None:
    alter, expected, told = VOIDS[what]
    assert root.gate()[0] == 0
    alter(root)
    before = (root.root / "active.json").read_bytes()
    code, said = root.bundles("activate", NEW)
    assert (code, told in said) == (expected, True), said
    assert (root.root / "active.json").read_bytes() == before


def test_a_blessing_holds_for_no_other_content_under_its_name(root: Root) -> None:
    assert root.gate()[0] == 0
    shutil.rmtree(root.root / NEW)
    shutil.copytree(root.root / WORSE, root.root / NEW)
    code, said = root.bundles("activate", NEW)
    assert code == 3 and "new: changed since its blessing" in said


@pytest.fixture(scope="module")
def blessed(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = shutil.copytree(world / WORSE, tmp_path_factory.mktemp("blessed") / "bundle")
    rules = bundle.with_name("rules.toml")
    rules.write_text("[index]\nat_least = 0.5\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "open_probed", partial(open_recaller, tower=False))
        gate.run(rules, bundle)
    return bundle


@settings(max_examples=60)
@given(place=st.integers(0, 10**6), bits=st.integers(1, 255))
def test_any_altered_byte_of_a_blessing_voids_it_or_says_the_same(blessed: Path, place: int, bits: int) -> None:
    path = blessing_path(blessed)
    whole, said = path.read_bytes(), valid_blessing(blessed)
    altered = bytearray(whole)
    altered[place % len(whole)] ^= bits
    try:
        path.write_bytes(bytes(altered))
        with suppress(GateError):
            assert valid_blessing(blessed) == said
    finally:
        path.write_bytes(whole)


def test_what_was_altered_before_the_gate_is_no_evidence(root: Root) -> None:
    path = root.root / "new.report" / "report.json"
    content = json.loads(path.read_text())
    content["metrics"]["index"]["recall@5"]["low"] = 0.999
    path.write_text(json.dumps(content))
    code, said = root.gate()
    assert code == 2 and "report.json: altered: its digest is not that of its content" in said
    flip(root.root / "old.report" / "per_user.parquet")
    code, said = root.gate(WORSE)
    assert code == 2 and "per_user.parquet: altered since report.json was written" in said
    assert not list(root.root.glob("*.blessing.json"))


@pytest.mark.parametrize("name", [OLD, NEW])
def test_a_bundle_that_is_damaged_is_not_judged(root: Root, name: str) -> None:
    flip(root.root / name / "item_vectors.npy")
    code, said = root.gate()
    assert code == 2 and f"{name}/item_vectors.npy: altered: its SHA-256 is not the manifest" in said
    assert not list(root.root.glob("*.blessing.json"))


def test_a_report_of_another_bundle_or_data_set_is_no_evidence(root: Root, tmp_path: Path) -> None:
    shutil.rmtree(root.root / "new.report")
    shutil.copytree(root.root / "old.report", root.root / "new.report")
    code, said = root.gate()
    assert code == 2 and "is of the bundle" in said
    elsewhere = write_dataset(tmp_path / "elsewhere", seed=9)
    write_model(root.root / "stranger", elsewhere, 1.0)
    report.run(root.root / "stranger", elsewhere, root.root / "stranger.report", ks=KS, maps=[])
    code, said = root.gate("stranger")
    assert code == 2 and "of the data set" in said and "a difference needs both reports on the same" in said


def test_rules_ask_for_what_they_need(root: Root) -> None:
    for words, part in (
        ({"baseline": None}, "give --baseline, the bundle that answers now"),
        ({"reports": False}, "give --report, of `towers report`"),
        ({"name": OLD}, "are the same bundle"),
    ):
        code, said = root.gate(**words)  # type: ignore[arg-type]
        assert code == 2 and part in said, said
    words = ["--candidate", str(root.root / NEW), "--report", str(root.root / "new.report")]
    code, said = root("gate", str(root.rules), *words, "--baseline", str(root.root / OLD))
    assert code == 2 and "give --baseline-report" in said
    code, said = root("gate", str(root.rules), *words, "--baseline-report", str(root.root / "old.report"))
    assert code == 2 and "--baseline-report needs --baseline" in said
    # Before the bundles are read.
    flip(root.root / NEW / "item_vectors.npy")
    code, said = root.gate(baseline=None)
    assert code == 2 and "or for a first bundle rules without `relative` and [agreement]" in said, said


def test_an_override_answers_and_is_written_down(root: Root) -> None:
    code, said = root.bundles("activate", WORSE, "--override", "  ")
    assert code == 2 and "--override needs a reason" in said and root.active() == OLD
    assert root.bundles("canary", WORSE, "--share", "0.5", "--override", "a look")[0] == 0
    code, said = root.bundles("activate", WORSE, "--override", "the shop is down; ticket 7")
    assert code == 0 and "although the gate refuses it" in said and root.active() == WORSE
    first, *overrides = root.log()
    assert (first["action"], first["file"], [*first["answered"]]) == ("gate set", "rules.toml", [OLD])
    digest = json.loads((root.root / WORSE / "manifest.json").read_text())["digest"]
    assert [(each["action"], each["bundle"], each["reason"], each["digest"]) for each in overrides] == [
        ("canary by override", WORSE, "a look", digest),
        ("activate by override", WORSE, "the shop is down; ticket 7", digest),
    ]
    assert all(each["user"] and each["time"] and "has no blessing" in each["refused"] for each in overrides)


def test_an_override_opens_no_damaged_bundle_and_is_not_written_down_where_it_is_not_needed(root: Root) -> None:
    flip(root.root / WORSE / "item_vectors.npy")
    assert root.bundles("activate", WORSE, "--override", "now")[0] == 2 and root.active() == OLD
    assert root.gate()[0] == 0
    assert root.bundles("activate", NEW, "--override", "to be sure")[0] == 0 and root.active() == NEW
    assert [each["action"] for each in root.log()] == ["gate set", "activate"]


def test_a_rollback_goes_back_to_the_content_that_answered(root: Root) -> None:
    assert root.gate()[0] == 0 and root.bundles("activate", NEW)[0] == 0
    shutil.rmtree(root.root / OLD)
    shutil.copytree(root.root / WORSE, root.root / OLD)
    code, said = root.bundles("rollback")
    assert code == 3 and "old: never answered as it is now" in said and root.active() == NEW
    store = f"file://{root.root.parent}/elsewhere"
    words = ["bundles", "publish", str(root.root / OLD), "--root", store, "--override", "try it there"]
    assert root(*words)[0] == 0 and root.log()[-1]["action"] == "publish by override"
    assert root.bundles("rollback")[0] == 3  # it answered elsewhere, if at all
    reason = "new is down\u2028call the vendor"  # as a person pastes it: a line of its own to Python, none to JSON
    assert root.bundles("rollback", "--override", reason)[0] == 0 and root.active() == OLD
    last = root.log()[-1]
    digest = json.loads((root.root / WORSE / "manifest.json").read_text())["digest"]
    assert (last["action"], last["digest"], last["reason"]) == ("rollback by override", digest, reason)
    assert root.bundles("activate", NEW, "--override", "back")[0] == 0
    # By now it has answered; without the log nobody knows.
    with (root.root / "gate.log").open("a") as log:
        log.write('{"action": "cut o')
    assert root.bundles("rollback")[0] == 0
    # What came after it has a line of its own.
    told = [json.loads(line) for line in (root.root / "gate.log").read_text().split("\n")[-2:] if line]
    assert [each["action"] for each in told] == ["rollback"]
    assert root.bundles("activate", NEW, "--override", "once more")[0] == 0
    (root.root / "gate.log").unlink()
    assert root.bundles("rollback")[0] == 3


def test_a_rollback_goes_back_also_past_the_day_of_the_gate(root: Root) -> None:
    assert root.bundles("gate", "--off", "before there was one")[0] == 0
    (root.root / "gate.log").unlink()
    assert root.bundles("activate", WORSE)[0] == 0
    assert root.bundles("gate", str(root.rules))[0] == 0
    assert [*root.log()[-1]["answered"]] == [WORSE, OLD]
    assert root.bundles("rollback")[0] == 0 and root.active() == OLD


def test_a_gate_is_removed_with_a_reason(root: Root) -> None:
    assert root.bundles("gate", "--off", "")[0] == 2
    assert root.bundles("activate", WORSE)[0] == 3
    assert root.bundles("gate", "--off", "moved to another root")[0] == 0
    assert root.bundles("activate", WORSE)[0] == 0
    assert root.log()[-1]["reason"] == "moved to another root"
    code, said = root.bundles("gate", "--off", "again")
    assert code == 2 and "has no gate to remove" in said


def test_wrong_rules_are_no_gate(root: Root, tmp_path: Path) -> None:
    before = (root.root / "gate.toml").read_bytes()
    (tmp_path / "wrong.toml").write_text("[index]\nat_last = 1\n")
    code, said = root.bundles("gate", str(tmp_path / "wrong.toml"))
    assert code == 2 and "index.at_last: no such key" in said
    assert (root.root / "gate.toml").read_bytes() == before
    code, said = root("bundles", "gate", str(root.rules), "--root", str(tmp_path / "nowhere"))
    assert code == 2 and "no such directory" in said


def test_rules_in_the_place_of_the_gate_are_not_replaced(root: Root) -> None:
    own = root.root / "gate.toml"
    shutil.copy(root.rules, own)
    code, said = root.bundles("gate", str(own))
    assert code == 2 and own.read_bytes() == root.rules.read_bytes()
    told = f"{own}: the root keeps there which rules it requires; give the rules another name"
    assert said.strip() == f"error: {told}"


def test_the_next_command_names_the_root_where_a_link_leads(root: Root, tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to(root.root / NEW)
    words = ["gate", root.rules, "--candidate", link, "--report", root.root / f"{NEW}.report"]
    words += ["--baseline", root.root / OLD, "--baseline-report", root.root / f"{OLD}.report"]
    code, said = root(*map(str, words))
    assert code == 0 and f"bundles activate {NEW} --root {root.root}\n" in said


@pytest.mark.parametrize("step", ["verify", "judge_index"])
def test_a_report_that_is_made_again_while_it_is_judged_is_no_evidence(root: Root, step: str) -> None:
    """Whatever it says: the figures that were judged are those of the report before."""
    original = getattr(gate, step)

    def slow(*given: object) -> object:
        content = read_report(root.root / "new.report")
        del content["digest"]
        write_report(content | {"created_at": "later"}, root.root / "new.report", "per_user.parquet")
        return original(*given)

    with root.patch.context() as patch:
        patch.setattr(gate, step, slow)
        assert root.gate()[0] == 0
    with pytest.raises(GateError) as error:
        valid_blessing(root.root / NEW)
    told = f"{root.root}/new.report/report.json: changed since the blessing of {root.root / NEW}, which rests on it"
    assert str(error.value) == f"{told}; `towers gate` judges it again"


@pytest.mark.parametrize(
    ("limit", "figure", "line"),
    [
        (Limit(at_least=0.1), 0.09999999, "refused  rule: 0.09999999, must be at least 0.1"),
        (Limit(at_least=0.1), 0.1, "passed   rule: 0.1000, must be at least 0.1"),
        (Limit(at_least=0.1), 0.0999, "refused  rule: 0.0999, must be at least 0.1"),
        (Limit(at_least=0.12344), 0.12344, "passed   rule: 0.12344, must be at least 0.12344"),
        (Limit(at_least=0.1234567), 0.1234566, "refused  rule: 0.1234566, must be at least 0.1234567"),
        (Limit(at_most=1_000), 1_000.00004, "refused  rule: 1,000.00004, must be at most 1000"),
        (Limit(at_most=0), 1e-17, "refused  rule: 0.00000000000000001, must be at most 0"),
        (Limit(at_least=0), float("nan"), "refused  rule: nan, must be at least 0"),
    ],
)
def test_a_figure_is_shown_on_its_own_side_of_the_limit(
    limit: Limit, figure: float, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gate._show((limit.judge("rule", figure),))
    assert capsys.readouterr().out == f"{line}\n"


def test_a_value_of_the_data_hides_no_judgement(capsys: pytest.CaptureFixture[str]) -> None:
    gate._show((Limit(at_least=0.5).judge("recall@20, brand: x\x1b[1A\x1b[2K\npassed   everything", 0.1),))
    assert capsys.readouterr().out == (
        "refused  recall@20, brand: x\\x1b[1A\\x1b[2K\\npassed   everything: 0.1000, must be at least 0.5\n"
    )


def test_two_commands_do_not_choose_at_once(root: Root) -> None:
    assert root.gate()[0] == 0
    with exclusive(root.root, "busy"):
        code, said = root.bundles("activate", NEW)
    assert code == 2 and "another command is choosing" in said and root.active() == OLD


def folded(root: Root) -> str:
    SqliteJournal.open(root.root.parent / "state").close()
    fold.run(root.root / OLD, root.root.parent / "state", root.root / "made")
    return OLD


def renewed(root: Root) -> str:
    prior = PriorInfo(now=0.5, past=0.1, mean_count=1.0, new_item=(0.0, 0.0))
    dataset = root.root.parent / "dataset"
    write_dataset(dataset)
    changes = {"prior": prior, "item_prior": np.zeros((ITEMS, 2), np.float32), "popular_counts": np.ones(ITEMS)}
    write_model(root.root / "prior", dataset, 2.0, **changes)
    rows = [f"u,{item},{1_700_000_000 + item}" for item in range(ITEMS) for _ in range(1 + item % 3)]
    (root.root.parent / "events.csv").write_text("\n".join(["user_id,item_id,time", *rows]) + "\n")
    renew.run(root.root / "prior", root.root.parent / "events.csv", root.root / "made")
    return "prior"


@pytest.mark.parametrize("make", [folded, renewed])
def test_a_renewal_is_another_bundle_and_has_rules_of_its_own(make: Callable[[Root], str], root: Root) -> None:
    source = make(root)
    assert root.bundles("activate", source, "--override", "the first")[0] == 0
    assert root.bundles("activate", "made")[0] == 3
    code, said = root.gate("made", baseline=source, reports=False)
    assert code == 0 and "blessed as a renewal" in said
    assert "share of the baseline's first 10 items" in said
    assert root.bundles("activate", "made")[0] == 0 and root.active() == "made"


def test_a_renewal_of_what_does_not_answer_is_no_way_around_the_gate(root: Root) -> None:
    SqliteJournal.open(root.root.parent / "state").close()
    fold.run(root.root / WORSE, root.root.parent / "state", root.root / "made")
    assert root.gate("made", baseline=WORSE, reports=False)[0] == 0
    assert root.bundles("activate", "made")[0] == 3
    (root.root / "active.json").unlink()
    code, said = root.bundles("activate", "made")
    assert code == 3 and "renews a bundle, but none is active" in said


def test_without_rules_for_renewals_those_of_a_model_apply(root: Root) -> None:
    folded(root)
    root.rules.write_text(RULES.format(least=0.1).split("[renewal")[0], encoding="utf-8")
    code, said = root.gate("made", reports=False)
    assert code == 2 and "give --report" in said


def test_a_report_holds_the_digests_of_its_bundle_its_table_and_itself(world: Path) -> None:
    content = read_report(world / "new.report")
    assert content["bundle"]["digest"] == json.loads((world / NEW / "manifest.json").read_text())["digest"]
    assert list(content["files"]) == ["per_user.parquet"]
