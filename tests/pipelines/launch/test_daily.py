"""`towers daily`: three days from events to the bundle that answers; kills, a refusal, a lock, what is told."""

import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest

from pipelines.bundles import export, publish
from pipelines.bundles.blessing import valid_blessing
from pipelines.cli import app
from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError, GateError
from pipelines.evaluation import report
from pipelines.evaluation.report import KS
from pipelines.evaluation.report_json import REPORT
from pipelines.evaluation.slices import GROUPS as GROUPS_OF_A_DAY
from pipelines.forget.bundle import forget_in_bundle
from pipelines.forget.dataset import forget_in_dataset
from pipelines.ingest import prepare
from pipelines.launch.daily import activation, daily, days
from pipelines.launch.daily.daily import LOCK
from pipelines.launch.daily.day import ACTIVATED, FAILED, PLAN, SUMMARY, Day, Step
from pipelines.launch.daily.days import all_days
from pipelines.launch.daily.settings import Loop, Settings
from pipelines.launch.gate import require
from pipelines.launch.rules import read_rules
from pipelines.training import train
from serving.bundle.active import Active, Canary
from serving.bundle.digest import bundle_digest
from serving.bundle.manifest import read_manifest
from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.errors import BundleError
from serving.files import staging
from serving.files.disk_full import DiskFullError
from serving.files.lock import BusyError, exclusive
from serving.recall.loading import open_recaller
from serving.recall.query import RecallQuery
from serving.service.store import Store, StoreError
from tests.support.object_store import local_gs, local_s3
from tests.support.paths import ROOT
from tests.support.worlds.interrupted import Point, stopped
from tests.support.worlds.serving import write_world
from towers.config.recipe import RECIPES, load_config
from towers.errors import ConfigError

USERS, ITEMS, GROUPS = 150, 120, 3
SETTINGS = """
events = "events"
recipe = "recipe.toml"
rules = "gate.toml"
notify = ["python3", "-c", "import sys; open('told', 'a').write(sys.stdin.read())"]
keep = 2
"""
RECIPE = """
[features.query]
user_id = { kind = "id" }

[features.candidate]
item_id = { kind = "id" }

[data]
refit = true

[model]
dimension = 8
prior = "validation"

[optimizer]
learning_rate = 0.05

[train]
epochs = 6
batch_size = 64
checkpoint_steps = 3
metric = "recall@10"
"""
# Of the 40 items of a group a user has taken some: who knows the group finds a third by 10, by chance it is a tenth.
RULES = '[[metrics]]\nmetric = "recall@10"\nbound = "value"\nat_least = 0.22\n'


def write_day(folder: Path, day: int, *, alike: bool) -> None:
    """The events of a day: each user takes items of their group, or where nothing is alike any item."""
    rng = np.random.default_rng(day)
    rows = []
    for user in range(USERS):
        pool = np.arange(user % GROUPS, ITEMS, GROUPS) if alike else np.arange(ITEMS)
        for place, item in enumerate(rng.choice(pool, 6 if day > 1 else 12, replace=False)):
            rows.append((f"u{user}", f"i{item}", 86_400 * (19_000 + day) + 600 * place + user))
    (folder / "events").mkdir(exist_ok=True)
    frame = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    frame.write_csv(folder / "events" / f"{day}.csv")


def write_settings(folder: Path, settings: str = SETTINGS) -> Path:
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "gate.toml").write_text(RULES)
    (folder / "daily.toml").write_text(settings)
    return folder / "daily.toml"


def told(folder: Path) -> list[dict[str, Any]]:
    """The summaries that the command of `notify` read, in order."""
    text, found = (folder / "told").read_text(), []
    while text.strip():
        content, end = json.JSONDecoder().raw_decode(text)
        found.append(content)
        text = text[end:].lstrip()
    return found


def prior_until(folder: Path, day: str) -> int:
    prior = read_manifest(folder / "bundles" / day).prior
    assert prior is not None and prior.until is not None
    return prior.until


def newest_known(folder: Path, day: str, *files: int) -> int:
    """The last of the events that came before the first one of the test."""
    times = pl.concat(pl.read_csv(folder / "events" / f"{file}.csv") for file in files)["timestamp"]
    test = np.load(folder / "days" / day / "dataset" / "test" / "time.npy").min()
    return int(times.filter(times < test).max())


def command(config: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit code of the command line."""
    monkeypatch.setattr(sys, "argv", ["towers", "daily", str(config)])
    with pytest.raises(SystemExit) as ended:
        app.main()
    return ended.value.code


# One process after another, each killed just before what is named.
KILLS: list[Point] = [
    ("os.rename", ".dataset.", 1),
    ("step", "", 4),
    ("os.rename", "stage.json", 1),
    ("os.rename", "latest", 1),  # the first stage is done, its state not yet kept
    ("os.rename", "summary.json", 1),
    ("tower", "", 1),
    ("os.rename", "manifest.json", 1),
    ("os.rename", ".report.", 1),
    ("os.rename", "blessing.json", 1),
    ("os.rename", "candidate.blessing.json", 2),  # written in its place, about to be published
    ("os.rename", "active.json", 1),
    ("os.rename", "summary.json", 1),  # about to note that its activation begins
    ("os.rename", "summary.json", 2),
]
KILLED_IN = ["prepare", *["train"] * 4, "export", "index", "report", "gate", "publish", *["activate"] * 3]


def step_of(text: str) -> str:
    """The last step that began."""
    return re.findall(r"^daily: (\w+), ", text, re.MULTILINE)[-1]


@pytest.mark.long
@pytest.mark.parametrize("kills", [[], KILLS], ids=["whole", "killed"])
def test_three_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kills: list[Point]
) -> None:
    config, root = write_settings(tmp_path), Versions(tmp_path / "bundles")
    if not kills:  # one stage and fewer checkpoints: half the time
        recipe = RECIPE.replace("refit = true", "refit = false")
        (tmp_path / "recipe.toml").write_text(recipe.replace("checkpoint_steps = 3", "checkpoint_steps = 99"))
    write_day(tmp_path, 1, alike=True)
    if kills:
        stop, resumed = stopped(["daily", str(config)], [("step", "", 4)], by="term")
        assert (stop["ended"], step_of(stop["told"])) == ("130", "train")
        assert "interrupted; what is done is kept" in stop["told"]
        assert "continuing the unfinished run" in resumed["told"]
    first = daily.run(config)
    assert (first["outcome"], first["warm_from"], root.read().active) == (ACTIVATED, None, first["day"])
    steps = ["prepare", "train", "export", "index", "report", "gate", "publish", "activate"]
    assert [*first["seconds"]] == (steps[1:] if kills else steps)
    valid_blessing(tmp_path / "bundles" / first["day"])
    # Nothing is new, so nothing is done, and nobody is told.
    after = [line for line in capsys.readouterr().err.splitlines() if line.startswith("next: ")][-1]
    assert after.endswith(f"bundles list --root {tmp_path / 'bundles'}")
    assert daily.run(config) == first
    assert capsys.readouterr().err.splitlines()[-1] == after
    assert told(tmp_path) == [first]

    write_day(tmp_path, 2, alike=True)
    if kills:
        *ends, last = stopped(["daily", str(config)], kills)
        assert [(each["ended"], step_of(each["told"])) for each in ends] == [("SIGKILL", step) for step in KILLED_IN]
        assert root.read().active == all_days(Loop.read(config))[-1].name, last["told"]
    else:
        daily.run(config)
    second = told(tmp_path)[-1]
    assert (second["outcome"], second["warm_from"]) == (ACTIVATED, first["day"])
    assert root.read() == Active(active=second["day"], previous=(first["day"],))
    run = json.loads((tmp_path / "days" / second["day"] / "run" / SUMMARY).read_text())
    assert "warm_from" in run
    # The popularity prior: what `until` says is the newest event outside the test, and that of the second day is later.
    until = [prior_until(tmp_path, each["day"]) for each in (first, second)]
    assert until == [newest_known(tmp_path, *days) for days in ((first["day"], 1), (second["day"], 1, 2))]
    assert until[0] < until[1]
    valid_blessing(tmp_path / "bundles" / second["day"])
    assert len(open_recaller(tmp_path / "bundles" / second["day"]).recall(RecallQuery(user_id="u3", k=5)).ids) == 5
    assert {info.name for info in root.list()} == {first["day"], second["day"]}
    assert not list((tmp_path / "bundles").glob(".*.candidate*"))

    write_day(tmp_path, 3, alike=False)
    assert command(config, monkeypatch) == 3
    third = told(tmp_path)[-1]
    assert (third["outcome"], third["at"], third["bundle"]) == ("refused", "gate", None)
    assert (third["warm_from"], third["removed"]) == (second["day"], [])
    assert root.read().active == second["day"]
    # The same events again: the gate alone is asked again; other rules let it pass.
    assert command(config, monkeypatch) == 3
    (tmp_path / "gate.toml").write_text(RULES.replace("0.22", "0.01"))
    assert command(config, monkeypatch) == 0
    fourth = told(tmp_path)[-1]
    assert (fourth["day"], fourth["outcome"]) == (third["day"], ACTIVATED)
    # Two days are kept; the first is neither active nor the one before.
    assert fourth["removed"] == [first["day"]]
    assert not (tmp_path / "bundles" / first["day"]).exists() and not (tmp_path / "days" / first["day"]).exists()
    # An operator went back; the same events again do not undo that.
    root.rollback()
    assert daily.run(config) == fourth
    assert root.read().active == second["day"]


# Some objects are in the store; all are, and none answers.
UPLOAD_KILLS: list[Point] = [("shutil.copyfile", ".npy", 2), ("tempfile.mkdtemp", "/towers-", 1)]


@pytest.mark.long
def test_a_day_is_uploaded_and_answers_from_the_store(tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    config, url = write_settings(tmp_path), f"file://{tmp_path}/store"
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("refit = true", "refit = false"))
    write_day(tmp_path, 1, alike=True)
    first = daily.run(config)
    assert first["store"] is None
    # From now on there is a store. The day is the same, so that only the way to the store is left of it.
    config.write_text(f'{SETTINGS}store = "{url}"\n')
    *ends, last = stopped(["daily", str(config)], UPLOAD_KILLS)
    assert [(each["ended"], step_of(each["told"])) for each in ends] == [("SIGKILL", "upload"), ("SIGKILL", "activate")]
    assert re.findall(rf"^daily: (\w+), {first['day']}$", last["told"], re.MULTILINE) == ["activate"]
    summary = told(tmp_path)[-1]
    assert (summary["day"], summary["outcome"], summary["store"]) == (first["day"], ACTIVATED, url)
    name = first["day"]
    Bundle.open(tmp_path / "store" / name)
    assert bundle_digest(tmp_path / "store" / name) == bundle_digest(tmp_path / "bundles" / name)
    assert Versions(tmp_path / "store").read() == Versions(tmp_path / "bundles").read() == Active(active=name)
    # Nothing is new, also after an operator has chosen another bundle there.
    Versions(tmp_path / "store").file.write_text(Active(active="by-hand").model_dump_json())
    assert daily.run(config) == summary
    assert Versions(tmp_path / "store").read().active == "by-hand"


def plan(folder: Path, name: str, started: str, outcome: str | None = ACTIVATED) -> None:
    """A day and its bundle, empty."""
    (folder / "days" / name / "run").mkdir(parents=True)
    (folder / "days" / name / "run" / "summary.json").write_text("{}")
    (folder / "days" / name / PLAN).write_text(json.dumps({"started": started, "warm_from": None, "key": ""}))
    if outcome is not None:
        (folder / "days" / name / SUMMARY).write_text(json.dumps({"outcome": outcome}))
    (folder / "bundles" / name).mkdir(parents=True)
    (folder / "bundles" / f"{name}.blessing.json").touch()


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    write_day(tmp_path, 1, alike=True)
    return Loop.read(write_settings(tmp_path))


def test_a_day_is_its_content(loop: Loop, tmp_path: Path) -> None:
    day = days.today(loop)
    assert days.today(loop) == day
    write_day(tmp_path, 2, alike=True)
    assert days.today(loop).name != day.name
    (tmp_path / "events" / "2.csv").unlink()
    assert days.today(loop) == day
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("epochs = 6", "epochs = 7"))
    assert days.today(Loop.read(tmp_path / "daily.toml")).name != day.name
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "gate.toml").write_text(RULES.replace("0.22", "0.3"))
    assert days.today(Loop.read(tmp_path / "daily.toml")).name == day.name


@pytest.mark.parametrize(
    "line", ['items = "i.csv"', 'users = "u.csv"', 'format = "csv"', 'on_bad_rows = "skip"', 'vectors = "int8"']
)
def test_what_its_settings_say_makes_another_day_and_reaches_its_steps(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (tmp_path / "i.csv").write_text("item_id,price\ni1,1\n")
    (tmp_path / "u.csv").write_text("user_id,age\nu1,30\n")
    other = Loop.read(write_settings(tmp_path, SETTINGS + line))
    assert other.key() != loop.key()
    steps = dict[str, dict[str, object]]()
    for step, called in (("prepare", prepare), ("export", export)):
        monkeypatch.setattr(called, "run", lambda *_, step=step, **named: steps.update({step: named}))
    for step in days.today(other).steps():
        if step.name in ("prepare", "export"):
            step.make()
    plain = {"items": None, "users": None, "format": "auto", "on_bad_rows": "error", "vectors": "float32"}
    key, value = line.replace('"', "").split(" = ")
    given = tmp_path / value if key in ("items", "users") else value
    assert {**steps["prepare"], **steps["export"]} == {**plain, key: given}
    if key in ("items", "users"):
        before = other.key()
        (tmp_path / value).write_text(f"{key[:-1]}_id,tag\nx,1\n")
        assert other.key() != before


def test_the_page_has_every_key_with_its_default() -> None:
    page = (ROOT / "docs" / "service" / "daily.md").read_text(encoding="utf-8")
    told = dict[str, str]()
    for keys, default in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]*)\|", page, re.MULTILINE):
        told |= dict.fromkeys(re.findall(r"\w+", keys), default.strip())
    fields = Settings.model_fields
    assert told.keys() == fields.keys()
    for key, shown in told.items():
        default = fields[key].default
        if fields[key].is_required():
            assert not shown, key
        elif shown == "none":
            assert default in (None, ()), key
        else:
            given = json.loads(shown.strip("`"))
            assert given == (str(default) if isinstance(default, Path) else default), key


def test_a_command_that_hangs_is_no_longer_waited_for_after_a_minute(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(tmp_path, "2026-11-03-c", "2026-11-03T03:30", None)
    (day,) = all_days(loop)
    hanging = replace(day, loop=replace(loop, settings=loop.settings.model_copy(update={"notify": ("sleep", "600")})))
    assert daily.NOTIFY_S == 60
    monkeypatch.setattr(daily, "NOTIFY_S", 0.1)
    daily._end(hanging, FAILED, {})
    assert "warning: notify: sleep was killed after 0.1 s" in capsys.readouterr().err


def test_the_arguments_of_a_command_that_fails_are_not_told(
    loop: Loop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(tmp_path, "2026-11-03-c", "2026-11-03T03:30", None)
    (day,) = all_days(loop)
    failing = ("sh", "-c", "exit 22", "https://hooks.example.com/SECRET")
    daily._end(
        replace(day, loop=replace(loop, settings=loop.settings.model_copy(update={"notify": failing}))), FAILED, {}
    )
    said = capsys.readouterr().err
    assert "warning: notify: sh ended with exit code 22" in said and "SECRET" not in said


def test_a_day_without_test_events_is_refused_before_its_training(tmp_path: Path) -> None:
    config = write_settings(tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("refit = true", "refit = true\ntest_share = 0.0"))
    write_day(tmp_path, 1, alike=True)
    with pytest.raises(DataError, match=r"dataset: no user has a test event to recall; .* data\.test_share above 0"):
        daily.run(config)
    (summary,) = told(tmp_path)
    assert (summary["outcome"], summary["at"]) == ("failed", "train")


def test_a_day_is_of_the_events_that_prepare_reads(loop: Loop, tmp_path: Path) -> None:
    """A partition may be a link to another disk; a hidden file is what rsync has half copied."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "events" / "date=2026-11-02").symlink_to(tmp_path / "disk")
    keys = {loop.key()}
    (tmp_path / "events" / ".2.csv.aB3xYz").write_text("user_id,ite")
    keys.add(loop.key())
    assert len(keys) == 1
    for item in ("i1", "i2"):
        (tmp_path / "disk" / "part-0.csv").write_text(f"user_id,item_id,timestamp\nu1,{item},1700000000\n")
        keys.add(loop.key())
    assert len(keys) == 3


@pytest.mark.parametrize("store", [False, True], ids=["root", "store"])
def test_a_finished_day_says_what_answers_where_services_look(
    loop: Loop, tmp_path: Path, store: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    day, place, url = days.today(loop), tmp_path / "bundles", None
    if store:
        pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
        place = tmp_path / "the store"
        place.mkdir()
        url = f"file://{place}"
        (tmp_path / "daily.toml").write_text(f'{SETTINGS}store = "{url}"\n')
    root = f"'{url}'" if store else f"{place}"  # quoted for the shell
    day.bundle.mkdir(parents=True)
    (day.folder / SUMMARY).write_text(json.dumps({"outcome": ACTIVATED, "store": url}))
    told = f"{url or place}: no bundle is active, and {day.name} .*activate {day.name} --root {root}`"
    with pytest.raises(DataError, match=told):
        daily.run(tmp_path / "daily.toml")
    Versions(place).file.write_text(Active(active="by-hand").model_dump_json())
    assert daily.run(tmp_path / "daily.toml") == day.summary
    said = capsys.readouterr().err
    assert "by-hand answers" in said and said.endswith(f" bundles list --root {root}\n")


PAIRS = """
task = "similarity"
[similarity]
pairs = "PLACE"
against = "items"
holdout_share = 0.0
[loss]
name = "pair"
"""


@pytest.mark.long
def test_a_day_of_similar_items_is_judged_by_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_day(tmp_path, 1, alike=True)
    pairs = [f"i{item},i{(item + GROUPS) % ITEMS}" for item in range(ITEMS)]
    (tmp_path / "pairs.csv").write_text("\n".join(["item_a,item_b", *pairs]) + "\n")
    config = write_settings(tmp_path, SETTINGS + "warm = false\n")
    (tmp_path / "recipe.toml").write_text(PAIRS.replace("PLACE", str(tmp_path / "pairs.csv")))
    with pytest.raises(DataError) as error:
        daily.run(config)
    told_why = "judges figures of a report; a bundle of task = 'similarity' is judged by "
    allowed = "[index], [latency] and [agreement] alone"
    assert str(error.value) == f"{config}: rules: {tmp_path / 'gate.toml'}: {told_why}{allowed}"
    (tmp_path / "gate.toml").write_text("[index]\nk = 5\nat_least = 0.5\n")
    day = daily.run(config)
    assert (day["outcome"], Versions(tmp_path / "bundles").read().active) == (ACTIVATED, day["day"])
    blessing = valid_blessing(tmp_path / "bundles" / day["day"])
    assert [each.rule for each in blessing.judgements] == ["recall@5 of the index against exact search"]


def test_other_pairs_of_similar_items_make_another_day(loop: Loop, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    (tmp_path / "recipe.toml").write_text(PAIRS.replace("PLACE", str(pairs)))
    loop, keys = Loop.read(tmp_path / "daily.toml"), set()
    for partner in ("i1", "i2", "i1"):
        pairs.write_text(f"item_a,item_b\ni0,{partner}\n")
        keys.add(loop.key())
    assert len(keys) == 2
    pairs.unlink()
    with pytest.raises(DataError, match=r"pairs\.csv: cannot be read"):
        loop.key()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", '{"started": "2026-11-01T03:30"}'])
def test_a_damaged_plan_is_named(loop: Loop, tmp_path: Path, text: str) -> None:
    plan(tmp_path, "2026-11-01-a", "2026-11-01T03:30")
    file = tmp_path / "days" / "2026-11-01-a" / PLAN
    file.write_text(text)
    with pytest.raises(DataError, match=rf"{re.escape(str(file))}: damaged"):
        all_days(loop)


@pytest.mark.parametrize(
    ("answers", "settings", "expected"),
    [
        ("2026-11-01-a", SETTINGS, "2026-11-01-a"),  # an operator went back from the newest
        ("2026-11-03-c", SETTINGS, "2026-11-03-c"),
        ("by-hand", SETTINGS, None),
        (None, SETTINGS, None),
        ("2026-11-03-c", SETTINGS + "warm = false\n", None),
    ],
)
def test_a_day_starts_from_the_one_whose_bundle_answers(
    loop: Loop, tmp_path: Path, answers: str | None, settings: str, expected: str | None
) -> None:
    plan(tmp_path, "2026-11-01-a", "2026-11-01T03:30")
    plan(tmp_path, "2026-11-03-c", "2026-11-03T03:30")
    plan(tmp_path, "2026-11-05-b", "2026-11-05T03:30", "refused")
    if answers is not None:
        (loop.settings.root / "active.json").write_text(Active(active=answers).model_dump_json())
    assert days.today(Loop.read(write_settings(tmp_path, settings))).warm_from == expected


def test_a_day_starts_from_the_one_whose_model_answers_from_a_renewed_bundle(loop: Loop, tmp_path: Path) -> None:
    plan(tmp_path, "2026-10-31-a", "2026-10-31T03:30")
    (tmp_path / "bundles" / "2026-10-31-a" / "manifest.json").write_text('{"schema_version": 99}')
    users = np.ones((12, 8), np.float32)
    for number, vectors in enumerate((users, users * 2)):
        name = f"2026-11-0{number + 1}-a"
        plan(tmp_path, name, f"2026-11-0{number + 1}T03:30")
        (tmp_path / "bundles" / name).rmdir()
        write_world(tmp_path / "bundles" / name, query_vectors=vectors)
    # Other popular items, as by a renewed prior; then a model that no day has made.
    write_world(tmp_path / "bundles" / "today", query_vectors=users, popularity=np.arange(60, 0, -1))
    write_world(tmp_path / "bundles" / "by-hand", query_vectors=users * 3)
    for number, (active, expected) in enumerate((("today", "2026-11-01-a"), ("by-hand", None))):
        (loop.settings.root / "active.json").write_text(Active(active=active).model_dump_json())
        write_day(tmp_path, 2 + number, alike=True)
        assert days.today(loop).warm_from == expected


@pytest.mark.parametrize("begun_by", ["days/{}/run", "days/{}/.run.unfinished", "bundles/{}"])
def test_a_day_interrupted_before_its_training_starts_from_the_model_that_answers_now(
    loop: Loop, tmp_path: Path, begun_by: str
) -> None:
    """An operator may have rolled back since; a training that has begun goes on from its start."""
    bad, good = "2026-11-03-c", "2026-11-01-a"
    for name in (good, bad):
        plan(tmp_path, name, f"{name[:10]}T03:30")
    choose(loop.settings.root, bad, good)
    begun = days.today(loop)
    assert begun.warm_from == bad
    choose(loop.settings.root, good)
    day = days.today(loop)
    assert day == replace(begun, warm_from=good) == all_days(loop)[-1]
    (tmp_path / begun_by.format(day.name)).mkdir(parents=True)
    choose(loop.settings.root, bad, good)
    assert days.today(loop) == day


def test_a_day_whose_start_lost_its_run_starts_cold(
    loop: Loop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(tmp_path, "2026-11-03-c", "2026-11-03T03:30")
    choose(loop.settings.root, "2026-11-03-c")
    summary = tmp_path / "days" / "2026-11-03-c" / "run" / "summary.json"
    summary.unlink()
    assert days.today(loop).warm_from is None
    assert f"warning: {summary}: missing, so the model of today is trained from scratch" in capsys.readouterr().err


def test_a_bundle_that_answers_and_is_gone_is_told(
    loop: Loop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choose(loop.settings.root, "gone")
    loop.follow()
    told = f"gone is not in {loop.settings.root}: the bundle of today is judged without it, "
    assert capsys.readouterr().err == f"warning: {told}and a training that begins now begins from scratch\n"


def test_a_day_that_cannot_start_warm_says_how_it_can_start(loop: Loop, tmp_path: Path) -> None:
    plan(tmp_path, "2026-11-03-c", "2026-11-03T03:30")
    (loop.settings.root / "active.json").write_text(Active(active="2026-11-03-c").model_dump_json())
    with pytest.raises(DataError, match=r"--warm-from .*2026-11-03-c/run: .*config\.toml: .*; with warm = false"):
        daily.run(tmp_path / "daily.toml")


def test_a_training_that_cannot_resume_is_told_with_what_to_remove(loop: Loop, tmp_path: Path) -> None:
    write_day(tmp_path, 1, alike=True)
    prepare, training, *_ = (day := days.today(loop)).steps()
    prepare.make()
    (day.folder / ".run.unfinished").mkdir()
    (day.folder / ".run.unfinished" / "key").write_text("another")
    with pytest.raises(DataError, match=r"--fresh; `towers daily` has no --fresh: remove ") as told_of:
        training.make()
    assert Path(str(told_of.value).rpartition("remove ")[2]) == day.folder / ".run.unfinished"


def test_a_training_whose_data_set_forgot_a_user_meanwhile_starts_anew(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared, training, *_ = (day := days.today(loop)).steps()
    prepared.make()
    unfinished, asked = day.folder / ".run.unfinished", list[bool]()
    unfinished.mkdir()
    (unfinished / "key").write_text("of the data set before")
    forget_in_dataset(day.folder / "dataset", "u5", dry_run=False)
    real = train.run

    def run(*given: Any, resume: bool = True, **options: Any) -> object:
        asked.append(resume)
        return real(*given, resume=True, **options) if resume else None

    monkeypatch.setattr(train, "run", run)
    training.make()
    assert asked == [True, False]
    assert "trained anew, because `towers forget` has changed the data set of its unfinished" in capsys.readouterr().err


def test_a_day_keeps_its_state_for_the_next_one(tmp_path: Path) -> None:
    write_day(tmp_path, 1, alike=True)
    assert not load_config(write_settings(tmp_path).parent / "recipe.toml").train.keep_state
    assert Loop.read(tmp_path / "daily.toml").recipe.train.keep_state


def test_the_newest_days_are_kept_and_what_may_answer(loop: Loop, tmp_path: Path) -> None:
    names = [f"2026-11-0{day}-{'fedcba'[day]}" for day in range(1, 6)]
    for day, name in enumerate(names, start=1):
        plan(tmp_path, name, f"2026-11-0{day}T03:30")
        # A killed export, and a killed index, of another host, as of a pod that is gone.
        (tmp_path / "bundles" / f"..{name}.candidate.00000000.1.partial").mkdir()
        (tmp_path / "bundles" / f".{name}.00000000.1.partial").mkdir()
    canary = Canary(bundle=names[2], share=0.1)
    active = Active(active=names[4], previous=(names[1], names[0]), canary=canary)
    (tmp_path / "bundles" / "active.json").write_text(active.model_dump_json())
    today = next(day for day in all_days(loop) if day.name == names[4])
    # Two are kept, what a rollback goes to, and the canary.
    assert days.remove_old(loop, today) == [names[0]]
    left = {path.name for path in (tmp_path / "bundles").iterdir()} - {"active.json"}
    stays = ("{}", "{}.blessing.json", "..{}.candidate.00000000.1.partial", ".{}.00000000.1.partial")
    assert left == {each.format(name) for name in names[1:] for each in stays}
    assert {path.name for path in (tmp_path / "days").iterdir()} == {*names[1:]}


@pytest.mark.parametrize("in_store", [False, True], ids=["root", "store"])
def test_what_is_chosen_while_old_days_are_removed_stays(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_store: bool
) -> None:
    names = [f"2026-11-0{day}-{'gfedcba'[day]}" for day in range(1, 7)]
    for day, name in enumerate(names, start=1):
        plan(tmp_path, name, f"2026-11-0{day}T03:30")
    if in_store:
        loop = stored(loop, tmp_path, *names)
    place, original = tmp_path / "store" if in_store else loop.settings.root, Day.remove
    choose(place, names[5])
    later = {names[0]: (names[2], names[1]), names[3]: (names[5],)}

    def remove(day: Day) -> None:
        original(day)
        choose(place, *later[day.name])

    monkeypatch.setattr(Day, "remove", remove)
    # Two are kept; what an operator chose meanwhile, and what a rollback would go back to, wait for the next day.
    assert days.remove_old(loop, all_days(loop)[-1]) == [names[0], names[3]]
    assert {path.name for path in (tmp_path / "days").iterdir()} == {*names} - {names[0], names[3]}


def test_a_day_has_ended_before_old_ones_are_removed(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(tmp_path, "2026-11-03-c", "2026-11-03T03:30", None)
    (day,), ended = all_days(loop), list[str]()

    def fail(*_: object) -> list[str]:
        ended.append(json.loads((day.folder / SUMMARY).read_text())["outcome"])
        raise PermissionError(13, "Permission denied", "days/old")

    monkeypatch.setattr(daily, "remove_old", fail)
    for outcome in (ACTIVATED, FAILED):
        assert daily._end(day, outcome, {})["removed"] == []
        assert "warning: old days stay: [Errno 13] Permission denied: 'days/old'" in capsys.readouterr().err
    assert ended == [ACTIVATED, FAILED] and [each["outcome"] for each in told(tmp_path)] == ended


def test_a_removal_that_is_killed_goes_on(loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(tmp_path, "2026-11-03-c", "2026-11-03T03:30")
    gone = list[str]()

    def killed(path: Path) -> None:
        if path == day.folder:
            raise KeyboardInterrupt
        gone.append(path.name)
        staging.remove(path)

    (day,) = all_days(loop)
    monkeypatch.setattr("pipelines.launch.daily.day.remove", killed)
    with pytest.raises(KeyboardInterrupt):
        day.remove()
    assert {"run", SUMMARY} <= {*gone} and [path.name for path in day.folder.iterdir()] == [PLAN]
    assert all_days(loop) == [day]


def test_days_that_made_no_bundle_take_no_place_of_those_that_did(loop: Loop, tmp_path: Path) -> None:
    names = [f"2026-11-0{day}-{'gfedcba'[day]}" for day in range(1, 7)]
    for name in names:
        plan(tmp_path, name, f"{name[:10]}T03:30", None)
    for name in names[3:]:
        (tmp_path / "bundles" / name).rmdir()
    choose(loop.settings.root, names[0])
    # Of six days the last three failed. Two are kept, two with a bundle, and what answers.
    assert days.remove_old(loop, all_days(loop)[-1]) == [names[3]]


def test_the_day_whose_model_answers_from_a_renewed_bundle_is_kept(
    loop: Loop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"2026-11-0{day}-a" for day in range(1, 5)]
    for day, name in enumerate(names, start=1):
        plan(tmp_path, name, f"2026-11-0{day}T03:30")
    (tmp_path / "bundles" / names[0]).rmdir()
    for name in (names[0], "renewed", "renewed-again"):
        write_world(tmp_path / "bundles" / name)
    choose(loop.settings.root, "renewed-again", "renewed")
    today = all_days(loop)[-1]
    assert days.remove_old(loop, today) == [names[1]]
    assert days.today(loop).warm_from == names[0]
    (tmp_path / "bundles" / "renewed-again" / "manifest.json").write_text("{")
    assert days.remove_old(loop, today) == []
    assert re.search("warning: old days stay: .*renewed-again/manifest.json: ", capsys.readouterr().err)


def stored(loop: Loop, tmp_path: Path, *names: str) -> Loop:
    """The same loop with a store that has these bundles, all of them empty."""
    pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    for name in names:
        (tmp_path / "store" / name).mkdir(parents=True)
        (tmp_path / "store" / name / "manifest.json").touch()
    return Loop.read(write_settings(tmp_path, f'{SETTINGS}store = "file://{tmp_path}/store"\n'))


def choose(root: Path, name: str, *previous: str) -> None:
    root.mkdir(exist_ok=True)
    (root / "active.json").write_text(Active(active=name, previous=previous).model_dump_json())


def test_the_store_says_what_answers(loop: Loop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan(tmp_path, "2026-11-01-a", "2026-11-01T03:30")
    plan(tmp_path, "2026-11-03-c", "2026-11-03T03:30")
    choose(loop.settings.root, "2026-11-03-c")
    loop = stored(loop, tmp_path)
    # Of an empty store the root is the past.
    loop.follow()
    assert loop.active == "2026-11-03-c"
    choose(tmp_path / "store", "2026-11-01-a")
    loop.follow()
    assert (loop.active, days.today(loop).warm_from) == ("2026-11-01-a", "2026-11-01-a")
    assert capsys.readouterr().err == ""
    choose(tmp_path / "store", "elsewhere")
    loop.follow()
    assert loop.active is None
    assert re.search(r"elsewhere answers in file://.*/store and is not in .*/bundles: ", capsys.readouterr().err)
    (tmp_path / "store" / "active.json").write_text("{")
    with pytest.raises(BundleError, match=r"^file://.*/store/active.json: "):
        loop.follow()


def test_a_day_is_judged_beside_what_was_chosen_in_the_store_during_its_training(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(tmp_path, "2026-11-01-a", "2026-11-01T03:30")
    plan(tmp_path, "2026-11-03-c", "2026-11-03T03:30")
    stored(loop, tmp_path, "2026-11-01-a", "2026-11-03-c")
    choose(tmp_path / "store", "2026-11-03-c")
    active = []

    def steps(day: Day, activating: Callable[[], object]) -> tuple[Step, ...]:
        def judge() -> None:
            active.append(day.loop.active)
            raise GateError("enough")

        return (
            Step("train", lambda: False, lambda: choose(tmp_path / "store", "2026-11-01-a")),
            Step("gate", lambda: day.loop.active == "2026-11-03-c", judge),
        )

    monkeypatch.setattr(Day, "steps", steps)
    with pytest.raises(GateError, match="enough"):
        daily.run(tmp_path / "daily.toml")
    assert active == ["2026-11-01-a"]


def test_old_days_leave_the_store_but_not_what_was_chosen_there_meanwhile(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"2026-11-0{day}-{'fedcba'[day]}" for day in range(1, 6)]
    for day, name in enumerate(names, start=1):
        plan(tmp_path, name, f"2026-11-0{day}T03:30")
    loop = stored(loop, tmp_path, "by-hand", *names[:4])
    choose(loop.settings.root, names[4], names[3])
    choose(tmp_path / "store", names[0])
    today = all_days(loop)[-1]
    with monkeypatch.context() as patch:
        patch.setattr(Store, "remove", lambda *_: (_ for _ in ()).throw(StoreError("s3://bucket: no right to")))
        assert days.remove_old(loop, today) == []
    assert "warning: old days stay: s3://bucket: no right to\n" in capsys.readouterr().err
    assert days.remove_old(loop, today) == names[1:3]
    left = {path.name for path in (tmp_path / "store").iterdir()} - {"active.json"}
    assert left == {"by-hand", names[0], names[3]}
    assert {path.name for path in (tmp_path / "days").iterdir()} == {names[0], *names[3:]}


def forgotten(loop: Loop, monkeypatch: pytest.MonkeyPatch, *places: str) -> tuple[Day, Step]:
    """A day whose bundle is in the root and in the store, where a user was forgotten since, and its upload."""
    day = days.today(loop)
    write_world(day.bundle)
    monkeypatch.setattr(publish, "probed", lambda _: None)
    (upload,) = (step for step in day.steps() if step.name == "upload")
    assert not upload.done()
    upload.make()
    assert upload.done()
    for place in places:
        forget_in_bundle(loop.folder / place / day.name, "u5", dry_run=False)
    return day, upload


def test_a_bundle_that_forgot_a_user_after_its_upload_is_uploaded_again(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, upload = forgotten(stored(loop, tmp_path), monkeypatch, "bundles")
    # It is named where services do not look.
    choose(tmp_path / "bundles", day.name)
    (tmp_path / "store" / day.name / "of-before").touch()
    assert not upload.done()
    # Killed when the one of before is gone.
    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            upload.make()
    upload.make()
    assert upload.done() and not (tmp_path / "store" / day.name / "of-before").exists()
    assert bundle_digest(tmp_path / "store" / day.name) == bundle_digest(day.bundle)
    Bundle.open(tmp_path / "store" / day.name)


def test_a_bundle_that_forgot_a_user_once_it_answers_from_the_store_is_not_uploaded_again(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, upload = forgotten(loop := stored(loop, tmp_path), monkeypatch, "bundles", "store")
    assert not upload.done()
    choose(tmp_path / "store", day.name)
    loop.follow()
    assert upload.done()


@pytest.mark.parametrize(
    "active",
    [
        lambda name: Active(active=name),  # since this command began
        lambda name: Active(active="by-hand", previous=("of-before", name)),
        lambda name: Active(active="by-hand", canary=Canary(bundle=name, share=0.1)),
    ],
    ids=["active", "previous", "canary"],
)
def test_a_bundle_of_the_store_that_services_may_use_is_not_replaced(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, active: Callable[[str], Active]
) -> None:
    day, upload = forgotten(stored(loop, tmp_path), monkeypatch, "bundles")
    (tmp_path / "store" / "active.json").write_text(active(day.name).model_dump_json())
    before = bundle_digest(tmp_path / "store" / day.name)
    with pytest.raises(DataError) as error:
        upload.make()
    url = f"file://{tmp_path}/store"
    assert str(error.value) == (
        f"{url}/{day.name}: another bundle of this name, which active.json names, so it is not replaced: `towers "
        f"bundles activate {day.name} --root {url}` makes it answer, and that ends the day"
    )
    assert bundle_digest(tmp_path / "store" / day.name) == before


@pytest.mark.parametrize("here", [None, "u5"])
def test_a_user_who_was_forgotten_in_the_store_does_not_come_back(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: str | None
) -> None:
    day, upload = forgotten(stored(loop, tmp_path), monkeypatch, "store")
    if here is not None:
        forget_in_bundle(day.bundle, here, dry_run=False)
    before = bundle_digest(tmp_path / "store" / day.name)
    place = f"file://{tmp_path}/store/{day.name}"
    capsys.readouterr()
    upload.make()
    told = f"{place}: stays, as users were forgotten in it; it may differ from {day.bundle}\n"
    assert (capsys.readouterr().err, bundle_digest(tmp_path / "store" / day.name)) == (told, before)
    forget_in_bundle(day.bundle, "u7", dry_run=False)  # as many as in the store, unless u5 was before
    with pytest.raises(DataError) as error:
        upload.make()
    assert str(error.value) == (
        f"{place}: holds users whom `towers forget` removed from {day.bundle}: give it with --bundle "
        f"file://{tmp_path}/store, too; then give this command again"
    )
    assert "u5" not in Bundle.open(tmp_path / "store" / day.name).query_rows
    # One whose manifest cannot be read tells nothing.
    (tmp_path / "store" / day.name / "manifest.json").write_text("{")
    upload.make()
    assert upload.done()


@pytest.fixture(params=["root", "store"])
def activating(
    request: pytest.FixtureRequest, loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Day, Versions]:
    """A day of which only the activation is left, and where services look, from which another bundle answers."""
    if request.param == "store":
        loop = stored(loop, tmp_path)
    place = Versions(tmp_path / ("store" if request.param == "store" else "bundles"))
    day = days.today(loop)
    for name in ("of-before", day.name):
        write_world(place.root / name)
        if request.param == "store":
            write_world(loop.settings.root / name)
    place.activate("of-before")

    def steps(day: Day, activating: Callable[[], object]) -> tuple[Step, ...]:
        def make() -> None:
            activating()
            place.activate(day.name)

        return (Step("activate", lambda: day.loop.active == day.name, make),)

    monkeypatch.setattr(Day, "steps", steps)
    return day, place


@pytest.mark.parametrize("written", [True, False])
def test_a_day_whose_activation_failed_resumes_unless_it_happened_and_was_rolled_back(
    written: bool, activating: tuple[Day, Versions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, place = activating

    def steps(day: Day, activating: Callable[[], object]) -> tuple[Step, ...]:
        def make() -> None:
            activating()
            if written:
                place.activate(day.name)
            raise StoreError("the answer was lost")

        return (Step("activate", lambda: day.loop.active == day.name, make),)

    with monkeypatch.context() as patch:
        patch.setattr(Day, "steps", steps)
        with pytest.raises(StoreError, match="the answer was lost"):
            daily.run(tmp_path / "daily.toml")
    if written:
        place.rollback()
    daily.run(tmp_path / "daily.toml")
    assert place.read().active == ("of-before" if written else day.name)


def killed(owner: Any, name: str, tmp_path: Path) -> None:
    """A `towers daily` that ends before it calls a function."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            daily.run(tmp_path / "daily.toml")


def test_a_day_that_was_killed_once_its_bundle_answered_does_not_undo_a_rollback(
    activating: tuple[Day, Versions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    day, place = activating
    before = place.file.read_bytes()
    killed(daily, "_end", tmp_path)
    assert place.read().active == day.name
    place.rollback()
    assert place.file.read_bytes() == before
    shown = day.loop.settings.shown_store or place.root
    for _ in range(2):
        capsys.readouterr()
        assert daily.run(tmp_path / "daily.toml")["outcome"] == "activation"
        assert place.read().active == "of-before"
        assert capsys.readouterr().err.splitlines()[:2] == [
            f"{day.name}: its activation was interrupted, and what is active has changed since; `towers bundles "
            f"activate {day.name} --root {shown}` repeats it",
            f"nothing to do: {day.name} is made of these events and this recipe; of-before answers",
        ]
    assert not (tmp_path / "told").exists()
    place.activate(day.name)
    assert daily.run(tmp_path / "daily.toml")["outcome"] == ACTIVATED
    assert [each["day"] for each in told(tmp_path)] == [day.name]


def test_a_bundle_that_was_rolled_back_and_removed_does_not_come_back(
    activating: tuple[Day, Versions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    day, place = activating
    assert daily.run(tmp_path / "daily.toml")["outcome"] == ACTIVATED
    place.rollback()
    shutil.rmtree(day.bundle)
    capsys.readouterr()
    assert daily.run(tmp_path / "daily.toml")["outcome"] == ACTIVATED
    assert place.read().active == "of-before" and not day.bundle.exists()
    told = f"{day.bundle}: removed since it was activated; to make it again, remove {day.folder / SUMMARY}"
    assert told in capsys.readouterr().err.splitlines()
    # Nor where the settings are named by another path.
    (tmp_path / "link").symlink_to(tmp_path)
    assert daily.run(tmp_path / "link" / "daily.toml")["outcome"] == ACTIVATED
    assert place.read().active == "of-before" and not day.bundle.exists()


@pytest.mark.parametrize("lost", ["the one that answers", "a new root"])
def test_a_bundle_that_should_be_there_is_made_again(
    lost: str, activating: tuple[Day, Versions], tmp_path: Path
) -> None:
    day, _ = activating
    assert daily.run(tmp_path / "daily.toml")["outcome"] == ACTIVATED
    assert activation.was_activated(day)
    if lost == "a new root":
        day = replace(
            day, loop=replace(day.loop, settings=day.loop.settings.model_copy(update={"root": tmp_path / "x"}))
        )
    else:
        shutil.rmtree(day.bundle)
    assert not activation.was_activated(day)


def test_a_root_in_which_nothing_can_be_chosen_is_refused_before_the_first_step(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = BundleError("bundles: cannot be written, and so not its active.json")
    monkeypatch.setattr(Versions, "refuse_unwritable", Mock(side_effect=refused))
    with pytest.raises(BundleError, match="cannot be written"):
        daily.run(tmp_path / "daily.toml")
    assert not (tmp_path / "told").exists()


@pytest.mark.parametrize("previous", [("of-before",), ()], ids=["later day", "first day"])
def test_a_day_that_was_killed_before_its_bundle_answered_is_activated(
    activating: tuple[Day, Versions], tmp_path: Path, previous: tuple[str, ...]
) -> None:
    day, place = activating
    if not previous:
        place.file.unlink()
    for _ in range(2):
        killed(Versions, "activate", tmp_path)
        assert (day.summary["outcome"], place.file.exists()) == ("activation", bool(previous))
    assert daily.run(tmp_path / "daily.toml")["outcome"] == ACTIVATED
    assert place.read() == Active(active=day.name, previous=previous)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_store_tells_that_the_same_was_written_anew(loop: Loop, tmp_path: Path, kind: str) -> None:
    with local_s3() if kind == "s3" else local_gs(tmp_path / "gs") as store:
        url = f"{store.bucket}/recall"
        there = Loop.read(write_settings(tmp_path, f'{SETTINGS}store = "{url}"\n'))
        assert activation._stamp(there) is None
        stamps = []
        for _ in range(2):
            Store(url).write("active.json", b"{}")
            stamps += [activation._stamp(there) for _ in range(2)]
            time.sleep(1.1)  # the time of an object of S3 has whole seconds
        assert stamps[0] == stamps[1] != stamps[2] == stamps[3]


def test_a_blessing_beside_another_bundle_than_the_active_one_does_not_hold(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(tmp_path, "active", "2026-11-03T03:30")
    (tmp_path / "bundles" / "active.json").write_text(Active(active="active").model_dump_json())
    day = days.today(loop)
    (gated,) = (step for step in day.steps() if step.name == "gate")
    monkeypatch.setattr("pipelines.launch.daily.day.bundle_digest", lambda bundle: f"of {bundle.name}")
    judged = list[Path]()
    _, rules = read_rules(loop.settings.rules)
    for path in (day.candidate, day.bundle):  # before it is published, and where it waits to be activated
        path.mkdir()
        for baseline, given in (
            ("of active", rules),
            ("of before", rules),
            (None, rules),
            ("of active", "other rules"),
        ):
            blessing = SimpleNamespace(baseline=baseline, rules=given)
            monkeypatch.setattr(
                "pipelines.launch.daily.day.valid_blessing", lambda path, found=blessing: judged.append(path) or found
            )
            assert gated.done() == ((baseline, given) == ("of active", rules))
    assert judged == [day.candidate] * 4 + [day.bundle] * 4
    (tmp_path / "bundles" / "active.json").write_text(Active(active=day.name).model_dump_json())
    assert gated.done(), "it answers"


@pytest.mark.parametrize("published", [False, True])
def test_a_report_of_a_bundle_that_forgot_a_user_since_is_made_again_until_it_answers(
    loop: Loop, published: bool
) -> None:
    day = days.today(loop)
    (reported,) = (step for step in day.steps() if step.name == "report")
    assert not reported.done()
    bundle = day.bundle if published else day.candidate
    write_world(bundle)
    (day.folder / "report").mkdir()
    content = {"bundle": {"digest": bundle_digest(bundle)}}
    (day.folder / "report" / REPORT).write_text(json.dumps(content))
    assert reported.done()
    forget_in_bundle(bundle, "u5", dry_run=False)
    assert not reported.done()
    # Of similar items none could be made again, and no rule judges it.
    if published:
        choose(loop.settings.root, day.name)
        assert reported.done()


def test_a_day_of_similar_items_goes_on_without_a_report_that_can_no_longer_be_made(loop: Loop) -> None:
    day = days.today(replace(loop, recipe=loop.recipe.model_copy(update={"task": "similarity"})))
    prepared, *_ = day.steps()
    prepared.make()
    (reported,) = (step for step in day.steps() if step.name == "report")
    write_world(day.candidate, lineage={"dataset": Dataset.open(day.folder / "dataset").manifest.fingerprint})
    assert not reported.done()
    forget_in_dataset(day.folder / "dataset", "u5", dry_run=False)
    assert reported.done()


def test_a_day_whose_data_set_forgot_a_user_since_is_trained_again_until_its_bundle_is_there(loop: Loop) -> None:
    day = days.today(loop)
    prepared, trained, *_ = day.steps()
    prepared.make()
    (day.folder / "run").mkdir()
    fingerprint = Dataset.open(day.folder / "dataset").manifest.fingerprint
    (day.folder / "run" / "summary.json").write_text(json.dumps({"dataset": fingerprint}))
    assert trained.done()
    forget_in_dataset(day.folder / "dataset", "u5", dry_run=False)
    assert not trained.done()
    # `towers forget` has searched the candidate, too.
    write_world(day.candidate)
    assert trained.done()


def test_of_a_bundle_whose_day_is_gone_only_the_report_is_made_again(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = days.today(loop)
    write_world(day.bundle)
    assert [step.name for step in day.steps() if step.done()] == ["train", "export", "index", "publish"]
    asked = list[Path]()
    monkeypatch.setattr(report, "run", lambda bundle, *_, **__: asked.append(bundle))
    next(step for step in day.steps() if step.name == "report").make()
    assert asked == [day.bundle]


def test_two_at_once_are_refused(loop: Loop, tmp_path: Path) -> None:
    with (
        exclusive(loop.settings.work, "mine", LOCK),
        pytest.raises(BusyError, match="another `towers daily` is at work"),
    ):
        daily.run(tmp_path / "daily.toml")


# The end of what prepare refuses with one of its options as the remedy.
KEYS = r"`towers daily` has no options: format and on_bad_rows are keys of its settings, data\.\* of its recipe"


def test_a_step_that_fails_is_told_and_a_command_that_fails_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_settings(tmp_path)
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.csv").write_text("user_id,item_id,timestamp\nu1,i1,never\n")
    with pytest.raises(DataError, match=f"never.*; --on-bad-rows skip .*; {KEYS}$"):
        daily.run(config)
    (summary,) = told(tmp_path)
    assert (summary["outcome"], summary["at"], summary["bundle"]) == ("failed", "prepare", None)
    assert "never" in summary["reason"]
    config.write_text(SETTINGS.replace('"python3"', '"no-such-command"'))
    with pytest.raises(DataError, match="never"):
        daily.run(config)
    assert "warning: notify:" in capsys.readouterr().err


def test_a_reason_that_names_a_file_of_other_bytes_than_utf_8_is_told(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise DataError("K\udce4ufe.csv: the file is empty")

    monkeypatch.setattr(Day, "steps", lambda *_: (Step("prepare", lambda: False, fail),))
    with pytest.raises(DataError, match="the file is empty"):
        daily.run(tmp_path / "daily.toml")
    (summary,) = told(tmp_path)
    assert (summary["outcome"], summary["reason"]) == ("failed", "K\\udce4ufe.csv: the file is empty")


def test_a_summary_that_the_full_disk_does_not_take_hides_no_error(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(out: Path, **_: object) -> AbstractContextManager[Path]:
        raise DiskFullError(out, "No space left on device")

    def fail() -> None:
        raise DataError("of the step")

    monkeypatch.setattr("pipelines.launch.daily.daily.staged", full)
    monkeypatch.setattr(Day, "steps", lambda *_: (Step("train", lambda: False, fail),))
    with pytest.raises(DataError, match=r"^of the step$"):
        daily.run(tmp_path / "daily.toml")
    (summary,) = told(tmp_path)
    assert (summary["at"], summary["reason"]) == ("train", "of the step")
    assert re.search(r"warning: .*summary\.json: No space left on device\n", capsys.readouterr().err)
    # A day that went well is not finished without its summary.
    monkeypatch.setattr(Day, "steps", lambda *_: (Step("train", lambda: False, lambda: None),))
    with pytest.raises(DiskFullError):
        daily.run(tmp_path / "daily.toml")


def test_columns_without_a_known_name_are_told_where_their_keys_are(loop: Loop, tmp_path: Path) -> None:
    (tmp_path / "events" / "1.csv").write_text("who,what\nu1,i1\n")
    day = days.today(loop)
    with pytest.raises(DataError, match=rf"--set data\.columns\.user=NAME.*; {KEYS}$"):
        day.steps()[0].make()


def test_events_that_have_not_come_are_told(tmp_path: Path) -> None:
    config = write_settings(tmp_path)
    (tmp_path / "events").mkdir()
    with pytest.raises(DataError, match="events: the folder holds no file"):
        daily.run(config)
    (summary,) = told(tmp_path)
    assert (summary["outcome"], summary["at"]) == ("failed", "prepare")


WRONG = {
    'evnts = "events"': "evnts: no such key; .* did you mean 'events'",
    "keep = 0": "keep: .*greater than or equal to 1",
    'items = "items.csv"': "items: .*items.csv: no such file or folder",
    'format = "csv"\non_bad_rows = "hide"': "on_bad_rows: must be one of error, skip; got 'hide'",
    'format = "cvs"': "format: must be one of auto, csv, .*; got 'cvs'; did you mean 'csv'",
    'work = "gate.toml"': "work: .*gate.toml: not a folder",
    'root = "gate.toml"': "root: .*gate.toml: not a folder",
    'work = "bundles"': "root, work: both are .*/bundles; give the bundles and the days one each",
    'root = "s3://bucket/recall"': "root: must be on this machine; got 's3://bucket/recall'; .* the key 'store'$",
    'work = "s3://me:secret@bucket/days"': r"work: must be on this machine; got 's3://\*\*\*@bucket/days'; ",
    'items = "https://example.com/items.csv"': "items: must be on this machine; got .*; copy it here first$",
    'store = "bundles"': "store: must be a URL, such as s3://bucket/recall; got 'bundles'; .* the key 'root'$",
}


@pytest.mark.parametrize("lines", WRONG)
def test_a_wrong_setting_is_named(loop: Loop, tmp_path: Path, lines: str) -> None:
    write_settings(tmp_path, SETTINGS.replace("keep = 2\n", "") + lines + "\n")
    with pytest.raises(DataError, match=f"daily.toml: {WRONG[lines]}"):
        Loop.read(tmp_path / "daily.toml")


def test_a_recipe_is_beside_the_settings_or_comes_with_towers(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("mine.toml", "default"):
        (elsewhere / name).write_text("[train]\nepochs = 77\n")
    monkeypatch.chdir(elsewhere)
    without = SETTINGS.replace('recipe = "recipe.toml"\n', "")
    ready = load_config(RECIPES / "default.toml").train.epochs
    assert Loop.read(write_settings(tmp_path, without)).recipe.train.epochs == ready != 77
    file = write_settings(tmp_path, 'recipe = "mine.toml"\n' + without)
    with pytest.raises(
        ConfigError, match=rf"recipe: {re.escape(str(tmp_path / 'mine.toml'))}: no such recipe file; .*default"
    ):
        Loop.read(file)
    for name in ("mine.toml", "default"):
        (tmp_path / name).write_text("[train]\nepochs = 78\n")
        file = write_settings(tmp_path, f'recipe = "{name}"\n' + without)
        assert Loop.read(file).recipe.train.epochs == 78


RULE = '[[metrics]]\nmetric = "recall@10"\nbound = "low"\nat_least = 0\n'
SIMILARITY = 'task = "similarity"\n[similarity]\ncolumn = "group"\n[loss]\nname = "triplet"\n'
LATE = {
    "a metric": ("gate.toml", RULE.replace("recall", "recal"), "gate.toml: .*got 'recal@10'"),
    "relative": ("gate.toml", RULE + 'relative = "difference"\n', "rules: .*relative"),
    "agreement": ("gate.toml", "[agreement]\nat_least = 0.1\n", "rules: .*agreement: no bundle of .* is active; add"),
    "a key": ("recipe.toml", "[train]\nepoch = 3\n", "recipe: .*train.epoch: no such key"),
    "warm": ("recipe.toml", SIMILARITY, "warm: a recipe of task = 'similarity' has no warm start"),
}


KEYS_OF_RULES = (
    ("[[metrics]]\nmetric = 'recall@7'", "", "recall@7: the report of a day has lists of 10, 20, 50, 100"),
    ("[[metrics]]\nmetric = 'gini@010'", "", "gini@010: the report of a day has lists of 10, 20, 50, 100"),
    ("[[slices]]\nmetric = 'recall@30'", "", "recall@30: the report of a day has lists of 10, 20, 50, 100"),
    (
        "[[slices]]\nmetric = 'recall@20'",
        "groups = ['activity', 'country']",
        "recall@20: groups: the report of a day has no slices by country; it has training, activity, popularity, "
        "items, item age, new_items",
    ),
    (
        "[[slices]]\nmetric = 'ndcg@20'",
        "groups = ['activity', 'items', 'item age']",
        "ndcg@20: groups: slices by items, item age have recall alone",
    ),
)


@pytest.mark.parametrize(("head", "groups", "told"), KEYS_OF_RULES)
def test_a_rule_of_which_a_day_has_no_figure_is_refused_before_the_first_step(
    loop: Loop, tmp_path: Path, head: str, groups: str, told: str
) -> None:
    rule = f"{head}\nbound = 'value'\nat_least = 0\n{groups}\n"
    (tmp_path / "gate.toml").write_text(rule, encoding="utf-8")
    with pytest.raises(DataError) as error:
        daily.run(tmp_path / "daily.toml")
    assert str(error.value) == f"{tmp_path / 'daily.toml'}: rules: {tmp_path / 'gate.toml'}: {told}"
    assert not (tmp_path / "days").exists()
    # A day that has trained is no renewal.
    renewal = RULE + "[renewal]\n" + rule.replace("[[", "[[renewal.")
    (tmp_path / "gate.toml").write_text(renewal, encoding="utf-8")
    loop.refuse_late_mistakes(tmp_path / "daily.toml")


def test_the_groups_of_a_daily_report_are_allowed(loop: Loop, tmp_path: Path) -> None:
    rules = [
        f"[[slices]]\nmetric = '{metric}@{k}'\nbound = 'low'\nat_least = 0\ngroups = {groups}\n"
        for k in KS
        for metric, groups in (("recall", [*GROUPS_OF_A_DAY]), ("ndcg", ["training", "activity"]))
    ]
    (tmp_path / "gate.toml").write_text("".join(rules), encoding="utf-8")
    loop.refuse_late_mistakes(tmp_path / "daily.toml")


def test_a_store_that_is_a_folder_with_a_gate_is_refused_before_the_first_step(loop: Loop, tmp_path: Path) -> None:
    loop = stored(loop, tmp_path, "by-hand")
    (tmp_path / "store" / "gate.toml").write_text("", encoding="utf-8")
    with pytest.raises(GateError) as error:
        daily.run(tmp_path / "daily.toml")
    store = f"{tmp_path}/store"
    assert str(error.value) == f"file://{store}/gate.toml: this root has a gate; name the root by its path, {store}"
    assert not (tmp_path / "days").exists()


def test_a_root_that_requires_other_rules_is_told_before_the_first_step(loop: Loop, tmp_path: Path) -> None:
    root, rules = tmp_path / "bundles", tmp_path / "gate.toml"
    root.mkdir()
    (tmp_path / "other.toml").write_text(RULES + "# others\n", encoding="utf-8")
    require(tmp_path / "other.toml", root)
    digests = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()[:12] for name in ("gate.toml", "other.toml")]
    with pytest.raises(DataError) as error:
        daily.run(tmp_path / "daily.toml")
    assert str(error.value) == (
        f"{rules}: not the rules that {root} requires ({digests[0]}; those are other.toml, {digests[1]}); name them, "
        f"or `towers bundles gate {rules} --root {root}`"
    )
    assert not (tmp_path / "days").exists()
    require(rules, root)
    loop.refuse_late_mistakes(tmp_path / "daily.toml")
    write_settings(tmp_path, SETTINGS.replace("gate.toml", "bundles/gate.toml"))
    with pytest.raises(DataError, match=r"bundles/gate\.toml: the root keeps there which rules it requires; "):
        daily.run(tmp_path / "daily.toml")


def test_damaged_files_of_a_day_are_named_with_what_to_do(
    loop: Loop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(tmp_path, "2026-11-03-c", "2026-11-03T03:30")
    (day,) = all_days(loop)
    json_error = "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    for text, told in (("{", json_error), ("[]", "no object")):
        (day.folder / SUMMARY).write_text(text, encoding="utf-8")
        with pytest.raises(DataError) as error:
            _ = day.summary
        remedy = "remove it, and the day goes on: its bundle is activated again if another one answers"
        assert str(error.value) == f"{day.folder / SUMMARY}: damaged ({told}); {remedy}"
    reported = next(step for step in day.steps() if step.name == "report")
    (day.folder / "report").mkdir()
    for text, told in (("{", json_error), ("{}", "'bundle'")):
        (day.folder / "report" / REPORT).write_text(text, encoding="utf-8")
        assert not reported.done()
        warned = f"warning: {day.folder / 'report' / REPORT}: damaged ({told}); the report is made again\n"
        assert capsys.readouterr().err == warned


def test_a_damaged_summary_of_a_run_is_named_with_what_to_do(loop: Loop) -> None:
    day = days.today(loop)
    prepared, trained, *_ = day.steps()
    prepared.make()
    (day.folder / "run").mkdir()
    (day.folder / "run" / "summary.json").write_text("", encoding="utf-8")
    with pytest.raises(DataError) as error:
        trained.done()
    told = "damaged (Expecting value: line 1 column 1 (char 0))"
    run = day.folder / "run"
    assert str(error.value) == f"{run / 'summary.json'}: {told}; remove {run}, and the day is trained again"


@pytest.mark.parametrize("name", LATE)
def test_what_a_later_step_would_refuse_is_refused_before_the_first(loop: Loop, tmp_path: Path, name: str) -> None:
    file, text, reason = LATE[name]
    (tmp_path / file).write_text(text)
    with pytest.raises((ConfigError, DataError), match=reason):
        daily.run(tmp_path / "daily.toml")
    assert not (tmp_path / "days").exists()
