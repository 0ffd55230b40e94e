"""A running service as a ranker: asks it for the lists of held-out users, in batches, and counts the answers.

Each query excludes exactly the masked items, as for every other ranker, by name: a service holds back what it knows
that a user has seen, and what it knows of live events may be the targets of the test. What else it knows beyond its
bundle (live items and events, another bundle, a canary) shows in `ServiceRanker.content`.
"""

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import httpx
import numpy as np

from pipelines.console import amount
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut
from pipelines.errors import DataError
from pipelines.rankers.evaluate import Lists
from pipelines.rankers.ranker import Served
from pipelines.service.answer import KEY, reason, refuse_unusable_proxies
from serving.client.client import Client, RecallAnswer, RecallQuery, ServiceError

SERVICE = "service"
BATCH = 256  # queries: the default `max_batch` of a service; halved where it allows fewer
DEADLINE_S = 30.0
WRITTEN = {"url": "--url", "api_key": KEY}  # argument of the client -> what a user writes
# Errors that every further query would get, too.
FATAL = ("no_connection", "http_error", "bad_answer")


class ServiceRanker:
    """The lists of a service; a user whom it fails has an empty list, so each of their targets is a miss.

    Args:
        url: the service's address; the key comes from TOWERS_API_KEY.
        served: the bundle that it should answer from.
        data: the data set.
        k: length of the lists.

    Raises:
        DataError: `url`, the key or a proxy is invalid, the service does not answer, or answers from another model.
    """

    def __init__(self, url: str, served: Served, data: Dataset, k: int) -> None:
        self._served, self._k, self._size = served, k, BATCH
        self._expected = served.bundle.manifest.model_version
        self._user_ids, self._item_ids = data.users["user_id"], data.items["item_id"]
        self._numbers = {name: number for number, name in enumerate(self._item_ids.to_list())}
        key = os.environ.get(KEY) or None
        self._open = partial(Client, url.rstrip("/"), deadline_s=DEADLINE_S, api_key=key)
        self._users = 0
        self._versions: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._others = 0
        self._live: Counter[str] = Counter()
        refuse_unusable_proxies()
        try:
            with self._open() as client:
                parsed = httpx.URL(url)
                self.url = f"{parsed.scheme}://{parsed.netloc.decode()}{parsed.path}".rstrip("/")  # without a password
                version = client.recall(k=k).model_version  # of the active bundle: a canary answers users only
        except ValueError as error:
            argument, _, why = str(error).partition(": ")
            raise DataError(f"{WRITTEN.get(argument, argument)}: {why}") from None
        except ServiceError as error:
            self._refuse(error)
            raise DataError(f"{self.url}: {error}") from None
        if version != self._expected:
            raise DataError(
                f"{self.url}: the service answers from the model {version}, and {served.bundle.path} is "
                f"{self._expected}; report on the bundle that it serves, or serve this one"
            )

    def __call__(self, held: HeldOut) -> Lists:
        """Returns the lists [Q, K]; -1 also stands for an item that the data set does not have.

        Raises:
            DataError: the service is gone, or answers nobody.
        """
        queries = [self._query(held, place) for place in range(len(held.users))]
        answers: list[RecallAnswer | None] = []
        with self._open() as client:
            while len(answers) < len(queries):
                answers += self._answers(client, queries[len(answers) : len(answers) + self._size])
        lists: Lists = np.full((len(queries), self._k), -1, np.int32)
        for place, answer in enumerate(answers):
            if answer is not None:
                names = [item_id for item_id, _ in answer.items[: self._k]]
                lists[place, : len(names)] = [self._numbers.get(item_id, -1) for item_id in names]
                self._live.update(item_id for item_id in names if item_id not in self._numbers)
                self._count(answer, stored=self._served.query_rows[held.users[place]] >= 0)
        self._users += len(queries)
        if not self._versions:
            told = ", ".join(f"{why} for {amount(users, 'users')}" for why, users in self._failed.items())
            raise DataError(f"{self.url}: the service answered none of the users so far, {self._users:,}: {told}")
        return lists

    def content(self) -> dict[str, Any]:
        """The entry in `report.json`; figures count users, `unknown_items` the items that the data set lacks."""
        return {
            "url": self.url,
            "model_version": self._expected,
            "users": self._users,
            "model_versions": dict(self._versions),
            "sources": dict(self._sources),
            "other_source": self._others,
            "failed": dict(self._failed),
            "unknown_items": {"items": len(self._live), "places": self._live.total()},
        }

    def _query(self, held: HeldOut, place: int) -> RecallQuery:
        user = int(held.users[place])
        offsets, items = held.masked
        masked = np.unique(items[offsets[place] : offsets[place + 1]])
        excluded = self._item_ids.gather(masked).to_list()
        return RecallQuery(user_id=self._user_ids[user], k=self._k, exclude=excluded, exclude_seen=False)

    def _answers(self, client: Client, queries: Sequence[RecallQuery]) -> list[RecallAnswer | None]:
        """Asks for some users; None for one whom the service fails."""
        try:
            answers = client.recall_batch(queries)
        except ServiceError as error:
            self._refuse(error)
            half = len(queries) // 2
            if half and error.status in (413, 422):
                if error.status == 413 or error.field == "queries":
                    self._size = half
                return self._answers(client, queries[:half]) + self._answers(client, queries[half:])
            self._failed[error.code] += len(queries)
            return [None] * len(queries)
        if len(answers) != len(queries):
            came, sent = amount(len(answers), "answers"), amount(len(queries), "queries")
            raise DataError(f"{self.url}: {came} to {sent}; this is not `towers serve`")
        return [*answers]

    def _refuse(self, error: ServiceError) -> None:
        """Raises DataError if the error is no single user's."""
        after = f" (after {amount(self._users, 'users')})" if self._users else ""
        if error.status in (401, 403):
            raise DataError(f"{self.url}: {error.message}; the variable {KEY} gives the key to `towers report`")
        if error.code in FATAL:
            cause = error.__cause__
            told = reason(cause, self.url) if isinstance(cause, httpx.HTTPError) else f"{error}; is it `towers serve`?"
            raise DataError(f"{self.url}: {told}{after}") from None
        if (error.field or "").rpartition(".")[2] == "k":
            raise DataError(
                f"{self.url}: the report needs lists of {self._k}, and this service refuses them: {error.message}; "
                "start it with a larger max_k"
            )

    def _count(self, answer: RecallAnswer, *, stored: bool) -> None:
        self._versions[answer.model_version] += 1
        self._sources[answer.source] += 1
        self._others += answer.source != ("user" if stored else "popular")
