"""A bundle without an index causes a warning; one that is exact on purpose is not."""

import json
import logging
import shlex
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from pipelines.bundles.bulk import recall
from pipelines.service import query
from serving.bundle.index_writer import replace_index
from serving.bundle.manifest import IndexInfo
from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.http.app import create_app
from serving.recall.loading import missing_index
from serving.settings import Settings
from serving.telemetry.logs import JsonFormatter
from tests.support.worlds.serving import ITEMS, write_whole_world, write_world


def warning(bundle: Path, items: int = ITEMS) -> str:
    scan = f"every query scans all {items:,} items exactly"
    return f"{bundle} has no index: {scan}; `towers index --bundle {shlex.quote(str(bundle))}` builds one"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    write_world(tmp_path / "a plain one", items=1_200)
    return tmp_path / "a plain one"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two bundles: `bundle` has no index, `exact` none on purpose."""
    (tmp_path / "made").mkdir()
    bundle = write_whole_world(tmp_path / "made")
    for name in ("bundle", "exact"):
        shutil.copytree(bundle, tmp_path / "root" / name)
    replace_index(tmp_path / "root" / "exact", IndexInfo(kind="exact"))
    return tmp_path / "root"


def test_only_an_index_that_nobody_chose_is_missing(plain: Path) -> None:
    assert missing_index(Bundle.open(plain)) == warning(plain, 1_200)
    todo = "build one for the bundle that was published (`towers index`), and publish it under another name"
    of_copy = warning(plain, 1_200).replace(f"`towers index --bundle '{plain}'` builds one", todo)
    assert missing_index(Bundle.open(plain), copy=True) == of_copy
    replace_index(plain, IndexInfo(kind="exact"))
    assert missing_index(Bundle.open(plain)) is None


@pytest.mark.parametrize("command", ["query", "recall"])
def test_a_command_warns_on_stderr(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    def run(out: str) -> list[str]:
        if command == "query":
            query.run("u5", bundle=plain, k=3)
        else:
            recall.run(plain, 3, tmp_path / out)
        return [line for line in capsys.readouterr().err.splitlines() if "index" in line]

    assert run("one.parquet") == [f"warning: {warning(plain, 1_200)}"]
    replace_index(plain, IndexInfo(kind="exact"))
    assert run("two.parquet") == []


def test_the_service_warns_once_of_each_bundle_that_it_opens(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    versions = Versions(root)

    def warnings() -> list[str]:
        lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
        return [line["message"] for line in lines if line["level"] == "warning" and "index" in line["message"]]

    versions.activate("exact")
    with (
        caplog.at_level(logging.INFO, "uvicorn.error.serving"),
        TestClient(create_app(Settings(bundle=root))) as client,
    ):
        assert client.post("/recall", json={}).status_code == 200
        assert warnings() == []
        versions.activate("bundle")
        for _ in range(2):
            assert client.post("/admin/reload").json()["active"] == "bundle"
            assert client.post("/recall", json={}).status_code == 200
        assert warnings() == [warning(root / "bundle")]
