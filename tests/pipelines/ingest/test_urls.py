"""Input behind URLs, by fsspec: in memory, and in local object stores that speak S3 and Google Cloud Storage."""

import gzip
import io
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.ingest import prepare
from tests.support.object_store import BUCKET, ObjectStore, local_gs, local_s3
from towers.config.sections import DataConfig

ALL_TRAIN = DataConfig(valid_share=0, test_share=0)
pytestmark = pytest.mark.usefixtures("temporary")

Put = Callable[[str, bytes], str]


@pytest.fixture
def in_memory() -> Iterator[Put]:
    memory = pytest.importorskip("fsspec", reason="needs the extra 'cloud'").filesystem("memory")

    def put(name: str, content: bytes) -> str:
        memory.pipe_file(f"/shop/{name}", content)
        return f"memory://shop/{name}"

    yield put
    memory.rm("/shop", recursive=True)


def into(store: ObjectStore) -> Put:
    def put(name: str, content: bytes) -> str:
        store.system.pipe_file(f"{BUCKET}/{name}", content)
        return f"{store.bucket}/{name}"

    return put


@pytest.fixture
def in_s3() -> Iterator[Put]:
    with local_s3() as store:
        yield into(store)


@pytest.fixture
def in_gs(tmp_path: Path) -> Iterator[Put]:
    with local_gs(tmp_path / "gs") as store:
        yield into(store)


@pytest.fixture(params=["in_memory", "in_s3", "in_gs"])
def put(request: pytest.FixtureRequest) -> Put:
    """Writes a file to a store; gives its URL."""
    chosen: Put = request.getfixturevalue(request.param)
    return chosen


def opened(tmp_path: Path, events: str, **options: object) -> Dataset:
    prepare.run(ALL_TRAIN, events, tmp_path / "out", overwrite=True, **options)
    return Dataset.open(tmp_path / "out")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Not even the URL."""


def parquet(**columns: list[str]) -> bytes:
    file = io.BytesIO()
    pl.DataFrame(columns).write_parquet(file)
    return file.getvalue()


def test_a_file_and_its_items_are_read_from_their_urls(tmp_path: Path, temporary: Path, put: Put) -> None:
    events = put("log.csv.gz", gzip.compress(b"user,item\nu1,a\nu2,b\n"))
    data = opened(tmp_path, events, items=put("goods.parquet", parquet(item=["a", "b", "c"], title=["A", "B", "C"])))
    assert data.items.sort("item_id")["title"].to_list() == ["A", "B", "C"]
    assert data.users["user_id"].to_list() == ["u1", "u2"]
    assert data.manifest.source.files == ("log.csv.gz", "goods.parquet")
    assert list(temporary.iterdir()) == []


def test_a_folder_of_partitions_is_read_from_its_url(tmp_path: Path, put: Put) -> None:
    put("events/day=2026-11-01/x.parquet", parquet(user=["u1"], item=["a"]))
    put("events/day=2026-11-02/x.parquet", parquet(user=["u2"], item=["b"]))
    put("events/items.csv.gz", gzip.compress(b"item,title\na,A\nb,B\n"))
    put("events/old/x.parquet", b"not read")
    url = put("events/_SUCCESS", b"").removesuffix("/_SUCCESS")
    data = opened(tmp_path, url + "/")
    context = data.context("train")
    assert context is not None and sorted(context.collect()["day"].to_list()) == ["2026-11-01", "2026-11-02"]
    assert data.items["title"].to_list() == ["A", "B"]
    assert data.manifest.source.files == ("day=2026-11-01/x.parquet", "day=2026-11-02/x.parquet", "items.csv.gz")


def test_marks_of_folders_are_no_files(tmp_path: Path, in_s3: Put) -> None:
    """Consoles of stores make them: empty objects whose names end with a slash."""
    url = in_s3("events/", b"").removesuffix("/")
    in_s3("events/day=2026-11-01/", b"")
    in_s3("events/day=2026-11-01/x.parquet", parquet(user=["u1", "u2"], item=["a", "b"]))
    data = opened(tmp_path, url)
    assert data.manifest.source.files == ("day=2026-11-01/x.parquet",) and data.manifest.users == 2


def test_a_signed_url_is_read_and_its_signature_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "log.csv").write_text("user,item\nu1,a\nu2,b\n")
    (tmp_path / "files" / "goods.csv.gz").write_bytes(gzip.compress(b"item,title\na,A\nb,B\n"))
    handler = partial(Quiet, directory=str(tmp_path / "files"))
    signed = f"X-Amz-Credential=me%2F20261201&GoogleAccessId=me@shop&X-Amz-Signature={300 * 'f'}"
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            root = f"http://127.0.0.1:{server.server_port}"
            data = opened(tmp_path, f"{root}/log.csv?{signed}", items=f"{root}/goods.csv.gz?{signed}")
            with pytest.raises(DataError, match=rf"^{root}/none.csv: no such file or folder$"):
                opened(tmp_path, f"{root}/none.csv?{signed}")
            (tmp_path / "files" / "download").write_bytes(gzip.compress(b"user,item\nu1,a\n"))
            named = prepare.run(ALL_TRAIN, f"{root}/download?{signed}&file=x%2Flog.csv.gz", tmp_path / "named")
            cached = prepare.run(ALL_TRAIN, f"simplecache::{root}/log.csv?{signed}", tmp_path / "cached")
        finally:
            server.shutdown()
    assert data.items["title"].to_list() == ["A", "B"] and data.manifest.source.files == ("log.csv", "goods.csv.gz")
    assert (named.source.files, named.users) == (("log.csv.gz",), 1)
    assert (cached.source.files, cached.users) == (("log.csv",), 2)
    assert "Signature" not in capsys.readouterr().err
    with pytest.raises(DataError, match=rf"^{root}/log.csv: ") as refused:
        opened(tmp_path, f"{root}/log.csv?{signed}")
    assert "Signature" not in str(refused.value)


def test_sequences_are_read_from_their_url(tmp_path: Path, put: Put) -> None:
    data = opened(tmp_path, put("sequences.txt.gz", gzip.compress(b"ada tea jam\nbob jam\n")))
    assert data.manifest.source.format == "sequences" and data.manifest.events["train"] == 3
    twice = put("twice/sequences.txt", b"ada tea\nada jam\n")
    with pytest.raises(DataError, match=rf"^{twice}, row 2, column 'user_id': a second line of this user"):
        opened(tmp_path, twice.removesuffix("/sequences.txt"))


def test_a_mistake_names_the_url(tmp_path: Path, temporary: Path, put: Put) -> None:
    bad = put("bad/log.csv.gz", gzip.compress(b"user,item\nu1,a\nu2,\n"))
    folder = bad.removesuffix("/log.csv.gz")
    with pytest.raises(DataError, match=rf"^{bad}, row 3, column 'item': no id"):
        opened(tmp_path, bad)
    with pytest.raises(DataError, match=rf"^{bad}, row 3, column 'item': no id"):
        opened(tmp_path, folder)
    put("bad/notes.parquet", b"")
    with pytest.raises(DataError, match=rf"^{folder}: cannot tell the format of log.csv.gz, notes.parquet"):
        opened(tmp_path, folder)
    with pytest.raises(DataError, match=rf"^{bad}x: no such file or folder$"):
        opened(tmp_path, f"{bad}x")
    with pytest.raises(DataError, match=rf"^{folder}: no such file$"):
        opened(tmp_path, put("good.csv", b"user,item\nu1,a\n"), items=folder)
    put("far/old/log.csv", b"user,item\nu1,a\n")
    far = folder.removesuffix("bad") + "far"
    with pytest.raises(DataError, match=rf"^{far}: the folder holds no file$"):
        opened(tmp_path, far)
    assert list(temporary.iterdir()) == []


def test_a_bucket_that_does_not_exist_is_an_error(tmp_path: Path, in_s3: Put) -> None:
    with pytest.raises(DataError, match=r"^s3://none/log.csv: no such file or folder$"):
        opened(tmp_path, "s3://none/log.csv")


@pytest.mark.parametrize(("url", "missing"), [("s3://b/k.csv", "fsspec.core"), ("abfs://b/k.csv", "adlfs")])
def test_a_missing_package_is_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, missing: str
) -> None:
    if missing != "fsspec.core":
        pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        DataError, match=rf"^{url}: URLs need the extra 'cloud': pip install 'towers-recall\[cloud\]' \("
    ):
        opened(tmp_path, url)


def test_an_unknown_kind_of_url_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    with pytest.raises(DataError, match=r"^ftpx://b/k.csv: cannot be read: Protocol not known: ftpx"):
        opened(tmp_path, "ftpx://b/k.csv")


def test_no_error_shows_the_password_of_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str) -> None:
        raise PermissionError(f"403 for {url}")

    pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    with pytest.raises(DataError, match=r"^https://\*\*\*@b/k\.csv: cannot be read: 403 for https://\*\*\*@b/k\.csv$"):
        opened(tmp_path, "https://anna:s3cret@b/k.csv")


def test_a_local_path_loads_no_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    (tmp_path / "e.csv").write_text("user,item\nu1,a\n")
    assert opened(tmp_path, str(tmp_path / "e.csv")).manifest.users == 1


def test_a_file_of_movielens_behind_a_url_is_read_without_those_beside_it_and_says_so(
    in_memory: Put, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_memory("ml/movies.dat", b"1::One (1999)::Drama\n2::Two (1999)::Drama\n")
    url = in_memory("ml/ratings.dat", b"1::1::5::978300760\n1::2::4::978300761\n2::1::3::978300762\n")
    told = f"{url}: files of items and users beside it are not read; give its folder, or --items and --users\n"
    assert prepare.run(ALL_TRAIN, url, tmp_path / "one").item_columns == {}
    assert capsys.readouterr().err.count(told) == 1
    assert "title" in prepare.run(ALL_TRAIN, url.removesuffix("/ratings.dat"), tmp_path / "all").item_columns
    assert told not in capsys.readouterr().err
