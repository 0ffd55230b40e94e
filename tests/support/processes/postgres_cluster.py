"""A PostgreSQL of its own for tests: in a temporary folder, on a free port, killed, frozen, started."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.processes.running_service import free_port, runs

START_S = 60
USER = "tester"
# Every character that a URL gives a meaning is in it; the second is how the URL writes it.
PASSWORD, IN_URL = "se:cret@/?#", "se%3Acret%40%2F%3F%23"


@cache
def programs() -> Path:
    """The folder of initdb and postgres; skips the test if there is none, fails it if CI says that there must be."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found or find_spec("psycopg") is None:
        reason = "needs PostgreSQL (Debian's package is called postgresql) and psycopg (the extra 'postgres')"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    return found[-1]


class PostgresCluster:
    """A server with one user, who needs a password. Its commits wait for the disk, as by default.

    Attributes:
        port: on 127.0.0.1; the same after each start.
        log: the file of its messages.
    """

    def __init__(self) -> None:
        self._programs, self.port = programs(), free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="towers-postgres-"))
        # PostgreSQL refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            os.chown(self._folder, owner.pw_uid, owner.pw_gid)
        self._data, self.log = self._folder / "data", self._folder / "log"
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        words = [self._programs / "initdb", "-D", self._data, "-U", USER, "-A", "scram-sha-256", "--pwfile", secret]
        subprocess.run([*words, "-E", "UTF8", "--no-locale"], **self._as_user(), check=True, stdout=subprocess.DEVNULL)
        self.log.touch()
        self.log.chmod(0o666)
        self._databases = 0
        self.start()

    def start(self) -> None:
        """Starts the server, or starts it again, and waits until it answers."""
        words = [self._programs / "postgres", "-D", self._data, "-p", str(self.port), "-k", self._folder]
        with self.log.open("ab") as log:
            self._server = subprocess.Popen([*words, "-h", "127.0.0.1"], **self._as_user(), stdout=log, stderr=log)
        try:
            self._wait()
        except BaseException:
            self._end()
            raise

    def kill(self) -> None:
        """`kill -9` of the server and all its processes: as in a crash. Returns when all have ended."""
        processes = self._signal(signal.SIGKILL)
        self._server.wait()
        # The shared memory is in use until its last process has ended: PostgreSQL does not start before.
        deadline = time.monotonic() + START_S
        while alive := [process for process in processes if runs(process)]:
            if time.monotonic() > deadline:
                pytest.fail(f"processes of PostgreSQL do not end after a kill: {alive}")
            time.sleep(0.01)

    def save(self) -> None:
        """Keeps the data as they are now; the server starts again."""
        self.kill()
        subprocess.run(["cp", "-a", self._data, self._folder / "saved"], check=True)
        self.start()

    def start_saved(self, *, standby: bool = False) -> None:
        """Crashes, and starts what `save` kept in its place, also as a standby, which had come no further."""
        self.kill()
        shutil.rmtree(self._data)
        (self._folder / "saved").rename(self._data)
        if standby:
            (self._data / "standby.signal").touch()
        self.start()

    def promote_saved(self) -> None:
        """Crashes, and promotes what `save` kept in its place."""
        self.start_saved(standby=True)
        assert self.execute("SELECT pg_promote()") == "t"

    def freeze(self) -> None:
        """Stops the server and all its processes where they are: the kernel still accepts and acknowledges for them."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets them go on."""
        self._signal(signal.SIGCONT)

    def remove(self) -> None:
        """Ends the server and removes its folder."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def new_database(self) -> str:
        """The URL of an empty database."""
        self._databases += 1
        name = f"journal{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str, user: str = USER) -> str:
        """The URL of a database."""
        return f"postgresql://{user}:{IN_URL}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> str:
        """What psql prints."""
        return self._client("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", statement).strip()

    def dump(self, database: str) -> str:
        """What pg_dump prints."""
        return self._client("pg_dump", "-d", database)

    def load(self, dump: str, database: str) -> None:
        """Takes what `dump` gave into a database without those tables."""
        self._client("psql", "-qX", "-v", "ON_ERROR_STOP=1", "-d", database, given=dump)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        ready = [self._programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            if time.monotonic() > deadline or self._server.poll() is not None:
                pytest.fail(f"PostgreSQL does not start: {self.log.read_text()}")
            time.sleep(0.05)

    def _end(self) -> None:
        if self._server.poll() is None:
            self.kill()

    def _client(self, program: str, *words: str, given: str = "") -> str:
        asked = subprocess.run(
            [self._programs / program, "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, *words],
            env={**os.environ, "PGPASSWORD": PASSWORD},
            check=True,
            input=given,
            capture_output=True,
            text=True,
        )
        return asked.stdout

    def _signal(self, number: int) -> list[int]:
        # The server stands still first: it must not start another process meanwhile.
        with suppress(ProcessLookupError):
            os.kill(self._server.pid, signal.SIGSTOP)
        children = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children").read_text().split()
        processes = [self._server.pid, *map(int, children)]
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        return processes

    def _as_user(self) -> dict[str, str]:
        return {"cwd": str(self._folder)} if self._user is None else {"cwd": str(self._folder), "user": self._user}
