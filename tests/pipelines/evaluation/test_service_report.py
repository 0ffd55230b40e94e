"""`towers report --url` against a real service: the same lists as from the bundle, or a line that says why not."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import uvicorn

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout, seen
from pipelines.errors import DataError
from pipelines.evaluation import report
from pipelines.service import keys
from pipelines.service.answer import KEY
from serving.client.client import Client
from serving.http.app import create_app
from serving.settings import Settings
from tests.support.processes.running_service import eventually
from tests.support.served import served
from tests.support.worlds import columns
from tests.support.worlds.serving import DIMENSION, FEATURES, ITEM_FEATURES, save_towers

pytestmark = pytest.mark.slow

K = 10
UNKNOWN = 3  # users of whom the bundle knows nothing


@dataclass
class Served:
    dataset: Path
    bundle: Path
    folder: Path
    url: str
    key: str

    def report(self, name: str, bundle: Path | None = None, url: str | None = None) -> dict[str, Any]:
        out = self.folder / name
        return report.run(
            bundle or self.bundle, self.dataset, out, ks=[5, K], maps=[], url=url or self.url, overwrite=True
        )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("service-report")
    dataset = columns.write_dataset(columns.make_events(), folder)
    data = Dataset.open(dataset)
    offsets, items = seen(data, ("train", "valid"))
    known = data.manifest.users - UNKNOWN
    bundle = columns.write_bundle_of(
        dataset,
        DIMENSION,
        query_features=FEATURES,
        candidate_features=ITEM_FEATURES,
        item_attributes=pl.DataFrame({"title": [f"Title {row}" for row in range(data.manifest.items)]}),
        popularity=np.arange(data.manifest.items, 0, -1),
        query_ids=data.users["user_id"].head(known).to_list(),
        query_vectors=np.random.default_rng(2).normal(size=(known, DIMENSION)).astype(np.float32),
        seen_offsets=offsets[: known + 1],
        seen_items=items[: offsets[known]],
        write_towers=save_towers,
    )
    said = io.StringIO()
    with redirect_stdout(said):
        keys.add(folder / "keys.toml", "report", "admin")
    # Batches of seven at most: the report must find that out.
    settings = Settings(bundle=bundle, state=folder / "state", keys=folder / "keys.toml", max_batch=7)
    with served(uvicorn.Config(create_app(settings), port=0, log_config=None)) as url:
        yield Served(dataset, bundle, folder, url, said.getvalue().strip())


@pytest.fixture
def changed(service: Served, tmp_path: Path) -> Iterator[Served]:
    """The same with a state of its own, because events stay."""
    settings = Settings(bundle=service.bundle, state=tmp_path, keys=service.folder / "keys.toml", max_batch=7)
    with served(uvicorn.Config(create_app(settings), port=0, log_config=None)) as url:
        yield replace(service, url=url)


@pytest.fixture(autouse=True)
def key(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, service.key)


def test_the_service_recalls_what_exact_search_does(service: Served) -> None:
    content = service.report("same")
    assert content["metrics"]["service"] == content["metrics"]["exact"]
    rows = pl.read_parquet(service.folder / "same" / "per_user.parquet")
    assert rows.height == columns.USERS and rows["exact_recall@10"].sum() > 0
    assert rows["service_ndcg@10"].to_list() == rows["exact_ndcg@10"].to_list()
    nothing = {"value": 0.0, "low": 0.0, "high": 0.0}
    assert content["recall_lost"] == {
        pair: {"recall@5": nothing, "recall@10": nothing} for pair in ("exact_to_index", "index_to_service")
    }
    assert content["service"] == {
        "url": service.url,
        "model_version": "test-1",
        "users": columns.USERS,
        "model_versions": {"test-1": columns.USERS},
        "sources": {"user": columns.USERS - UNKNOWN, "popular": UNKNOWN},
        "other_source": 0,
        "failed": {},
        "unknown_items": {"items": 0, "places": 0},
    }
    page = (service.folder / "same" / "report.html").read_text(encoding="utf-8")
    assert "model, by service" in page and service.url in page and "test-1 (40 users)" in page
    assert service.key not in page + json.dumps(content)


def test_live_items_and_events_are_told(changed: Served, capsys: pytest.CaptureFixture[str]) -> None:
    data = Dataset.open(changed.dataset)
    vectors, queries = (np.load(changed.bundle / f"{name}_vectors.npy") for name in ("item", "query"))
    live = np.eye(DIMENSION, dtype=np.float32)[2] + 5 * np.eye(DIMENSION, dtype=np.float32)[7]
    held = heldout(data, "test")
    shown = 0
    for place, user in enumerate(held.users):
        # A user without a vector gets popular items; a live one has no count, and comes last.
        masked = {*held.seen_items[held.seen_offsets[place] : held.seen_offsets[place + 1]].tolist()}
        if user < len(queries):
            better = sum(vectors[user_item] @ queries[user] > live @ queries[user] for user_item in others(masked))
            shown += better < K
        else:
            shown += len(others(masked)) < K
    with Client(changed.url, api_key=changed.key) as client:
        client.put_item("live", {"group": "g2", "place": 5.0}, {"title": "Live"})
        client.add_events([{"id": "e1", "user_id": "u1", "item_id": "i1", "time": 1_800_000_000}])
        eventually(lambda: "live" in dict(client.recall(k=21).items), "the live item is there")
    content = changed.report("live")
    found = content["service"]["unknown_items"]
    # The user with the event is answered from another vector, so their list may differ by the live item.
    assert found["items"] == 1 and abs(found["places"] - shown) <= 1 and found["places"] > 0
    assert content["service"]["other_source"] == 1 and content["service"]["sources"]["history"] == 1
    said = capsys.readouterr().out
    assert f"warning: live items that the data set lacks, 1, fill {found['places']} places; each is a miss" in said
    assert "warning: the service answered 1 user from other than their stored vector" in said
    assert "live items that the data set lacks" in (changed.folder / "live" / "report.html").read_text(encoding="utf-8")


def others(masked: set[int]) -> list[int]:
    return [item for item in range(columns.ITEMS) if item not in masked]


@pytest.mark.parametrize("given", ["", "not-the-key"])
def test_without_the_right_key_the_report_names_the_variable(
    service: Served, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, given)
    with pytest.raises(DataError, match=rf"{service.url}: .*the variable {KEY} gives the key"):
        service.report("refused")
    assert not (service.folder / "refused").exists()


def test_a_key_that_cannot_be_one_is_the_variable_s(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "with a space")
    with pytest.raises(DataError, match=f"^{KEY}: must be printable ASCII without spaces"):
        service.report("refused")


def test_a_service_of_another_bundle_is_refused(service: Served) -> None:
    other = columns.write_bundle_of(service.dataset, name="other", model_version="test-2")
    with pytest.raises(DataError, match=r"the service answers from the model test-1, and .*other is test-2"):
        service.report("refused", bundle=other)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "nothing answers there"),
        ("nonsense", "^--url: must be like http://127.0.0.1:8000, got 'nonsense'"),
        ("ftp://x", "^--url: must be like http://127.0.0.1:8000, got 'ftp://x'"),
        ("http://x:port", "^--url: 'http://x:port': Invalid port: 'port'"),
    ],
)
def test_no_service_is_one_clear_line(service: Served, url: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        service.report("refused", url=url)
