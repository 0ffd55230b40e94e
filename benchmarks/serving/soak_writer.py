"""What changes while the soak runs: items put and deleted, events, the active bundle.

In: a service with `--state`, its root of bundles. Out: how much of each was taken, and what was not.
"""

import http.client
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import polars as pl

from benchmarks.harness.machine import ROOT
from serving.bundle.manifest import read_manifest

UPSERTS_PER_S, EVENTS_PER_S, DELETES_PER_S = 10.0, 10.0, 1.0
SWAP_EVERY_S = 24.0
OWN_ITEMS = 500  # ids that are put again and again, so that a catalogue that only grows does not hide a leak
USERS_OF_ITEM = 20
TRIES, AGAIN_S = 5, 1.0  # what Retry-After says


class Writer:
    """Changes a service, each kind at its own pace.

    Args:
        url: of the service.
        root: its bundles.
        bundle: the one they are copies of, for ids of users and items.
        versions: names of bundles that are made active in turn.
    """

    def __init__(self, url: str, root: Path, bundle: Path, versions: tuple[str, ...]) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self.root, self.versions = root, versions
        self.users = pl.read_parquet(bundle / "query_ids.parquet")["query_id"].to_list()
        self.items = pl.read_parquet(bundle / "item_ids.parquet")["item_id"].to_list()
        features = read_manifest(bundle).candidate_features
        self.feature = next(feature.name for feature in features if feature.kind == "neighbours")
        self.random = np.random.default_rng(7)
        self.counts = {"upserts": 0, "deletes": 0, "events": 0, "swaps": 0, "refused": 0}
        self.failed: list[str] = []
        self.swapping: subprocess.Popen[bytes] | None = None
        self.live: set[str] = set()

    def run(self, seconds: float) -> dict[str, Any]:
        """Changes for so long; gives counts, the first failures, and whether the last item put is recalled."""
        start = time.monotonic()
        paces = {
            self._upsert: 1 / UPSERTS_PER_S,
            self._event: 1 / EVENTS_PER_S,
            self._delete: 1 / DELETES_PER_S,
            self._swap: SWAP_EVERY_S,
        }
        due = {change: start + every for change, every in paces.items()}
        while (now := time.monotonic()) < start + seconds:
            change = min(due, key=due.__getitem__)
            if due[change] > now:
                time.sleep(due[change] - now)
                continue
            change()
            due[change] += paces[change]
        self._finish_swap()
        self._upsert()
        last = f"soak-{(self.counts['upserts'] - 1) % OWN_ITEMS}"
        answer = self._ask("POST", "/recall", {"user_id": self.users[0], "k": 1, "allow": [last]})
        recalled = [item["id"] for item in answer.get("items", [])] == [last]
        return {**self.counts, "failed": self.failed[:20], "last_is_recalled": recalled}

    def _upsert(self) -> None:
        item = f"soak-{self.counts['upserts'] % OWN_ITEMS}"
        users = [self.users[row] for row in self.random.integers(len(self.users), size=USERS_OF_ITEM)]
        self._ask("PUT", f"/items/{item}", {"features": {self.feature: users}})
        self.counts["upserts"] += 1
        self.live.add(item)

    def _delete(self) -> None:
        if self.live:
            self._ask("DELETE", f"/items/{self.live.pop()}", None)
            self.counts["deletes"] += 1

    def _event(self) -> None:
        user, item = (ids[self.random.integers(len(ids))] for ids in (self.users, self.items))
        event = {"id": f"soak-{self.counts['events']}", "user_id": user, "item_id": item, "time": int(time.time())}
        answer = self._ask("POST", "/events", {"events": [event]})
        self.counts["events"] += int(answer.get("added", 0))

    def _swap(self) -> None:
        self._finish_swap()
        name = self.versions[(self.counts["swaps"] + 1) % len(self.versions)]
        self.swapping = subprocess.Popen(_command(self.root, name), cwd=ROOT, stderr=subprocess.DEVNULL)

    def _finish_swap(self) -> None:
        """Waits for the command that was started one turn ago, and for the service to follow it."""
        if self.swapping is None:
            return
        name = self.versions[(self.counts["swaps"] + 1) % len(self.versions)]
        if code := self.swapping.wait():
            self.failed.append(f"activate {name}: code {code}")
        elif (active := self._ask("POST", "/admin/reload", None).get("active")) != name:
            self.failed.append(f"activate {name}: {active} is active")
        self.swapping = None
        self.counts["swaps"] += 1

    def _ask(self, method: str, path: str, body: Any) -> dict[str, Any]:
        """The answer, asked for again where it is refused for the moment; empty where it fails."""
        for _ in range(TRIES):
            answer = self._ask_once(method, path, body)
            if answer is not None:
                return answer
            self.counts["refused"] += 1
            time.sleep(AGAIN_S)
        self.failed.append(f"{method} {path}: refused {TRIES} times")
        return {}

    def _ask_once(self, method: str, path: str, body: Any) -> dict[str, Any] | None:
        content = None if body is None else json.dumps(body).encode()
        try:
            self.connection.request(method, path, content, {"content-type": "application/json"})
            answer = self.connection.getresponse()
            told = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            self.failed.append(f"{method} {path}: {error!r}")
            return {}
        if answer.status == 429:
            return None
        if answer.status != 200:
            self.failed.append(f"{method} {path}: {answer.status} {told[:200]!r}")
            return {}
        return dict(json.loads(told))


def activate(root: Path, name: str) -> None:
    """`towers bundles activate`."""
    subprocess.run(_command(root, name), cwd=ROOT, check=True, stderr=subprocess.DEVNULL)


def _command(root: Path, name: str) -> list[str]:
    return [sys.executable, "-m", "pipelines", "bundles", "activate", name, "--root", str(root)]
