"""The whole path, as a user runs it, on a world whose answer is known: what `POST /recall` must return."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import polars as pl
import pytest

from pipelines.errors import DataError
from pipelines.service import query
from tests.support.processes.running_service import RunningService

GROUPS, USERS, ITEMS = 4, 120, 40
HUNDRED_MB = 100 * 2**20
RECIPE = """
[features.query]
user_id = { kind = "id", mask_share = 0.3 }
team = { kind = "categorical", mask_share = 0.3 }
history = { kind = "history", max_length = 10, mask_share = 0.3 }

[features.candidate]
item_id = { kind = "id" }

[model]
dimension = 16

[optimizer]
learning_rate = 0.02

[train]
epochs = 30
batch_size = 128
patience = 30
metric = "recall@1"
"""


# Each command line as `towers` gets it; one process imports TensorFlow for all of them.
COMMANDS = """
import json, sys
from pipelines.cli import app
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        app.main()
    except SystemExit as ended:
        if ended.code:
            raise
"""


def towers(*lines: tuple[str | Path, ...]) -> None:
    words = json.dumps([[str(word) for word in line] for line in lines])
    done = subprocess.run([sys.executable, "-c", COMMANDS, words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users of team g take the items of group g, all but one or two: those are what must be recalled."""
    folder = tmp_path_factory.mktemp("end_to_end")
    taken = []
    for user in range(USERS):
        own = [item for item in range(ITEMS) if item % GROUPS == user % GROUPS]
        start = user // GROUPS % len(own)
        order = own[start:] + own[:start]
        taken += [(f"u{user}", f"i{item}", 1_600_000_000 + 97 * place + user) for place, item in enumerate(order)]
    frame = pl.DataFrame(taken, schema=["user_id", "item_id", "timestamp"], orient="row")
    frame.write_csv(folder / "events.csv")
    teams = {"user_id": [f"u{u}" for u in range(USERS)], "team": [f"t{u % GROUPS}" for u in range(USERS)]}
    pl.DataFrame(teams).write_csv(folder / "users.csv")
    titles = {"item_id": [f"i{item}" for item in range(ITEMS)], "title": [f"Title {item}" for item in range(ITEMS)]}
    pl.DataFrame(titles).write_csv(folder / "items.csv")
    (folder / "recipe.toml").write_text('[data]\nsplit = "leave_last_out"\n' + RECIPE)
    data = ("--events", folder / "events.csv", "--users", folder / "users.csv", "--items", folder / "items.csv")
    recipe = ("--config", folder / "recipe.toml")
    towers(
        ("prepare", *data, *recipe, "--out", folder / "dataset"),
        ("check", *recipe, "--dataset", folder / "dataset"),
        ("train", "--dataset", folder / "dataset", *recipe, "--out", folder / "run"),
        ("export", "--run", folder / "run", "--out", folder / "bundle"),
        ("index", "--bundle", folder / "bundle"),
        ("report", "--bundle", folder / "bundle", "--dataset", folder / "dataset", "--out", folder / "report"),
    )
    return folder / "bundle"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gets what the service says on stderr, a line for each module that it imports among it."""
    return tmp_path_factory.mktemp("log") / "service.log"


@pytest.fixture(scope="module")
def service(bundle: Path, log: Path) -> Iterator[RunningService]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPROFILEIMPORTTIME", "1")
        service = RunningService(bundle, log=log)
    with service:
        yield service
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(timeout=30) in (0, -signal.SIGTERM)  # uvicorn drains, then ends by the signal
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{service.url}/healthz", timeout=5)


def recalled(service: RunningService, **body: object) -> tuple[list[str], str]:
    answer = service.client.post("/recall", json=body)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    return [item["id"] for item in content["items"]], content["source"]


def group_of(item: str) -> int:
    return int(item[1:]) % GROUPS


def left_of(user: int) -> int:
    """The item that is left: the last of the user's order, the test event."""
    own = [item for item in range(ITEMS) if item % GROUPS == user % GROUPS]
    return own[(user // GROUPS - 1) % len(own)]


@pytest.mark.slow
def test_a_known_user_gets_the_one_item_of_their_group_that_is_left(service: RunningService) -> None:
    hits = 0
    for user in range(USERS):
        ids, source = recalled(service, user_id=f"u{user}", k=1)
        assert source == "user"
        hits += ids == [f"i{left_of(user)}"]
    assert hits == USERS


@pytest.mark.slow
def test_query_shows_what_the_service_answers(service: RunningService, capsys: pytest.CaptureFixture[str]) -> None:
    query.run("u5", url=service.url, k=2)
    shown = capsys.readouterr().out
    assert f"i{left_of(5)} " in shown and f"Title {left_of(5)} " in shown
    with pytest.raises(DataError, match="--k must be at most 1000, got 1001: "):
        query.run("u5", url=service.url, k=1_001)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_features_and_histories_of_new_users_find_their_group(service: RunningService, group: int) -> None:
    ids, source = recalled(service, features={"team": f"t{group}"}, k=ITEMS // GROUPS)
    assert source == "features"
    assert {group_of(item) for item in ids} == {group}
    history = [f"i{group}", f"i{group + GROUPS}", f"i{group + 2 * GROUPS}"]
    ids, source = recalled(service, history=history, k=ITEMS // GROUPS - 3)
    assert source == "history"
    assert {group_of(item) for item in ids} == {group}
    assert not set(ids) & set(history)


@pytest.mark.slow
def test_a_service_of_exported_towers_loads_neither_towers_nor_keras(service: RunningService, log: Path) -> None:
    assert recalled(service, features={"team": "t1"})[1] == "features"
    lines = [line for line in log.read_text().splitlines() if line.startswith("import time:")]
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert {"serving", "tensorflow"} <= loaded
    assert not loaded & {"towers", "tensorflow_recommenders", "keras", "tf_keras", "matplotlib", "sklearn", "fsspec"}


@pytest.mark.slow
def test_an_unknown_user_gets_popular_items(service: RunningService) -> None:
    ids, source = recalled(service, user_id="nobody", k=5)
    assert source == "popular"
    assert len(ids) == 5
    assert recalled(service, features={}, k=5) == (ids, "popular")


@pytest.mark.slow
def test_a_hundred_megabytes_are_never_held(service: RunningService) -> None:
    def parts() -> Iterator[bytes]:
        yield b'{"history":["'
        for _ in range(HUNDRED_MB // 2**16):
            yield b"x" * 2**16

    before = peak_kb(service.process.pid)
    for _ in range(2):
        answer = service.client.post("/recall", content=parts(), headers={"content-type": "application/json"})
        assert answer.status_code == 413
    # The body may take 1 MB; what uvicorn had read before the refusal, and noise, come on top.
    assert peak_kb(service.process.pid) - before < 20 * 1024
    assert len(service.ids(k=3)) == 3


def peak_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


@pytest.mark.slow
def test_the_report_knows_the_answer_too(bundle: Path) -> None:
    report = json.loads((bundle.parent / "report" / "report.json").read_text())
    assert report["metrics"]["exact"]["recall@10"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    per_user = pl.read_parquet(bundle.parent / "report" / "per_user.parquet")
    assert per_user.height == USERS
