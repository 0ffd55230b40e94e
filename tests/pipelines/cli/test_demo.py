"""`towers demo` on a small world: every step, the real service, and what it shows."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import polars as pl
import pytest

from benchmarks.readme.demo import BEGIN, END, with_verdict
from pipelines import console
from pipelines.cli import demo_service, demo_view
from pipelines.errors import DataError
from pipelines.ingest.synthetic import synth
from serving.files.staging import OutputExistsError
from tests.support.processes.running_service import eventually
from tests.support.terminal import CONTROL
from tests.support.worlds.serving import save_towers, write_world


@pytest.mark.long
def test_the_whole_path_ends_with_answers_over_http(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pipelines.cli import demo

    out = tmp_path / "demo"
    made = ("world/truth/item_vectors.npy", "dataset/dataset.json", "run/summary.json")
    for name in (*made, "bundle/manifest.json", "report/report.json"):
        (out / name).parent.mkdir(parents=True)
        (out / name).touch()
        (out / name).with_name("of an earlier demo").touch()
    (out / "notes.txt").touch()
    (out / demo.MARK).touch()

    answers = demo.run(out, users=600, items=1_000, events=12_000, epochs=1)

    assert sorted(path.name for path in out.rglob("of an earlier demo")) == []
    assert sorted(path.name for path in out.iterdir()) == [
        *(
            ".dataset.baselines",
            ".dataset.digests",
            ".towers-demo",
            "bundle",
            "dataset",
            "notes.txt",
            "report",
            "run",
            "service.log",
            "world",
        ),
    ]
    assert [asked.answer["source"] for asked in answers] == ["user", "features", "history", "popular"]
    assert [len(asked.answer["items"]) for asked in answers] == [demo.SHOWN] * 4
    user, items = answers[0].body["user_id"], answers[0].answer["items"]
    ids, titles = best_by_hand(out / "bundle", user, demo.SHOWN)
    assert [item["id"] for item in items] == ids
    streams = capsys.readouterr()
    shown, said = streams.out, streams.err.splitlines()
    assert [title for title in titles if title not in shown] == []
    recalls = recall_of_known_users(out)
    assert recalls[user] == sorted(recalls.values())[len(recalls) // 2]
    assert f"User {user}, with median recall@{demo.SHOWN} among the test users" in shown
    metrics = json.loads((out / "report" / "report.json").read_text())["metrics"]
    assert {"exact", "index", "popularity", "item_knn", "best_attainable"} <= set(metrics)
    for figures in metrics.values():
        assert all(f"{figures[f'recall@{k}']['value']:.4f}" in shown for k in (10, 50, 100))
    synth.run(tmp_path / "plain", users=600, items=1_000, events=12_000)
    truths = [np.load(world / "truth" / "item_vectors.npy") for world in (out / "world", tmp_path / "plain")]
    assert (truths[0] != truths[1]).any(), "the demo's world has fashion"
    assert f"serve --bundle {out / 'bundle'} --window\n" in shown  # for without it there is no page
    assert f"{(out / 'report' / 'report.html').as_uri()}\n" in shown
    assert f"{demo_view.SERVICE}{demo_view.PAGE}\n" in shown
    assert said[0] == "demo: synth, prepare, check, train, export, index, report, serve"
    assert [line.split(":")[0] for line in said if line.startswith("[")] == [
        f"[{number}/8] {name}" for number, name in enumerate(said[0].removeprefix("demo: ").split(", "), start=1)
    ]
    assert said[-1] == f"next: {console.towers()} serve --bundle {out / 'bundle'} --window"
    assert CONTROL.findall("".join(said)) == []
    page = with_verdict(f"The verdict:\n{BEGIN}old\n{END}\nafter\n", out / "report")
    verdict = next(line for line in shown.splitlines() if line.startswith("recall@20 "))
    assert page == f"The verdict:\n{BEGIN}```text\n{verdict}\n```\n{END}\nafter\n"


@pytest.mark.parametrize("name", ["world", "dataset", "run", "bundle", "report", "service.log"])
def test_what_no_demo_wrote_is_not_replaced(tmp_path: Path, name: str) -> None:
    from pipelines.cli import demo

    (tmp_path / name).mkdir()
    (tmp_path / name / "own").touch()
    with pytest.raises(OutputExistsError, match=f"{tmp_path / name} already exists, and no demo wrote it"):
        demo.run(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == [name, "own"]


def best_by_hand(bundle: Path, user: str, k: int) -> tuple[list[str], list[str]]:
    """Ids and titles of the k best unseen items, by one dot product and its prior after the other over the files."""
    row = pl.read_parquet(bundle / "query_ids.parquet")["query_id"].to_list().index(user)
    ids = pl.read_parquet(bundle / "item_ids.parquet")["item_id"].to_list()
    titles = pl.read_parquet(bundle / "item_attributes.parquet")["title"].to_list()
    offsets, seen = np.load(bundle / "seen_offsets.npy"), np.load(bundle / "seen_items.npy")
    masked = set(seen[offsets[row] : offsets[row + 1]].tolist())
    query, vectors = np.load(bundle / "query_vectors.npy")[row], np.load(bundle / "item_vectors.npy")
    prior, shares = json.loads((bundle / "manifest.json").read_text())["prior"], np.load(bundle / "item_prior.npy")
    now = max(0.0, prior["now"] + prior["length"] * np.log1p(offsets[row + 1] - offsets[row]))
    scores = [
        (-float(np.dot(query, vector) + now * recent - prior["past"] * past), item)
        for item, (vector, (recent, past)) in enumerate(zip(vectors, shares, strict=True))
        if item not in masked
    ]
    best = [item for _, item in sorted(scores)[:k]]
    return [ids[item] for item in best], [titles[item] for item in best]


def recall_of_known_users(out: Path) -> dict[str, float]:
    """The report's recall@20 of each test user in the bundle; a test user has an item in the test and not before."""
    taken: list[dict[int, set[int]]] = []
    for splits in (("train", "valid"), ("test",)):
        events: dict[int, set[int]] = {}
        for split in splits:
            arrays = (np.load(out / "dataset" / split / f"{name}.npy").tolist() for name in ("user", "item"))
            for user, item in zip(*arrays, strict=True):
                events.setdefault(user, set()).add(item)
        taken.append(events)
    before, after = taken
    users = [user for user in sorted(after) if after[user] - before.get(user, set())]
    names = pl.read_parquet(out / "dataset" / "users.parquet")["user_id"].to_list()
    known = {*pl.read_parquet(out / "bundle" / "query_ids.parquet")["query_id"].to_list()}
    values = pl.read_parquet(out / "report" / "per_user.parquet")["exact_recall@20"].to_list()
    return {names[user]: value for user, value in zip(users, values, strict=True) if names[user] in known}


def test_a_service_that_does_not_start_is_named_with_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    with (
        pytest.raises(DataError, match=r"ended with 2, see .*service\.log: error: .*no-bundle"),
        demo_service.running(tmp_path / "no-bundle", log),
    ):
        pytest.fail("a service without a bundle became ready")
    assert log.read_text().startswith("error: ")


@pytest.mark.long
def test_the_service_has_neither_the_settings_nor_the_proxy_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    monkeypatch.setenv("TOWERS_MAX_K", "2")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # where nothing listens
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with demo_service.running(tmp_path / "bundle", tmp_path / "service.log") as url:
        (asked,) = demo_service.ask(url, [("u1", {"user_id": "u1", "k": 20})])
    assert len(asked.answer["items"]) == 20


@pytest.mark.long
def test_the_service_ends_with_a_demo_that_is_killed(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    words = f"bundle, log = Path({str(tmp_path / 'bundle')!r}), Path({str(tmp_path / 'service.log')!r})"
    code = f"""
import os, signal
from pathlib import Path
from pipelines.cli.demo_service import running
{words}
with running(bundle, log) as url:
    print(url, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    address = urlsplit(killed.stdout.strip())

    def gone() -> bool:
        try:
            socket.create_connection((address.hostname or "", address.port or 0), timeout=1).close()
        except ConnectionRefusedError:
            return True
        except TimeoutError:  # it stops, and takes no new connection
            return False
        return False

    eventually(gone, "the service is gone", within_s=30)


@pytest.fixture
def refusing_service() -> Iterator[str]:
    class Refuse(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b'{"error": {"code": "not_ready"}}')

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Refuse)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_answer_that_is_not_200_is_an_error_with_question_and_answer(refusing_service: str) -> None:
    with pytest.raises(DataError, match=r"'user_id': 'u7'.*status 503.*not_ready"):
        demo_service.ask(refusing_service, [("a known user", {"user_id": "u7"})])
