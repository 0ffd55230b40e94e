"""The command line: its words, its exit codes, its one line on a mistake, and what it leaves unimported."""

import importlib
import inspect
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import typer.main
from typer.core import TyperGroup

from pipelines import console
from pipelines.cli import app, exit_codes
from pipelines.errors import DataError, GateError
from pipelines.evaluation.protocol.options import Protocol
from serving.errors import BundleError, RequestError
from serving.files.staging import OutputExistsError
from tests.support.paths import ROOT
from towers.config.recipe import RECIPES, Config
from towers.errors import ConfigError
from towers.ops.replicas import ALONE, Replicas

# The module that does the work of each verb.
VERBS = {
    "synth": "pipelines.ingest.synthetic.synth",
    "losses": "pipelines.cli.choices",
    "samplers": "pipelines.cli.choices",
    "check": "pipelines.training.check",
    "prepare": "pipelines.ingest.prepare",
    "train": "pipelines.training.train",
    "tune": "pipelines.tuning.tune",
    "export": "pipelines.bundles.export",
    "index": "pipelines.bundles.build_index",
    "report": "pipelines.evaluation.report",
    "compare": "pipelines.launch.compare",
    "gate": "pipelines.launch.gate",
    "track": "pipelines.launch.tracking",
    "daily": "pipelines.launch.daily.daily",
    "recall": "pipelines.bundles.bulk.recall",
    "embed": "pipelines.bundles.bulk.embed",
    "serve": "pipelines.service.serve",
    "look": "pipelines.bundles.look",
    "query": "pipelines.service.query",
    "forget": "pipelines.forget.forget",
    "demo": "pipelines.cli.demo",
    "doctor": "pipelines.cli.doctor",
}


def towers(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Runs `towers words…` in this process; gives its exit code."""
    monkeypatch.setattr(sys, "argv", ["towers", *words])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("words", [("prepare", "--events", "e", "--out", "p\udce9"), ("query", "--user", "u\udce9")])
def test_an_argument_that_is_not_utf_8_is_refused(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a name from an old archive is."""
    assert towers(monkeypatch, *words) == 2
    assert capsys.readouterr().err == f"error: the argument {os.fsencode(words[-1])!r} is not UTF-8\n"


def module_of(words: list[str]) -> str:
    """Which module does the work of some words."""
    if words[0] == "train" and "--workers" in words:
        return "pipelines.training.local_workers"
    return "pipelines.bundles.renew" if "--prior-from" in words else VERBS[words[0]]


@cache
def real(module: str) -> ModuleType:
    """A module, before any double takes its place."""
    return importlib.import_module(module)


def put_double(monkeypatch: pytest.MonkeyPatch, module: str, raises: BaseException | None = None) -> list[Any]:
    """Replaces a module; gives the list that fills with its calls, which must fit the real function."""
    calls: list[Any] = []
    signature = inspect.signature(real(module).run)

    def run(*args: Any, **kwargs: Any) -> dict[str, Any]:
        signature.bind(*args, **kwargs)
        calls.append((args, kwargs))
        if raises is not None:
            raise raises
        return {}

    double = ModuleType(module)
    double.run = run  # type: ignore[attr-defined]
    double.verdict = lambda *run: str(run)  # type: ignore[attr-defined]  # what `train` ends with
    double.refuse_unready = lambda tracker: None  # type: ignore[attr-defined]
    double.describe = lambda *result: str(result)  # type: ignore[attr-defined]  # what `check` prints of its result
    double.first_user = str  # type: ignore[attr-defined]  # whom `recall` shows next
    package, _, name = module.rpartition(".")
    monkeypatch.setitem(sys.modules, module, double)
    monkeypatch.setattr(importlib.import_module(package), name, double)
    if module != VERBS["track"]:
        put_double(monkeypatch, VERBS["track"])  # what `train` and `report` end with
    return calls


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text("[data]\nmin_user_events = 3\n[train]\nepochs = 7\n")
    return path


def test_it_says_its_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert towers(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"towers {project['version']}\n"


def test_the_verbs_are_those_that_others_script() -> None:
    assert sorted(command.callback.__name__ for command in app.app.registered_commands if command.callback) == sorted(
        VERBS
    )


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_an_example_that_parses(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert towers(monkeypatch, verb, "--help") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "Example:" in lines
    examples = [line.removeprefix("$ towers ").split() for line in lines if line.startswith("$ towers ")]
    assert examples
    (tmp_path / "my.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    for words in examples:
        assert words[0] == verb
        calls = put_double(monkeypatch, module_of(words))
        assert towers(monkeypatch, *words) == 0, words
        assert len(calls) == 1


def test_no_words_at_all_show_the_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert towers(monkeypatch) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)


def test_the_advice_for_a_missing_id_column_works_as_it_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = "".join(f"c{n % 5},i{n % 4}\n" for n in range(20))
    (tmp_path / "e.csv").write_text(f"customer,item\n{rows}")
    words = ["prepare", "--events", str(tmp_path / "e.csv"), "--out", str(tmp_path / "o")]
    assert towers(monkeypatch, *words) == 2
    advice = capsys.readouterr().err.split("name it: ")[1].split(", or ")[0]
    assert towers(monkeypatch, *words, *advice.replace("NAME", "customer").split()) == 0
    assert (tmp_path / "o" / "dataset.json").is_file()


def test_every_option_reaches_its_command(monkeypatch: pytest.MonkeyPatch, recipe: Path) -> None:
    seven = Config.model_validate({"data": {"min_user_events": 3}, "train": {"epochs": 7}})
    two = Config.model_validate({"data": {"min_user_events": 3}, "train": {"epochs": 2, "seed": 5}})
    r, d, b, o = str(recipe), Path("d"), Path("b"), Path("o")
    devices, opened = Replicas(), list[str]()
    monkeypatch.setattr("towers.training.devices.local_devices", {2: devices}.__getitem__)
    monkeypatch.setattr(typer, "launch", opened.append)
    sources = "--events e --items i --users u --format pairs"
    whole = f"--dataset d --config {r} --out o --set seed=2 --warm-from w --fresh --overwrite"
    cases: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        (
            "synth --out o --users 5 --items 6 --events 7 --seed 8 --fashion 1.5 --overwrite",
            (o,),
            {"users": 5, "items": 6, "events": 7, "seed": 8, "fashion": 1.5, "overwrite": True},
        ),
        (f"check --config {r}", (seven, None), {}),
        (f"check --config {r} --dataset d --set train.epochs=2 --set train.seed=5", (two, d), {}),
        (
            "prepare --events e --out o",
            (Config().data, "e", o),
            {"items": None, "users": None, "format": "auto", "on_bad_rows": "error", "overwrite": False},
        ),
        # A path would make one slash of two.
        (
            "prepare --events s3://b/e --items gs://b/i.csv --out o",
            (Config().data, "s3://b/e", o),
            {"items": "gs://b/i.csv", "users": None, "format": "auto", "on_bad_rows": "error", "overwrite": False},
        ),
        (
            f"prepare {sources} --config {r} --on-bad-rows skip --out o --overwrite",
            (seven.data, "e", o),
            {"items": "i", "users": "u", "format": "pairs", "on_bad_rows": "skip", "overwrite": True},
        ),
        (
            f"prepare --events e --config {r} --set data.min_user_events=5 --out o",
            (seven.data.model_copy(update={"min_user_events": 5}), "e", o),
            {"items": None, "users": None, "format": "auto", "on_bad_rows": "error", "overwrite": False},
        ),
        (
            f"train --dataset d --config {r} --out o",
            (seven, d, o),
            {"resume": True, "overwrite": False, "compares": True, "warm_from": None, "replicas": ALONE},
        ),
        (
            f"train --dataset d --config {r} --set train.epochs=2 --set train.seed=5 --fresh --overwrite --out o "
            "--warm-from w",
            (two, d, o),
            {"resume": False, "overwrite": True, "compares": True, "warm_from": Path("w"), "replicas": ALONE},
        ),
        (
            f"train --devices 2 --dataset d --config {r} --out o --track mlflow",
            (seven, d, o),
            {"resume": True, "overwrite": False, "compares": True, "warm_from": None, "replicas": devices},
        ),
        (
            f"train --workers 3 {whole} --track mlflow",
            (3, f"train {whole} --track=mlflow".split()),
            {},
        ),
        (
            "tune --dataset d --out o",
            (d, o),
            {
                "config": None,
                "budget_minutes": None,
                "trials": None,
                "train_minutes": 15.0,
                "metric": None,
                "dimensions": [],
                "without_starts": [],
                "seed": None,
                "resume": True,
                "overwrite": False,
            },
        ),
        (
            f"tune --dataset d --config {r} --set train.epochs=2 --set train.seed=5 --budget-minutes 5 --trials 9 "
            "--train-minutes 3 --metric ndcg@5 --dimension 8 --dimension 16 --without-starts beauty --seed 4 --fresh "
            "--overwrite --out o",
            (d, o),
            {
                "config": two,
                "budget_minutes": 5.0,
                "trials": 9,
                "train_minutes": 3.0,
                "metric": "ndcg@5",
                "dimensions": [8, 16],
                "without_starts": ["beauty"],
                "seed": 4,
                "resume": False,
                "overwrite": True,
            },
        ),
        (
            "export --run r --out b --popular-by c --vectors int8 --dimension 32",
            (Path("r"), b),
            {"dataset_path": None, "vectors": "int8", "dimension": 32, "popular_by": "c", "overwrite": False},
        ),
        (
            "export --run r --dataset d --out b",
            (Path("r"), b),
            {"dataset_path": d, "vectors": "float32", "dimension": None, "popular_by": None, "overwrite": False},
        ),
        (
            "export --bundle b --prior-from e --out o --overwrite",
            (b, "e", o),
            {"format": "auto", "overwrite": True},
        ),
        (
            "export --bundle b --prior-from e.dat --format csv --out o",
            (b, "e.dat", o),
            {"format": "csv", "overwrite": False},
        ),
        ("index --bundle b", (b,), {"target_recall": 0.98, "target_k": 100, "kind": "auto"}),
        (
            "index --bundle b --target-recall 0.9 --target-k 20 --kind scann",
            (b,),
            {"target_recall": 0.9, "target_k": 20, "kind": "scann"},
        ),
        (
            "report --bundle b --dataset d --out o",
            (b, d, o),
            {
                "slices": (),
                "protocol": Protocol(),
                "maps": None,
                "url": None,
                "user_ids": False,
                "overwrite": False,
            },
        ),
        (
            "report --bundle b --dataset d --out o --slice c --slice items.c --map a --map b --user-ids --k 5 --k 7 "
            "--overwrite --open --track mlflow",
            (b, d, o),
            {
                "ks": [5, 7],
                "slices": ["c", "items.c"],
                "protocol": Protocol(),
                "maps": ["a", "b"],
                "url": None,
                "user_ids": True,
                "overwrite": True,
            },
        ),
        (
            "report --bundle b --dataset d --out o --repeats --reachable-only --gap 7d --from 2026-11-01 "
            "--until 2026-11-08 --users 9 --seed 3 --url http://h --no-map",
            (b, d, o),
            {
                "slices": (),
                "protocol": Protocol(True, True, "7d", "2026-11-01", "2026-11-08", 9, 3),
                "maps": (),
                "url": "http://h",
                "user_ids": False,
                "overwrite": False,
            },
        ),
        (
            "compare a b,c --out o",
            (["a", "b,c"], o),
            {"dataset": None, "metric": None, "family": None, "slices": (), "user_ids": False, "overwrite": False},
        ),
        (
            "compare a b --dataset d --metric m --family f,g --slice c --slice e --user-ids --overwrite --open --out o",
            (["a", "b"], o),
            {"dataset": d, "metric": "m", "family": "f,g", "slices": ["c", "e"], "user_ids": True, "overwrite": True},
        ),
        ("recall --bundle b --k 9 --out o", (b, 9, o), {"users": None, "shard": None, "overwrite": False}),
        (
            "embed --bundle b --users u --out o",
            (b, o),
            {"users": "u", "items": None, "shard": None, "overwrite": False},
        ),
        (
            "embed --bundle b --items i --shard 1/2 --out o --overwrite",
            (b, o),
            {"users": None, "items": "i", "shard": "1/2", "overwrite": True},
        ),
        (
            "recall --bundle b --k 9 --users u --shard 2/8 --out o --overwrite",
            (b, 9, o),
            {"users": "u", "shard": "2/8", "overwrite": True},
        ),
        # What is not given is up to the variables, the settings file and the defaults (tests/serving/test_settings.py).
        ("serve", (), dict.fromkeys(("bundle", "state", "host", "port", "workers", "keys", "window", "config"))),
        (
            "serve --bundle b --host 0.0.0.0 --port 9000 --workers 4 --state s --keys k --window --config c",
            (),
            {"bundle": "b", "host": "0.0.0.0", "port": 9000, "workers": 4}
            | {"state": Path("s"), "keys": Path("k"), "window": True, "config": Path("c")},
        ),
        ("look --bundle b", ([b], None), {"browse": True}),
        ("look --bundle b --bundle o --dataset d --no-open", ([b, o], d), {"browse": False}),
        ("query --bundle b --user 007", ("007",), {"bundle": b, "url": None, "k": 10}),
        ("query --url http://x --user u --k 3", ("u",), {"bundle": None, "url": "http://x", "k": 3}),
        ("query --url http://x --bundle b --user u", ("u",), {"bundle": b, "url": "http://x", "k": 10}),
        ("daily c.toml", (Path("c.toml"),), {}),
        (
            "gate r --candidate b",
            (Path("r"), b),
            {"baseline": None, "report": None, "baseline_report": None, "track": None},
        ),
        (
            "gate r --candidate b --report s --baseline c --baseline-report t --track mlflow",
            (Path("r"), b),
            {"baseline": Path("c"), "report": Path("s"), "baseline_report": Path("t"), "track": "mlflow"},
        ),
        (
            "track --run r --report s --bundle b --gate g --track mlflow",
            (),
            {"run": Path("r"), "report": Path("s"), "gate": Path("g"), "bundle": b, "tracker": "mlflow", "alone": True},
        ),
        ("demo", (Path("demo"),), {}),
        ("demo --out o", (o,), {}),
        ("doctor", (), {}),
    ]
    for name in ("TOWERS_HOST", "TOWERS_PORT", "TOWERS_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    for line, *_ in cases:
        real(module_of(line.split()))  # a module that imports another one must not find its double
    for line, args, kwargs in cases:
        verb, *words = line.split()
        calls = put_double(monkeypatch, module_of([verb, *words]))
        tracked = calls if verb == "track" else put_double(monkeypatch, VERBS["track"])
        assert towers(monkeypatch, verb, *words) == 0, line
        assert calls == [(args, kwargs)], line
        tracks = verb in ("train", "report", "track") and "--workers" not in words
        asked = "mlflow" if "--track" in words else None
        assert [options["tracker"] for _, options in tracked] == [asked] * tracks, line
    assert opened == ["o/report.html", "o/compare.html"]
    used = {(line.split()[0], word) for line, *_ in cases for word in line.split()}
    group = typer.main.get_command(app.app)
    assert isinstance(group, TyperGroup)
    for verb in VERBS.keys() - {"forget"}:  # which is among the commands for a running service
        for option in group.commands[verb].params:
            names = [*option.opts, *option.secondary_opts]
            assert option.param_type_name != "option" or any((verb, name) in used for name in names), (verb, names)


@pytest.mark.parametrize(
    ("workers", "variable", "other"), [("2", "", "--workers"), ("1", '{"cluster": {}}', "TF_CONFIG")]
)
def test_workers_with_several_devices_are_refused(
    workers: str,
    variable: str,
    other: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    recipe: Path,
) -> None:
    monkeypatch.setenv("TF_CONFIG", variable)
    words = ["--dataset", "d", "--config", str(recipe), "--out", "o", "--devices", "2", "--workers", workers]
    assert towers(monkeypatch, "train", *words) == 2
    assert f"a worker uses one device; leave out --devices or {other}" in capsys.readouterr().err


def test_workers_of_a_cluster_are_not_started_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recipe: Path
) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')
    words = ["--dataset", "d", "--config", str(recipe), "--out", "o", "--workers", "2"]
    assert towers(monkeypatch, "train", *words) == 2
    assert "TF_CONFIG names the workers already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "export --out o",
        "export --run r --bundle b --out o",
        "export --bundle b --out o",
        "export --run r --prior-from e --out o",
    ],
)
def test_export_is_of_a_run_or_renews_a_bundle(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert towers(monkeypatch, *words.split()) == 2
    assert "give --run RUN, or both --bundle BUNDLE and --prior-from EVENTS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--run r --vectors int4", "'int4' is not one of 'float32', 'float16', 'int8'"),
        ("--run r --dimension 0", "'--dimension': Input should be greater than or equal to 1"),
        ("--bundle b --prior-from e --dataset d", "needs --run; the events of --bundle are in --prior-from"),
        ("--bundle b --prior-from e --vectors int8", "needs --run; the vectors of --bundle stay as they are"),
        ("--bundle b --prior-from e --dimension 8", "needs --run; the vectors of --bundle stay as they are"),
        ("--run r --format csv", "needs --prior-from; the events of --run are in its data set"),
        ("--bundle b --prior-from e --format dat", "'dat' is not one of 'auto', 'csv'"),
    ],
)
def test_options_of_export_that_do_not_fit_are_refused(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert towers(monkeypatch, "export", *words.split(), "--out", "o") == 2
    assert said in capsys.readouterr().err


def test_every_word_of_the_commands_for_a_running_service_reaches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    for name in (
        "service.events.run", "service.state.backup", "service.state.restore", "service.state.move",
        "forget.forget.run",
    ):  # fmt: skip
        monkeypatch.setattr(
            f"pipelines.{name}", lambda *w, name=name, **options: calls.append((name, w, options)) or {}
        )
    s, o, b = Path("s"), Path("o"), Path("b")
    nowhere = {"state": None, "bundles": [], "datasets": [], "runs": [], "dry_run": False}
    places = "--state s --bundle a --bundle b --dataset d --run r --dry-run"
    every = {"state": s, "bundles": [Path("a"), b], "datasets": [Path("d")], "runs": [Path("r")], "dry_run": True}
    for line, name, words, options in (
        ("events export --state s --out o", "service.events.run", (s, o), {"overwrite": False}),
        ("events export --state s --out o --overwrite", "service.events.run", (s, o), {"overwrite": True}),
        ("state backup --state s --out o --overwrite", "service.state.backup", (s, o), {"overwrite": True}),
        ("state restore --backup b --state s", "service.state.restore", (b, s), {}),
        ("state move --state s --to o", "service.state.move", (s, o), {}),
        ("forget --user 7", "forget.forget.run", ("7",), nowhere),
        (f"forget --user 7 {places}", "forget.forget.run", ("7",), every),
    ):
        assert towers(monkeypatch, *line.split()) == 0, line
        assert calls.pop() == (name, words, options)


@pytest.mark.parametrize(
    ("words", "found", "following"),
    [
        ("--bundle b --dataset d --dry-run", ["b"], "forget --user 7 --bundle b --dataset d"),
        ("--state s --bundle b", ["s"], "forget --user 7 --state s --bundle b --dry-run"),
        ("--dataset d --run r", ["d", "r"], "train --dataset d --config r/config.toml --overwrite --out r"),
        ("--dataset e --run r", ["e", "r"], "forget --user 7 --dataset e --run r --dry-run"),
        ("--dataset d --run r", ["d"], "forget --user 7 --dataset d --run r --dry-run"),
        ("--bundle b", [], None),
        ("--state 'my state' --dry-run", ["my state"], "forget --user 7 --state 'my state'"),
    ],
)
def test_after_a_user_is_forgotten_the_next_command_removes_checks_or_trains_anew(
    words: str,
    found: list[str],
    following: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("pipelines.forget.forget.run", lambda *_, **__: {Path(place): {} for place in found})
    of_run = [Path("d")]
    monkeypatch.setattr("pipelines.forget.run.datasets_of", lambda _, given: [each for each in given if each in of_run])
    assert towers(monkeypatch, "forget", "--user", "7", *shlex.split(words)) == 0
    assert capsys.readouterr().err == (f"next: {console.towers()} {following}\n" if following else "")


@pytest.mark.parametrize(("text", "told"), [("[train]\nepochs = 3\n", True), ("[model]\ndimension = 8\n", False)])
def test_a_recipe_that_names_no_model_is_told_of_default(
    text: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.toml").write_text(text)
    assert towers(monkeypatch, "check", "--config", str(tmp_path / "r.toml")) == 0
    copy = f"start from a copy of {RECIPES / 'default.toml'}"
    assert (copy in capsys.readouterr().err) == told and (RECIPES / "default.toml").is_file()


@pytest.mark.parametrize(
    ("root", "following"), [(True, "bundles activate new --root root"), (False, "serve --bundle root/new")]
)
def test_the_command_after_an_index_activates_the_bundle_of_a_root(
    root: bool, following: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "root").mkdir()
    if root:
        (tmp_path / "root" / "active.json").write_text("{}")
    monkeypatch.setattr("pipelines.bundles.build_index.run", lambda *_, **__: None)
    assert towers(monkeypatch, "index", "--bundle", "root/new") == 0
    assert capsys.readouterr().err == f"next: {console.towers()} {following}\n"


def test_the_command_after_a_move_takes_a_directory_with_blanks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipelines.service.state.move", lambda *_: None)
    assert towers(monkeypatch, "state", "move", "--state", "s", "--to", "my state") == 0
    assert capsys.readouterr().err == f"next: {console.towers()} serve --bundle bundle --state 'my state'\n"


def test_every_word_of_keys_reaches_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    for name in ("add", "show", "remove"):
        monkeypatch.setattr(f"pipelines.service.keys.{name}", lambda *words, name=name: calls.append((name, *words)))
    file = Path("k.toml")
    for line in ("add --file k.toml --name n --role admin", "list --file k.toml", "remove --file k.toml --name n"):
        assert towers(monkeypatch, "keys", *line.split()) == 0, line
    assert calls == [("add", file, "n", "admin"), ("show", file), ("remove", file, "n")]


@pytest.mark.parametrize(
    ("mistake", "line"),
    [
        (ConfigError("train.epochs: must be at least 1, got 0"), "train.epochs: must be at least 1, got 0"),
        (DataError("u.data: row 3: no item"), "u.data: row 3: no item"),
        (BundleError("b/manifest.json: missing"), "b/manifest.json: missing"),
        (RequestError("k: must be at least 1", field="k"), "k: must be at least 1"),
        (OutputExistsError("o already exists"), "o already exists"),
        (
            OSError(28, "No space left on device", "o/x.npy"),
            "o/x.npy: No space left on device; make room, then give the same command again: no unfinished output is "
            "left",
        ),
        (PermissionError(13, "Permission denied", "o"), "o: Permission denied"),
        (DataError("first line\n  second line\n"), "first line second line"),
    ],
)
def test_a_mistake_of_the_user_is_one_line_and_exit_2(
    mistake: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_double(monkeypatch, VERBS["export"], raises=mistake)
    assert towers(monkeypatch, "export", "--run", "r", "--out", "b") == exit_codes.USER_MISTAKE == 2
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == ("", f"error: {line}\n")


def test_a_refusal_by_the_gate_has_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_double(monkeypatch, VERBS["gate"], raises=GateError("b: refused"))
    assert towers(monkeypatch, "gate", "r", "--candidate", "b") == exit_codes.REFUSED == 3
    assert capsys.readouterr().err == "error: b: refused\n"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("exprot", ["No such command 'exprot'", "Did you mean 'export'?", "towers --help"]),
        ("export --run r", ["Missing option '--out'", "towers export --help"]),
        ("report --bundle b --dataset d --out o --map c --no-map", ["--map / --no-map", "give one of them"]),
        ("export --rum r --out b", ["--rum", "--run"]),
        ("prepare --events e --out o --format xml", ["'--format': 'xml' is not one of 'auto', 'csv'"]),
        ("prepare --events e --out o --on-bad-rows drop", ["'--on-bad-rows'", "'error', 'skip'"]),
        ("prepare --events e --out o --set data.seed=3", ["--set", "--config"]),
        ("tune --dataset d --out o --set train.seed=3", ["--set", "--config"]),
        ("tune --dataset d --out o --trials 0", ["'--trials'"]),
        ("tune --dataset d --config pyproject.toml --out pyproject.toml", ["--out", "is the recipe of --config"]),
        ("recall --bundle b --out o --k 0", ["'--k'"]),
        ("serve --bundle b --port 70000", ["'--port'", "65535"]),
        ("embed --bundle b --out o", ["--users / --items", "give one of them"]),
        ("embed --bundle b --users u --items i --out o", ["--users / --items", "give one of them"]),
        ("query --user u", ["--bundle / --url"]),
        ("check --config missing.toml", ["missing.toml: no such recipe file"]),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_2(
    words: str, parts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if words.split()[0] in VERBS:
        put_double(monkeypatch, VERBS[words.split()[0]])
    assert towers(monkeypatch, *words.split()) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("error: ")
    assert streams.err.count("\n") == 1
    assert [part for part in parts if part not in streams.err] == []


def test_ctrl_c_says_what_is_kept_and_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recipe: Path
) -> None:
    put_double(monkeypatch, VERBS["train"], raises=KeyboardInterrupt())
    assert towers(monkeypatch, "train", "--dataset", "d", "--config", str(recipe), "--out", "o") == 130
    assert capsys.readouterr().err == f"interrupted; {app.KEPT['train']}\n"
    put_double(monkeypatch, VERBS["export"], raises=KeyboardInterrupt())
    assert towers(monkeypatch, "export", "--run", "r", "--out", "b") == 130
    assert capsys.readouterr().err == "interrupted; no unfinished output is left\n"


@pytest.mark.parametrize("step", ["verdict", "run"])
def test_what_ends_train_after_the_run_is_there_does_not_say_that_the_command_resumes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recipe: Path, step: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    put_double(monkeypatch, VERBS["train"])
    monkeypatch.setattr(sys.modules[VERBS["train" if step == "verdict" else "track"]], step, interrupt)
    assert towers(monkeypatch, "train", "--dataset", "d", "--config", str(recipe), "--out", "o") == 130
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == "interrupted; o is complete, and only what follows the training is cut short"


@pytest.mark.parametrize(
    "words",
    [
        "train --dataset d --out o --config",
        "tune --dataset d --out o.toml",
        "daily",
        "recall --bundle b --k 5 --out o",
        "embed --bundle b --users u.csv --out o",
    ],
)
def test_sigterm_ends_a_long_command_as_ctrl_c_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recipe: Path, words: str
) -> None:
    saved: list[str] = []

    def run(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("it went on")
        finally:
            signal.raise_signal(signal.SIGTERM)  # it is told twice, and saves to the end
            saved.append("all")

    verb, *rest = words.split()
    put_double(monkeypatch, VERBS[verb])
    monkeypatch.setattr(sys.modules[VERBS[verb]], "run", run)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # without a handler it would end the tests
    try:
        assert towers(monkeypatch, verb, *rest, *([str(recipe)] if verb in ("train", "daily") else [])) == 130
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert saved == ["all"]
    assert capsys.readouterr().err == f"interrupted; {app.KEPT[verb]}\n"


def test_the_unforeseen_is_one_line_and_a_traceback_only_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_double(monkeypatch, VERBS["export"], raises=ZeroDivisionError("division by zero"))
    monkeypatch.delenv("TOWERS_DEBUG", raising=False)
    assert towers(monkeypatch, "export", "--run", "r", "--out", "b") == 1
    line = "error: unexpected ZeroDivisionError: division by zero; set TOWERS_DEBUG=1 for the traceback\n"
    assert capsys.readouterr().err == line
    monkeypatch.setenv("TOWERS_DEBUG", "1")
    assert towers(monkeypatch, "export", "--run", "r", "--out", "b") == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.endswith(line)


def test_a_model_error_counts_only_once_its_package_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_codes.exit_code(_raiser(ConfigError("x")), kept="") == 2
    monkeypatch.delitem(sys.modules, "towers.errors")
    assert exit_codes.exit_code(_raiser(ConfigError("x")), kept="") == 1
    assert "towers.errors" not in sys.modules
    assert exit_codes.exit_code(_raiser(typer.BadParameter("x")), kept="") == 2


def _raiser(error: Exception) -> Any:
    def command() -> None:
        raise error

    return command


def test_the_command_line_itself_loads_no_model_and_no_arrays() -> None:
    heavy = ["tensorflow", "tensorflow_recommenders", "towers", "numpy", "polars", "fastapi", "pydantic"]
    code = f"import sys, pipelines.cli.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_python_m_pipelines_is_the_same() -> None:
    done = subprocess.run([sys.executable, "-m", "pipelines", "index"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: Missing option '--bundle'. (see towers index --help)\n"


@pytest.mark.long
def test_a_closed_stderr_and_a_narrow_encoding_end_no_command(tmp_path: Path) -> None:
    towers = f"{sys.executable} -m pipelines"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    for line in (
        f"{towers} losses",
        f"{towers} synth --out {tmp_path / 'w'} --users 50 --items 1000 --events 500 2>&-",
    ):
        done = subprocess.run(
            ["sh", "-c", line], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (line, done.stderr)
    assert done.stdout == "" and (tmp_path / "w" / "events.parquet").is_file()
