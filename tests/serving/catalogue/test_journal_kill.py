"""`kill -9` at random moments of upserts, bulk upserts, deletes and events: what was acknowledged is in the journal.

Many rounds, four journals. Each round starts processes that say what they are about to write, write it, and say that
it is done; they are killed, or the database is, and the journal is read. The change that was under way is there whole
or not at all.
"""

import json
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, TypeVar

import pytest

from serving.catalogue.journal import Journal, UserEvent
from tests.support.journals import JournalPlace, PostgresPlace, SqlitePlace
from tests.support.paths import ROOT
from tests.support.processes.postgres_cluster import PostgresCluster

Place = TypeVar("Place", bound=JournalPlace)
FEW = 4  # changes done before a kill, at most

WRITER = """
import json, random, sys
from serving.catalogue.journal import UserEvent
from serving.catalogue.journal_place import journal_at
from serving.files.database_url import state_place
assert "tensorflow" not in sys.modules
me, seed = sys.argv[2:]
moment = random.Random(seed)
journal = journal_at(state_place(sys.argv[1]))
say = lambda *what: print(json.dumps(what), flush=True)
while True:
    kind = moment.choice(["put", "put", "bulk", "delete", "events"])
    items = [f"{me}-{n}" for n in moment.sample(range(60), {"put": 1, "delete": 2}.get(kind, 25))]
    if kind == "events":
        # Some of these ids have been added before, by this process or by one that was killed.
        change = [[f"{me}-{moment.randrange(20_000)}", "u", item, 1] for item in items[:3]]
    elif kind == "delete":
        change = items
    else:
        change = [[item, {"x": moment.random()}, {"title": "t" * 200}] for item in items]
    say("about to", kind, change)
    if kind == "events":
        done = journal.add_events([UserEvent(*event) for event in change])
    else:
        done = journal.delete_items(change) if kind == "delete" else journal.put_items(change)
    say("done", kind, done)
"""

# What one writer's items and events are, in the order of their last change.
State = tuple[dict[str, Any], dict[str, UserEvent]]


def after(state: State, kind: str, change: list[Any]) -> State:
    items, events = dict(state[0]), dict(state[1])
    for each in change:
        if kind == "events":
            events.setdefault(each[0], UserEvent(*each))
            continue
        item, value = (each, "deleted") if kind == "delete" else (each[0], each[1:])
        items.pop(item, None)
        items[item] = value
    return items, events


def found(journal: Journal, me: str) -> State:
    items = {
        each.item_id: "deleted" if each.deleted else [each.features, each.attributes]
        for each in journal.items_since(0)
        if each.item_id.startswith(f"{me}-")
    }
    events = {event.event_id: event for _, event in journal.events_since(0) if event.event_id.startswith(f"{me}-")}
    return items, events


def same(left: State, right: State) -> bool:
    """Also in the same order."""
    return [list(each.items()) for each in left] == [list(each.items()) for each in right]


class Writer:
    """A process that writes, and the thread that hears what it says."""

    def __init__(self, state: str, me: str, seed: str) -> None:
        self.me = me
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, state, me, seed], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        self.begun = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._hear)
        self.thread.start()

    def until_begun(self, changes: int, told: str) -> None:
        """Waits until it has begun so many more changes: those before the last are done."""
        for _ in range(changes):
            assert self.begun.acquire(timeout=60), told

    def kill(self) -> None:
        """`kill -9`; a second time does nothing."""
        self.process.kill()
        self.process.wait()
        self.thread.join()

    def said(self) -> list[Any]:
        """What it said until its end, but for a line that the kill cut off."""
        return [json.loads(line) for line in self.lines if line.endswith("\n")]

    def _hear(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            for line in said:
                self.lines.append(line)
                if line.startswith('["about to"'):
                    self.begun.release()


@pytest.mark.long
def test_a_hundred_kills_lose_nothing_that_was_acknowledged() -> None:
    places = [SqlitePlace() for _ in range(4)]

    def whole(place: SqlitePlace) -> None:
        with closing(sqlite3.connect(place.directory / "journal.sqlite")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    kill_and_read(places, 100, kill=lambda moment: None, check=whole)
    for place in places:
        place.remove()


@pytest.mark.long
def test_kills_of_writers_and_of_the_database_lose_nothing_that_was_acknowledged() -> None:
    cluster = PostgresCluster()
    kills = []

    def kill(moment: random.Random) -> None:
        kills.append(moment.random() < 0.6)
        if kills[-1]:
            cluster.kill()

    def start(_: PostgresPlace) -> None:
        if kills[-1]:
            cluster.start()

    try:
        kill_and_read([PostgresPlace(cluster) for _ in range(4)], 40, kill=kill, check=start)
    finally:
        cluster.remove()
    assert 0 < sum(kills) < len(kills)


def kill_and_read(
    places: Sequence[Place], rounds: int, kill: Callable[[random.Random], None], check: Callable[[Place], None]
) -> None:
    """Kills writers, before them what `kill` kills, and reads what is left after `check`."""
    seed = time.time_ns()
    moment = random.Random(seed)
    states: dict[tuple[str, str], State] = {}
    acknowledged, under_way, change_s = 0, {True: 0, False: 0}, 0.0
    for number in range(rounds):
        place = places[number % 4]
        told = f"seed {seed}, round {number}"
        # In every fourth round two processes write, and are killed, at once.
        writers, done = list[Writer](), moment.randrange(FEW)
        try:
            for me in ("a", "b")[: 2 if number % 16 < 4 else 1]:
                writers.append(Writer(place.state, me, f"{seed} {number} {me}"))
            # So many changes are done, and then the kill strikes within the next one, however slow the disk is.
            for writer in writers:
                writer.until_begun(1, told)
            begin = time.monotonic()
            for writer in writers:
                writer.until_begun(done, told)
            change_s = (time.monotonic() - begin) / done if done else change_s
            time.sleep(moment.random() * change_s)
            kill(moment)
        finally:
            # A writer never ends by itself, and pytest would wait for the thread that hears it.
            for writer in writers:
                writer.process.kill()
            for writer in writers:
                writer.kill()
        said_by = {writer.me: writer.said() for writer in writers}
        check(place)
        with closing(place.open()) as journal:
            # Waits for a commit that a killed writer still sent to the database: it may not have ended.
            journal.put_items([])
            for me, said in said_by.items():
                state = states.get((place.state, me), ({}, {}))
                for (_, kind, change), (*_, done) in zip(said[::2], said[1::2], strict=False):
                    before, state = state, after(state, kind, change)
                    acknowledged += 1
                    if kind == "events":
                        assert done == len(state[1]) - len(before[1]), told
                now = found(journal, me)
                if len(said) % 2:
                    kept = not same(now, state)
                    under_way[kept] += 1
                    state = after(state, *said[-1][1:]) if kept else state
                assert same(now, state), told
                states[place.state, me] = state
    # The kills met what they were meant to meet.
    assert acknowledged > 20 and under_way[False] > 0, (acknowledged, under_way)
