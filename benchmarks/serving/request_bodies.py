"""Bodies of `POST /recall` for the known users of a bundle, and what the service answers them when nothing else runs.

In: a bundle, how many users; a URL. Out: JSON bodies; the answers' bodies.
"""

import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import polars as pl


def known_users(bundle: Path, count: int, *, k: int = 100, seed: int = 0) -> list[bytes]:
    """Bodies of `count` users drawn at random, each once, whose seen items stay out."""
    ids = pl.read_parquet(bundle / "query_ids.parquet")["query_id"].to_list()
    rows = np.random.default_rng(seed).permutation(len(ids))[:count]
    return [json.dumps({"user_id": ids[row], "k": k, "exclude_seen": True}).encode() for row in rows]


def answers_alone(url: str, bodies: Sequence[bytes]) -> list[bytes]:
    """What each body is answered, one after the other on one connection.

    Raises:
        RuntimeError: an answer is not of status 200.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    answers = []
    for body in bodies:
        connection.request("POST", parts.path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answers.append(answer.read())
        if answer.status != 200:
            raise RuntimeError(f"{url} answered {answer.status} to {body!r}: {answers[-1][:300]!r}")
    connection.close()
    return answers
