"""A PostgreSQL that stands still, or whose answers are lost: calls end, and what was written counts once."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any
from unittest.mock import Mock

import pytest

from serving.catalogue.journal import JournalError, UserEvent
from serving.catalogue.journal_place import journal_at
from serving.files.database_url import DatabaseUrl
from tests.support.journals import PostgresPlace
from tests.support.processes.postgres_cluster import IN_URL, PASSWORD

pytestmark = pytest.mark.long

LATE = "no answer from the server in time"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresPlace]:
    made = PostgresPlace()
    monkeypatch.setattr("serving.catalogue.postgres_link.ANSWER_S", 1.0)
    monkeypatch.setattr("serving.catalogue.postgres_link.IDLE_S", 1.0)
    yield made
    made.cluster.thaw()
    made.remove()


@pytest.fixture
def link(place: PostgresPlace) -> Iterator[Any]:
    from serving.catalogue.postgres_link import Link

    made = Link(place.url, must_exist=False)
    yield made
    made.close()


class Deaf:
    """Passes bytes between clients and a server; once a client has said `word`, it hears nothing any more."""

    def __init__(self, port: int) -> None:
        self.word: bytes | None = None
        self._port, self._threads = port, [threading.Thread(target=self._accept)]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for each in self._threads:
            each.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                heard = threading.Event()
                for ends in ((client, server, heard), (server, client, heard)):
                    self._threads.append(threading.Thread(target=self._pass, args=(*ends, ends[0] is client)))
                    self._threads[-1].start()

    def _pass(self, source: socket.socket, sink: socket.socket, said: threading.Event, asks: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if asks and self.word is not None and self.word in data:
                    said.set()
                if asks or not said.is_set():
                    sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


def test_a_server_that_stands_still_is_told_and_found_again(
    place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serving.catalogue import postgres_link

    with closing(place.open()) as journal:
        journal.put_items([("a", {}, {})])
        opened = Mock(wraps=postgres_link.connect)
        monkeypatch.setattr(postgres_link, "connect", opened)
        place.cluster.freeze()
        with ThreadPoolExecutor(6) as threads:
            uses = [threads.submit(journal.version) for _ in range(3)]
            uses += [threads.submit(journal.put_items, [("b", {}, {})]) for _ in range(3)]
            for use in uses:
                with pytest.raises(JournalError, match="connection timeout expired") as told:
                    use.result()
                assert PASSWORD not in str(told.value) and IN_URL not in str(told.value)
        assert opened.call_count == 2, "each waits for the attempt of the first"
        with pytest.raises(JournalError, match="connection timeout expired"):
            place.open()
        place.cluster.thaw()
        assert journal.put_items([("c", {}, {})]) == 2
        assert [each.item_id for each in journal.items_since(0)] == ["a", "c"]


def test_a_write_whose_answer_is_lost_is_not_acknowledged_and_counts_once(place: PostgresPlace) -> None:
    event = UserEvent("e", "u", "a", 1)
    with closing(Deaf(place.cluster.port)) as deaf:
        url = DatabaseUrl(place.state.replace(str(place.cluster.port), str(deaf.port)))
        with closing(journal_at(url)) as journal:
            for word, kept in ((b"INSERT", 0), (b"COMMIT\0", 1)):
                journal.delete_items(["a"])  # opens a connection, which has a COMMIT of its own
                deaf.word = word
                with pytest.raises(JournalError, match=LATE):
                    journal.add_events([event])
                deaf.word = None
                assert len(journal.events_since(0)) == kept
            assert journal.add_events([event]) == 0
            assert journal.events_since(0) == [(1, event)]


def test_a_long_call_may_go_on_only_while_the_server_answers_others(place: PostgresPlace, link: Any) -> None:
    with link.held(patient=True) as connection:
        assert connection.execute("SELECT 1 FROM pg_sleep(4)").fetchall() == [(1,)]
    with pytest.raises(JournalError, match=LATE), link.held() as connection:
        connection.execute("SELECT pg_sleep(20)")
    freeze = threading.Timer(1.0, place.cluster.freeze)
    freeze.start()
    with pytest.raises(JournalError, match=LATE), link.held(patient=True) as connection:
        connection.execute("SELECT pg_sleep(20)")
    freeze.join()


def test_a_pooler_that_answers_for_a_server_that_stands_still_does_not_count(place: PostgresPlace) -> None:
    from serving.catalogue.postgres_link import Link

    with closing(Deaf(place.cluster.port)) as deaf:
        url = DatabaseUrl(place.state.replace(str(place.cluster.port), str(deaf.port)))
        link = Link(url, must_exist=False)
        with closing(link), pytest.raises(JournalError, match=LATE), link.held(patient=True) as connection:
            # Connections are accepted, but the empty query is not answered.
            deaf.word = b"Q\0\0\0\5\0"
            connection.execute("SELECT pg_sleep(20)")


def test_a_call_that_runs_ends_when_the_journal_is_closed(place: PostgresPlace, link: Any) -> None:
    runs = threading.Event()

    def call() -> None:
        with link.held(patient=True) as connection:
            runs.set()
            connection.execute("SELECT pg_sleep(20)")

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(call)
        assert runs.wait(60)
        link.close()
        with pytest.raises(JournalError, match="closed"):
            running.result(60)
    with pytest.raises(JournalError, match="closed"), link.held():
        pass
