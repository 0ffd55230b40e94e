"""Events that a journal stores in a second, from one process and from two, in SQLite and in PostgreSQL.

Each process opens the journal as a worker does and adds events for five seconds, one or a hundred in each call. An
event counts when its call has returned, so when it is on the disk. Keep the directory of SQLite and the data of
PostgreSQL on the same disk. All writes take turns. Claims: a hundred events a call are stored at least ten times as
fast as one, and a second writer stores more in PostgreSQL where each call has one event.

`--database` is the URL of an empty PostgreSQL database. Writes benchmarks/serving/results/journal_writes.json; `--dry`
prints it instead. Needs a quiet machine.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psycopg

from benchmarks.harness.machine import verdict, write
from serving.catalogue.journal import UserEvent
from serving.catalogue.journal_place import journal_at
from serving.files.database_url import DatabaseUrl

WRITERS, EVENTS, SECONDS, ROUNDS = (1, 2), (1, 100), 5.0, 5
FASTER = 10
LEAD_S = 1.0  # until all processes have opened the journal


def main(database: str, work: Path, *, dry: bool) -> int:
    with tempfile.TemporaryDirectory(dir=work) as directory:
        places = {"SQLite": directory, "PostgreSQL": database}
        rates = {
            f"{name}, {events} a call, {writers} writing": measured(state, writers, events)
            for name, state in places.items()
            for events in EVENTS
            for writers in WRITERS
        }
    with psycopg.connect(database) as connection:
        version = connection.info.parameter_status("server_version")
    medians = {name: round(statistics.median(each), 1) for name, each in rates.items()}
    claims = {
        f"{name}: a hundred a call at least {FASTER} times as fast as one": (
            medians[f"{name}, 100 a call, 1 writing"] >= FASTER * medians[f"{name}, 1 a call, 1 writing"]
        )
        for name in places
    }
    one, two = (medians[f"PostgreSQL, 1 a call, {writers} writing"] for writers in WRITERS)
    claims["PostgreSQL, one a call: two writers store more than one"] = two > one
    result = {"claims": claims, "postgresql": version, "seconds": SECONDS, "events_per_s": medians, "rounds": rates}
    print(json.dumps(result, indent=2) if dry else write(__file__, "journal_writes", result))
    return verdict(result)


def measured(state: str, writers: int, events: int) -> list[float]:
    """Events/s of all writers together, by round."""
    rates = []
    with ProcessPoolExecutor(writers, get_context("spawn")) as pool:
        list(pool.map(_add, [state] * writers, [time.time() + LEAD_S] * writers, [events] * writers))  # they warm
        for _ in range(ROUNDS):
            begin = time.time() + LEAD_S
            added = pool.map(_add, [state] * writers, [begin] * writers, [events] * writers)
            rates.append(round(sum(added) / SECONDS, 1))
    return rates


def _add(state: str, begin: float, events: int) -> int:
    """Adds events from the time `begin` for `SECONDS`; returns how many."""
    journal = journal_at(DatabaseUrl(state) if "://" in state else Path(state))
    try:
        added, prefix = 0, f"{time.time_ns()}-"
        time.sleep(max(0.0, begin - time.time()))
        while time.time() < begin + SECONDS:
            some = [UserEvent(f"{prefix}{added + n}", f"u{n % 10}", f"i{n}", 1_700_000_000) for n in range(events)]
            added += journal.add_events(some)
    finally:
        journal.close()
    return added


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.journal_writes", description=__doc__)
    parser.add_argument("--database", required=True, help="postgresql://…, an empty database")
    parser.add_argument("--work", type=Path, default=Path.cwd(), help="a folder on the disk of that database")
    parser.add_argument("--dry", action="store_true", help="print the result, keep none")
    given = parser.parse_args()
    sys.exit(main(given.database, given.work, dry=given.dry))
