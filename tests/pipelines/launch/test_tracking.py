"""What trackers are told of a run, a report and a gate's result, read back by the readers of TensorBoard and MLflow."""

import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tensorflow as tf
import tomli_w
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipelines.cli import app
from pipelines.errors import DataError
from pipelines.evaluation import report as evaluation
from pipelines.launch import tracking
from pipelines.launch.records.outputs import of_gate, of_report, of_run, read_gate
from pipelines.launch.records.record import Record, mlflow_name
from pipelines.training import train
from tests.support.pages.programs import program
from tests.support.pages.tables import HOSTILE, github_rows, tensorboard_rows
from tests.support.paths import ROOT
from tests.support.processes.running_service import free_port

GOLDEN = ROOT / "tests" / "golden"
KS = [5, 10]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracking")
    shutil.copytree(GOLDEN / "dataset", folder / "dataset")  # the cache of the baselines lies beside it
    evaluation.run(GOLDEN / "bundle", folder / "dataset", folder / "report", ks=KS)
    return folder / "report"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run with the TensorBoard files of its two stages, whose epochs ended at different times."""
    run = tmp_path / "run"
    shutil.copytree(GOLDEN / "run", run)
    for name in ("tensorboard_choose", "tensorboard"):
        writer = tf.summary.create_file_writer(str(run / name))
        with writer.as_default(step=1):
            tf.summary.scalar("loss", 6.9)
        writer.close()
        time.sleep(0.01)
    return run


@pytest.fixture
def blessing(tmp_path: Path) -> Path:
    judgements = [
        {"rule": "recall@20", "figure": 0.125, "limit": "at least 0.1", "passed": True, "note": ""},
        {"rule": "p99 ≤ limit", "figure": 12.5, "limit": "at most 10 ms", "passed": False, "note": ""},
        {"rule": "findings", "figure": None, "limit": "none", "passed": True, "note": ""},
    ]
    content = {"candidate": "a1", "baseline": None, "files": {"rules.toml": "b2"}, "judgements": judgements}
    (tmp_path / "new.blessing.json").write_text(
        json.dumps(content | {"created_at": "2026-11-22T10:00:00+00:00", "digest": "c3"})
    )
    return tmp_path / "new.blessing.json"


def board(folder: Path) -> EventAccumulator:
    files = list(folder.glob("events.out.tfevents.*"))
    assert len(files) == 1
    return EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()


def scalars(events: EventAccumulator) -> dict[str, float]:
    values = {tag: events.Tensors(tag) for tag in events.Tags()["tensors"]}
    assert all(len(each) == 1 and each[0].step == 0 for each in values.values())
    arrays = {tag: tf.make_ndarray(each[0].tensor_proto) for tag, each in values.items()}
    return {tag: float(array) for tag, array in arrays.items() if array.dtype == np.float32}


def text(events: EventAccumulator, tag: str) -> str:
    return str(tf.make_ndarray(events.Tensors(tag)[0].tensor_proto).item().decode())


def expected_figures(report: Path) -> dict[str, float]:
    """The figures of a report's JSON, by the paths that docs/evaluation/tracking.md describes."""
    content = json.loads((report / "report.json").read_text())
    found = {}
    for ranker, figures in content["metrics"].items():
        for name, figure in figures.items():
            found[f"{ranker}/{name}"] = figure["value"]
            if ranker == "exact":
                found |= {f"exact/{name}/{end}": figure[end] for end in ("low", "high")}
    for key in ("coverage", "gini", "novelty", "mean_popularity", "similarity"):
        for name, figure in content[key]["exact"].items():
            found |= {f"lists/{name}{end and '/'}{end}": figure[end or "value"] for end in ("", "low", "high")}
    difference = content["verdict"]["difference"]
    found |= {"verdict/difference": difference["value"]}
    found |= {f"verdict/difference/{end}": difference[end] for end in ("low", "high")}
    metric = content["verdict"]["metric"]
    for name, part in content["slices"].items():
        if metric in part["metrics"].get("exact", {}):
            found[f"slices/{name}/{metric}"] = part["metrics"]["exact"][metric]["value"]
    return found


def test_a_run_is_its_recipe_its_epochs_and_its_best(run: Path) -> None:
    record = of_run(run)
    recipe = tomllib.loads((run / "config.toml").read_text())
    summary = json.loads((run / "summary.json").read_text())
    assert record.params["train.epochs"] == "1" and record.params["model.dimension"] == "8"
    assert record.params["loss.name"] == recipe["loss"]["name"]
    assert record.params["data.event_types"] == "[]" and record.params["data.refit"] == "true"
    assert record.params["features.query.history.window"] == "earlier"
    assert record.params["dataset.fingerprint"] == summary["dataset"]
    first, last = summary["stages"]
    assert record.figures["train/best_recall@20"] == first["best_metric"]
    assert record.figures["refit/epochs"] == 1 and "refit/best_" not in record.figures
    ended = {
        stage: board(run / folder).Tensors("loss")[0].wall_time
        for stage, folder in (("train", "tensorboard_choose"), ("refit", "tensorboard"))
    }
    assert ended["train"] < ended["refit"] == record.time
    assert {(each.name, each.value, each.step, each.time) for each in record.series} == {
        (f"{stage['stage']}/{name}", value, 1, ended[stage["stage"]])
        for stage in (first, last)
        for name, value in stage["history"][0].items()
        if name != "epoch"
    }


def test_a_run_without_whole_tensorboard_files_has_the_time_of_its_summary(run: Path) -> None:
    shutil.rmtree(run / "tensorboard_choose")
    (file,) = (run / "tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert {each.time for each in of_run(run).series} == {(run / "summary.json").stat().st_mtime}


def test_a_repeated_training_has_one_identity_and_another_recipe_another(run: Path) -> None:
    before = of_run(run).identity
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"seconds": 99.0}))
    assert of_run(run).identity == before
    recipe = (run / "config.toml").read_text()
    (run / "config.toml").write_text(recipe.replace("refit = true", "refit = false"))
    assert of_run(run).identity != before


@pytest.mark.parametrize("odd", ["", '"', "\\"])
def test_the_secrets_of_an_address_in_the_recipe_are_not_told(run: Path, odd: str) -> None:
    address = f"https://ann:{odd}s3cret@files.invalid/pairs.csv?sig=s1gned"
    recipe = run / "config.toml"
    settings = tomllib.loads(recipe.read_text())
    recipe.write_text(tomli_w.dumps(settings | {"similarity": settings["similarity"] | {"pairs": address}}))
    record = of_run(run)
    assert record.params["similarity.pairs"] == "https://***@files.invalid/pairs.csv?***"
    assert "s3cret" not in record.text and "s1gned" not in record.text and "files.invalid" in record.text
    assert record.files == [run / "summary.json"]
    recipe.write_text(recipe.read_text().replace("s1gned", "other"))
    assert of_run(run).identity != record.identity


def test_a_warm_start_is_another_training_for_each_run_that_it_starts_from(run: Path) -> None:
    cold, identities = of_run(run), set()
    summary = json.loads((run / "summary.json").read_text())
    for digest in ("ab" * 32, "cd" * 32):
        (run / "summary.json").write_text(json.dumps(summary | {"warm_from": digest}))
        warm = of_run(run)
        assert warm.params == cold.params | {"warm_from": digest}
        identities.add(warm.identity)
    assert len(identities | {cold.identity}) == 3


def test_tensorboard_holds_the_figures_of_a_report(report: Path) -> None:
    assert tracking.run(report=report, bundle=GOLDEN / "bundle") == []
    shown = scalars(board(report / "tensorboard"))
    expected = expected_figures(report)
    assert shown.keys() == expected.keys() and len(shown) > 50
    assert all(shown[name] == np.float32(value) for name, value in expected.items())
    told = text(board(report / "tensorboard"), "settings")
    lineage = json.loads((GOLDEN / "bundle" / "manifest.json").read_text())["lineage"]["config"]
    assert f"| optimizer.learning_rate | {lineage['optimizer']['learning_rate']} |" in told
    assert f"| ks | {KS} |" in told
    assert text(board(report / "tensorboard"), "report") == (report / "report.md").read_text()


def test_a_report_of_an_earlier_release_has_values_of_lists_without_intervals(report: Path, tmp_path: Path) -> None:
    content, expected = json.loads((report / "report.json").read_text()), expected_figures(report)
    for key in ("coverage", "gini", "novelty", "mean_popularity", "similarity"):
        by_name = content[key]["exact"]
        content[key]["exact"] = {name: figure["value"] for name, figure in by_name.items()}
        for name in by_name:
            del expected[f"lists/{name}/low"], expected[f"lists/{name}/high"]
    (tmp_path / "report.json").write_text(json.dumps(content))
    assert of_report(tmp_path).figures == expected


def test_telling_tensorboard_twice_replaces_the_files(run: Path) -> None:
    before = board(run / "tensorboard").Tensors("loss")
    assert tracking.run(run=run) == []
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"seconds": 99.0}))
    assert tracking.run(run=run) == []
    assert scalars(board(run / "tensorboard_result"))["seconds"] == 99.0
    assert board(run / "tensorboard").Tensors("loss") == before


def test_a_report_is_not_told_with_the_recipe_of_another_bundle(report: Path, tmp_path: Path) -> None:
    other = tmp_path / "report"
    shutil.copytree(report, other)
    content = json.loads((report / "report.json").read_text())
    content["bundle"]["model_version"] = "another"
    (other / "report.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="is of the bundle another"):
        of_report(other, GOLDEN / "bundle")


def test_a_gate_is_its_rules_and_its_verdict(blessing: Path) -> None:
    record = read_gate(blessing)
    assert record.figures == {
        "rules/recall@20/figure": 0.125,
        "rules/recall@20/passed": 1.0,
        "rules/p99 ≤ limit/figure": 12.5,
        "rules/p99 ≤ limit/passed": 0.0,
        "rules/findings/passed": 1.0,
    }
    limits = {
        "rules/recall@20/limit": "at least 0.1",
        "rules/p99 ≤ limit/limit": "at most 10 ms",
        "rules/findings/limit": "none",
    }
    assert record.params == {"candidate": "a1", "verdict": "refused"} | limits
    assert tracking.run(gate=blessing) == []
    shown = board(blessing.parent / "new.blessing.tensorboard")
    assert scalars(shown) == record.figures
    assert "| p99 ≤ limit | 12.5 | at most 10 ms | no |" in text(shown, "gate")
    content = json.loads(blessing.read_text())
    again = content | {"created_at": "2026-11-23T10:00:00+00:00", "digest": "c4"}
    assert of_gate(again, blessing).identity == record.identity
    passed = content | {"judgements": content["judgements"][:1]}
    assert of_gate(passed, blessing).params["verdict"] == "passed"
    assert record.identity not in {
        of_gate(content | {"candidate": "a2"}, blessing).identity,
        of_gate(passed, blessing).identity,
    }


def test_rules_of_one_name_are_told_apart_by_their_limits(blessing: Path) -> None:
    content = json.loads(blessing.read_text())
    least, most = ({"rule": "coverage", "figure": 0.5, "limit": limit, "passed": limit == "at most 1"} for limit in (
        "at least 0.6", "at most 1"))  # fmt: skip
    record = of_gate(content | {"judgements": [least, most]}, blessing)
    assert record.figures == {
        "rules/coverage, at least 0.6/figure": 0.5,
        "rules/coverage, at least 0.6/passed": 0.0,
        "rules/coverage, at most 1/figure": 0.5,
        "rules/coverage, at most 1/passed": 1.0,
    }


def test_a_rule_that_would_break_the_table_of_a_gate_is_one_cell(blessing: Path) -> None:
    rule = {"rule": HOSTILE, "figure": 0.5, "limit": "at least 0.1", "passed": True, "note": "paired | by\nuser"}
    record = of_gate(json.loads(blessing.read_text()) | {"judgements": [rule]}, blessing)
    rows = [
        ["rule", "figure", "limit", "passed", "note"],
        [HOSTILE, "0.5", "at least 0.1", "yes", "paired | by user"],
    ]
    assert github_rows(record.text) == tensorboard_rows(record.text) == rows
    assert tracking.tell(record) == []
    settings = tensorboard_rows(text(board(record.board), "settings"))
    assert [f"rules/{HOSTILE}/limit", "at least 0.1"] in settings


VALUES = (
    "a/b",
    "a b",
    "a:b",
    "a_b",
    "a@b",
    "a_at_b",
    "a\\b",
    "a|b",
    "a?b",
    "a//b",
    "é",
    "e\u0301",
    "/",
    "_",
    "x" * 300,
)


def test_names_that_a_tracker_would_take_for_one_stay_apart(blessing: Path, report: Path, tmp_path: Path) -> None:
    rules = [{"rule": f"recall@20 of index, site: {value}", "figure": float(place), "limit": "", "passed": True}
             for place, value in enumerate(VALUES)]  # fmt: skip
    record = of_gate(json.loads(blessing.read_text()) | {"judgements": rules}, blessing)
    content = json.loads((report / "report.json").read_text())
    metric = content["verdict"]["metric"]
    part = {"metrics": {"exact": {metric: {"value": 0.5}}}}
    content["slices"] = {f"site: {value}": part for value in VALUES}
    (tmp_path / "report.json").write_text(json.dumps(content))
    slices = [name for name in of_report(tmp_path).figures if name.startswith("slices/")]
    figures = [name for name in record.figures if name.endswith("/figure")]
    assert len(figures) == len(slices) == len(VALUES)
    for names in (figures, slices, [*record.params]):
        told = [*map(mlflow_name, names)]
        assert len({*told}) == len(names)
        for name in told:
            # MLflow: "Names may only contain slashes, alphanumerics, underscores, periods, dashes, colons, and spaces",
            # at most 250 of them, and are paths in their shortest form.
            assert re.fullmatch(r"[/\w.\- :]{1,250}", name) and posixpath.normpath(name) == name


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("exact/hit_rate@20/low", "exact/hit_rate_at_20/low"),
        (
            "rules/recall@20 of index, FR minus the baseline's, upper bound/passed",
            "rules/recall_at_20 of index_ FR minus the baseline_s_ upper bound/passed",
        ),
        ("features.query.history.window", "features.query.history.window"),
    ],
)
def test_a_name_that_loses_nothing_has_no_mark(name: str, told: str) -> None:
    assert mlflow_name(name) == told


@pytest.mark.parametrize("value", ["https://shop.org/a", "/", "../a", "a/./b"])
def test_a_slice_with_slashes_gives_names_that_a_tracker_takes(blessing: Path, value: str) -> None:
    """MLflow stores names as paths, and refuses all of a gate for one that is not in its shortest form."""
    rule = {"rule": f"recall@20 of index, site: {value}", "figure": 0.5, "limit": "at least 0.1", "passed": True}
    record = of_gate(json.loads(blessing.read_text()) | {"judgements": [rule]}, blessing)
    names = [*record.figures, *(name for name in record.params if name.startswith("rules/"))]
    assert {name.rpartition("/")[2] for name in names} == {"figure", "passed", "limit"}
    assert [name.count("/") for name in names] == [2, 2, 2]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "name one output"),
        ({"run": Path("a"), "report": Path("b")}, "name one output"),
        ({"run": Path("a"), "bundle": Path("b")}, "name one output"),
        ({"run": GOLDEN / "dataset"}, "not a finished run"),
        ({"report": GOLDEN / "run"}, "not a report"),
        ({"gate": GOLDEN / "run" / "stage.json"}, "no list of judgements"),
        ({"gate": GOLDEN / "run" / "config.toml"}, "not a gate's result"),
        ({"gate": Path("judged.json")}, "judged.json: not as its command writes it: KeyError"),
        ({"report": Path("report")}, "report: not as its command writes it: KeyError"),
        ({"run": Path("run")}, "run: not as its command writes it: TypeError"),
    ],
)
def test_what_is_no_output_is_refused(
    given: dict[str, Path], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judged.json").write_text('{"judgements": []}')
    for name, content in (("report/report.json", "{}"), ("run/summary.json", '{"dataset": "d", "stages": 1}')):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    (tmp_path / "run" / "config.toml").touch()
    with pytest.raises(DataError, match=told):
        tracking.run(**given)


def test_a_tracker_that_cannot_work_is_refused_before_the_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv(tracking.URI, raising=False)
    words = ["train", "--dataset", str(GOLDEN / "dataset"), "--config", "default", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["towers", *words, "--track", "mlflow"])
    monkeypatch.setattr(train, "run", lambda *_, **__: pytest.fail("it trained"))
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2 and "MLFLOW_TRACKING_URI is not set" in capsys.readouterr().err
    monkeypatch.setenv(tracking.URI, "http://127.0.0.1:9")
    tracking.refuse_unready("mlflow")
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'towers-recall\[mlflow\]'"):
        tracking.refuse_unready("mlflow")


def test_a_warning_shows_no_password_of_the_server(
    blessing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "https://anna:s3cret@tracker.invalid/"
    monkeypatch.setenv(tracking.URI, address)

    def down(record: Record) -> None:
        raise ConnectionError(f"API request to {address}api/2.0/mlflow failed; recall@20 is lost")

    monkeypatch.setattr(tracking, "write_mlflow", down)
    assert tracking.tell(read_gate(blessing), "mlflow") == ["MLflow at https://***@tracker.invalid"]
    told = capsys.readouterr().err
    assert (
        "s3cret" not in told and "API request to https://***@tracker.invalid/api/2.0/mlflow failed; recall@20" in told
    )


def test_the_program_of_the_page_tracks_a_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Record] = []
    monkeypatch.chdir(run.parent)
    monkeypatch.setenv(tracking.URI, "http://127.0.0.1:9")
    monkeypatch.setattr(tracking, "write_mlflow", told.append)
    exec(program("docs/evaluation/tracking.md", "track.run"), {})
    assert [each.params for each in told] == [of_run(run).params]
    assert scalars(board(run / "tensorboard_result"))["train/epochs"] == 1


@pytest.mark.slow
def test_a_server_that_is_down_costs_a_warning(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(tracking.URI, f"http://127.0.0.1:{free_port()}")
    for variable in tracking.MLFLOW_DEFAULTS:
        monkeypatch.setenv(variable, {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}.get(variable, "true"))
    assert tracking.run(run=run, tracker="mlflow") == [f"MLflow at {os.environ[tracking.URI]}"]
    told = capsys.readouterr().err
    assert "warning: MLflow at http://127.0.0.1" in told and "not told" in told
    assert f"towers track --run {run} --track mlflow" in told
    record = replace(of_run(run), kind="report", output=run)
    assert tracking.tell(record, "mlflow", bundle=Path("my bundle")) == [f"MLflow at {os.environ[tracking.URI]}"]
    assert f"towers track --report {run} --bundle 'my bundle' --track mlflow" in capsys.readouterr().err
    assert scalars(board(run / "tensorboard_result"))["train/epochs"] == 1


class Server:
    """MLflow's server on SQLite, asked over its REST interface."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        port = self.url.rpartition(":")[2]
        words = ["server", "--host", "127.0.0.1", "--port", port, "--workers", "1"]
        words += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", f"{folder}/files"]
        off = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        with (folder / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", *words],
                env={**os.environ, **off},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            until = time.monotonic() + 180
            while not self._healthy():
                assert self.process.poll() is None and time.monotonic() < until, (folder / "server.log").read_text()
                time.sleep(0.2)
        except BaseException:
            self.stop()
            raise

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        with suppress(ProcessLookupError):  # all of them have ended
            os.killpg(self.process.pid, 9)
        self.process.wait()

    def ask(self, verb: str, path: str, **given: Any) -> dict[str, Any]:
        where = {"json": given} if verb == "POST" else {"params": given}
        answer = httpx.request(verb, f"{self.url}/api/2.0/mlflow/{path}", timeout=60, **where)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def runs(self, kind: str) -> list[dict[str, Any]]:
        named = self.ask("GET", "experiments/get-by-name", experiment_name="shop")["experiment"]["experiment_id"]
        given = {"experiment_ids": [named], "filter": f"tags.`towers.kind` = '{kind}'"}
        return list(self.ask("POST", "runs/search", **given).get("runs", []))

    def history(self, run: dict[str, Any], name: str) -> list[tuple[int, float, int]]:
        """Step, value and time in milliseconds of each value of a metric."""
        number = run["info"]["run_id"]
        found = self.ask("GET", "metrics/get-history", run_id=number, metric_key=name)["metrics"]
        return sorted((int(each.get("step", 0)), each["value"], int(each["timestamp"])) for each in found)

    def files(self, run: dict[str, Any]) -> set[str]:
        return {each["path"] for each in self.ask("GET", "artifacts/list", run_id=run["info"]["run_id"])["files"]}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server")
    monkeypatch.setenv(tracking.URI, server.url)
    for variable, default in tracking.MLFLOW_DEFAULTS.items():
        monkeypatch.setenv(variable, default)
    monkeypatch.setenv(tracking.EXPERIMENT, "shop")
    yield server
    server.stop()


def towers(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["towers", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        app.main()
    return int(ended.value.code or 0)


@pytest.mark.long
def test_mlflow_holds_each_output_once(
    server: Server,
    report: Path,
    blessing: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dataset, run = report.parent / "dataset", tmp_path / "run"
    given = ["--dataset", dataset, "--config", GOLDEN / "run" / "config.toml", "--out", run, "--track", "mlflow"]
    assert towers(monkeypatch, "train", *given, "--set", "train.epochs=2", "--set", "data.refit=false") == 0
    assert server.url not in capsys.readouterr().out  # it may hold a password
    (kept,) = server.runs("run")
    assert kept["info"]["status"] == "FINISHED"
    record = of_run(run)
    assert {each["key"]: each["value"] for each in kept["data"]["params"]} == record.params
    summary = json.loads((run / "summary.json").read_text())
    losses = [epoch["loss"] for epoch in summary["stages"][0]["history"]]
    ended = [round(each.wall_time * 1000) for each in board(run / "tensorboard").Tensors("loss")]
    assert server.history(kept, "train/loss") == list(zip((1, 2), losses, ended, strict=True))
    recalls = [epoch["recall@20"] for epoch in summary["stages"][0]["history"]]
    assert [value for _, value, _ in server.history(kept, "train/recall_at_20")] == recalls
    assert server.files(kept) == {"summary.json", "config.toml"}

    assert towers(monkeypatch, "track", "--run", run, "--track", "mlflow") == 0
    assert [each["info"]["run_id"] for each in server.runs("run")] == [kept["info"]["run_id"]]
    assert server.history(kept, "train/loss") == list(zip((1, 2), losses, ended, strict=True))
    assert len(server.history(kept, "seconds")) == 1

    def judged() -> int:
        words = ["--bundle", GOLDEN / "bundle", "--dataset", dataset, "--out", tmp_path / "report", "--overwrite"]
        return towers(monkeypatch, "report", *words, "--track", "mlflow")

    assert judged() == judged() == 0
    (shown,) = server.runs("report")
    metrics = {each["key"]: each["value"] for each in shown["data"]["metrics"]}
    assert metrics == {name.replace("@", "_at_"): v for name, v in expected_figures(tmp_path / "report").items()}
    assert server.files(shown) == {"report.html", "report.md", "report.json"}
    content = json.loads((tmp_path / "report" / "report.json").read_text())
    content["metrics"]["exact"]["recall@20"]["value"] = 0.75
    (tmp_path / "report" / "report.json").write_text(json.dumps(content | {"created_at": "2099-01-01T00:00:00+00:00"}))
    assert tracking.run(report=tmp_path / "report", tracker="mlflow") == []
    (shown,) = server.runs("report")
    assert {each["key"]: each["value"] for each in shown["data"]["metrics"]}["exact/recall_at_20"] == 0.75
    assert len(server.history(shown, "exact/recall_at_20")) == 2

    assert tracking.run(gate=blessing, tracker="mlflow") == tracking.run(gate=blessing, tracker="mlflow") == []
    (gate,) = server.runs("gate")
    told = {each["key"]: each["value"] for each in gate["data"]["params"]}
    (rule,) = {name.rpartition("/")[0] for name in told if re.match(r"rules/p99 _ limit-[0-9a-f]{8}/", name)}
    assert (told["verdict"], told[f"{rule}/limit"]) == ("refused", "at most 10 ms")
    assert server.history(gate, f"{rule}/passed") == [(0, 0.0, 1_795_341_600_000)]
    assert server.history(gate, f"{rule}/figure") == [(0, 12.5, 1_795_341_600_000)]
