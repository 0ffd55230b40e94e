"""The URL of a database: its password is in no text, and its client is loaded for nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.errors import DataError
from pipelines.service import serve
from serving.catalogue.journal import JournalError
from serving.catalogue.journal_place import journal_at
from serving.files.database_url import DatabaseUrl, state_place
from serving.settings import Settings
from tests.support.paths import ROOT
from tests.support.processes.running_service import RunningService
from tests.support.worlds.serving import save_towers, write_world

SECRET = "geheim"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://me:{SECRET}@host:5432/towers", "postgresql://me@host:5432/towers"),
        (f"postgres://me:{SECRET}%40%2F@host/towers?sslmode=require", "postgres://me@host/towers"),
        (f"postgresql://one:1,two:2/towers?user=me&password={SECRET}", "postgresql://one:1,two:2/towers"),
        (f"postgresql://:{SECRET}@[::1]/towers", "postgresql://[::1]/towers"),
        ("postgresql:///towers?host=/var/run/postgresql", "postgresql:///towers"),
        ("postgresql://me@%2Fvar%2Frun,[::1]:5432,two:/towers", "postgresql://me@%2Fvar%2Frun,[::1]:5432,two:/towers"),
        ("postgresql://", "postgresql://"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    place = state_place(url)
    assert isinstance(place, DatabaseUrl) and place.secret == url
    assert (str(place), repr(place)) == (shown, f"DatabaseUrl({shown!r})")
    assert SECRET not in repr(Settings(bundle=Path("b"), state=url))  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["state", "postgres", "/data/service=towers/user=5", Path("postgresql:"), None])
def test_anything_else_is_a_directory(given: str | Path | None) -> None:
    assert state_place(given) == (given if given is None else Path(given))


@pytest.mark.parametrize(
    "url",
    [
        f"s3://{SECRET}/state",
        f"POSTGRESQL://me:{SECRET}@h/d",
        f"postgresql+psycopg://me:{SECRET}@h/d",
        f"mysql://me:{SECRET}@h/d",
        f" postgresql://me:{SECRET}@h/d",
        f"host=h user=me password={SECRET} dbname=towers",
        f"PASSWORD = '{SECRET}'",
        "host=h user=me dbname=towers",
        "service=towers",
    ],
)
def test_another_url_is_no_directory(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWERS_STATE", url)
    with pytest.raises(DataError, match=r"the database's URL is not like postgresql://") as told:
        serve.read_settings(bundle=Path("b"))
    assert SECRET not in str(told.value)


@pytest.mark.parametrize(
    "place",
    [
        *(f"{SECRET}{sign}{SECRET}@host/towers" for sign in "@:/?# "),
        # Without a host the password would be its port.
        f"{SECRET}/towers",
        SECRET,
        f"{SECRET}:5432/towers",
        f"1,me:{SECRET}/towers",
        "86753091234/towers",  # more digits than a port has
    ],
)
@pytest.mark.parametrize("source", ["option", "variable", "file"])
def test_an_error_about_a_url_shows_no_part_of_it(
    source: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"postgresql://me:{place}"
    given = {"bundle": Path("b")}
    if source == "option":
        given["state"] = url  # type: ignore[assignment]
    elif source == "variable":
        monkeypatch.setenv("TOWERS_STATE", url)
    else:
        (tmp_path / "serve.toml").write_text(f'state = "{url}"')
        given["config"] = tmp_path / "serve.toml"
    with pytest.raises(DataError, match=r"the database's URL is not like postgresql://") as told:
        serve.read_settings(**given)
    assert SECRET not in str(told.value)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("journal", "link", "tables"):
        monkeypatch.delitem(sys.modules, f"serving.catalogue.postgres_{name}", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(JournalError, match=r"postgresql://me@h/d: .* pip install 'towers-recall\[postgres\]'") as told:
        journal_at(DatabaseUrl(f"postgresql://me:{SECRET}@h/d"))
    assert SECRET not in str(told.value)


def test_a_directory_needs_no_client_of_a_database(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from serving.catalogue.journal_place import journal_at;"
        "import serving.service.service; journal_at(Path(sys.argv[1])).close();"
        "assert not [name for name in sys.modules if 'psycopg' in name]"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)


@pytest.mark.long
def test_the_service_needs_that_client_only_for_a_url_and_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    (tmp_path / "psycopg.py").write_text("raise ImportError('not installed')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    with RunningService(tmp_path / "bundle", tmp_path / "state", workers=2) as service:
        event = {"id": "e", "user_id": "u1", "item_id": "i1", "time": 1}
        assert service.client.post("/events", json={"events": [event]}).json() == {"added": 1}
    words = ["serve", "--bundle", str(tmp_path / "bundle"), "--state", f"postgresql://me:{SECRET}@h/d", "--port", "0"]
    done = subprocess.run([sys.executable, "-m", "pipelines", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "error: --state postgresql://me@h/d: PostgreSQL needs the extra 'postgres': "
        "pip install 'towers-recall[postgres]' (not installed)"
    )
