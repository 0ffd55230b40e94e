"""A service that follows a store, S3 or Google Cloud Storage: published, activated, rolled back, damaged, and away."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from pipelines.bundles import activate, publish
from pipelines.service import serve
from serving.errors import BundleError
from serving.http.app import create_app
from serving.service.mirror import STATE
from serving.service.store import Store
from serving.settings import Settings
from tests.support.exposition import Exposed
from tests.support.object_store import BUCKET, ObjectStore, local_gs, local_s3
from tests.support.processes.running_service import RunningService, eventually
from tests.support.worlds.serving import write_versions

pytestmark = pytest.mark.long

VECTORS = f"{BUCKET}/recall/v2/item_vectors.npy"


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    with local_s3() if request.param == "s3" else local_gs(tmp_path / "gs") as store:
        yield store


@pytest.fixture
def url(store: ObjectStore) -> str:
    return f"{store.bucket}/recall"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_versions(tmp_path_factory.mktemp("bundles"), "v1", "v2", "v3")


def version(client: TestClient) -> str:
    answer = client.post("/recall", json={"user_id": "u1", "k": 3})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["model_version"])


def test_a_service_follows_the_store_and_no_fault_of_the_store_ends_it(
    store: ObjectStore, url: str, bundles: Path, tmp_path: Path
) -> None:
    for name in ("v1", "v2", "v3"):
        publish.publish(bundles / name, url)
    # Marks of folders, as consoles of stores make them. The emulator of the other store keeps objects in folders.
    for mark in ("recall/", "recall/v1/") if store.scheme == "s3" else ():
        store.system.pipe_file(f"{BUCKET}/{mark}", b"")
    activate.activate(url, "v1")
    settings = Settings(bundle=url, cache=tmp_path / "copies", poll_s=0, index_sample_s=0)
    with TestClient(create_app(settings)) as client:

        def reloaded() -> tuple[int, dict[str, object]]:
            answer = client.post("/admin/reload")
            return answer.status_code, answer.json()

        def refused() -> tuple[list[str], list[float]]:
            """By /readyz, and by the metric once it is written."""
            names = client.get("/readyz").json().get("refused", [])
            wanted = [float(len(names))]
            eventually(
                lambda: Exposed(client.get("/metrics").text).of("towers_bundles_refused") == wanted, "the metric"
            )
            return names, wanted

        assert (version(client), refused()) == ("v1", ([], [0.0]))
        activate.activate(url, "v2")
        assert version(client) == "v1"
        assert reloaded() == (200, {"active": "v2", "canary": None, "refused": {}})
        assert version(client) == "v2"
        activate.rollback(url)
        assert reloaded()[1]["active"] == version(client) == "v1"

        # While v2 is in no role its copy goes.
        activate.activate(url, "v3")
        reloaded()
        assert sorted(path.name for path in settings.folder.iterdir() if path.is_dir()) == ["v1", "v3"]
        whole = store.system.cat_file(VECTORS)
        store.system.pipe_file(VECTORS, whole[:-1] + bytes([whole[-1] ^ 1]))
        activate.activate(url, "v2")
        altered = {"v2": "v2/item_vectors.npy: altered: its SHA-256 is not the manifest's"}
        assert reloaded() == (409, {"active": "v3", "canary": None, "refused": altered})
        assert (version(client), refused()) == ("v3", (["v2"], [1.0]))
        store.system.rm(VECTORS)
        assert reloaded() == (409, {"active": "v3", "canary": None, "refused": {"v2": "v2/item_vectors.npy: missing"}})
        publish.publish(bundles / "v2", url)
        assert reloaded() == (200, {"active": "v2", "canary": None, "refused": {}})
        assert (version(client), refused()) == ("v2", ([], [0.0]))

        store.stop()
        status, told = reloaded()
        assert (status, told["active"], list(told["refused"])) == (409, "v2", ["active.json"])  # type: ignore[call-overload]
        assert (version(client), refused()) == ("v2", (["active.json"], [1.0]))
        store.start()
        assert reloaded() == (200, {"active": "v2", "canary": None, "refused": {}})

    # A start without the store answers from the copies; without either it is an error.
    store.stop()
    os.utime(settings.folder / STATE, (0, 0))  # a start some time later
    with TestClient(create_app(settings)) as client:
        assert version(client) == "v2" and client.get("/readyz").json()["refused"] == ["active.json"]
    with pytest.raises(BundleError, match=rf"^{url}/active.json: cannot be read: "):
        serve.run(bundle=url, cache=tmp_path / "empty", port=0)


def test_workers_share_the_copies_and_swap_together(
    store: ObjectStore, url: str, bundles: Path, tmp_path: Path
) -> None:
    for name in ("v1", "v2", "v3"):
        publish.publish(bundles / name, url)
    activate.activate(url, "v1")
    with RunningService(url, workers=2, cache=tmp_path / "copies", poll_s=0) as service:

        def answers(name: str) -> bool:
            body = {"user_id": "u1", "k": 3}
            answer = httpx.post(f"{service.url}/recall", json=body, timeout=30, verify=False).json()
            return bool(answer["model_version"] == name)

        eventually(lambda: answers("v1"), "both workers answer")
        activate.activate(url, "v2")
        service.client.post("/admin/reload").raise_for_status()  # to one of them
        eventually(lambda: answers("v2"), "both workers have swapped")
        activate.activate(url, "v3")
        service.process.send_signal(signal.SIGHUP)
        eventually(lambda: answers("v3"), "SIGHUP reaches the store", within_s=30)
    with RunningService(url, workers=2, cache=tmp_path / "copies", poll_s=0.2) as service:
        activate.rollback(url)
        eventually(lambda: answers("v2"), "the service looks by itself", within_s=30)


def test_a_removed_bundle_leaves_no_object_and_takes_no_other(store: ObjectStore, url: str, bundles: Path) -> None:
    for name in ("v1", "v2"):
        publish.publish(bundles / name, url)
    for _ in range(2):
        Store(url).remove("v1")
        assert Store(url).objects("v1") == {}
    assert Store(url).manifests().keys() == {"v2"}
    assert store.system.exists(VECTORS)
