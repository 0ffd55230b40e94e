"""Responses, as models for the OpenAPI document and as JSON bytes, and the one shape of every error.

Ids are strings on the wire.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, get_args

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from serving.recall.query import Embedded, Recalled, Source

NEXT = b'},{"id":"'  # between a score and the next item
SOURCES = list(get_args(Source))


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RecallItem(_Answer):
    """One recalled item."""

    id: str
    score: float = Field(
        description="dot product with the query's vector, plus the prior if the bundle has one: a float32 in the "
        "fewest digits that identify it; the popularity count if source is popular"
    )
    attributes: dict[str, Any] = Field(
        default_factory=dict,
        description="the item columns that were asked for, null where one is missing; else left out",
    )


class RecallResponse(_Answer):
    """The answer, best item first; fewer than k only where fewer are eligible."""

    items: list[RecallItem]
    model_version: str
    source: str = Field(description="what answered", json_schema_extra={"enum": SOURCES})


class RecallBatchResponse(_Answer):
    """The answers, in the order of the queries."""

    answers: list[RecallResponse]


class EmbedResponse(_Answer):
    """The vectors, in the order of the queries."""

    vectors: list[list[float]] = Field(description="zeros if nothing is known about the query")
    sources: list[str] = Field(description="what each was made of", json_schema_extra={"items": {"enum": SOURCES}})
    model_version: str


class Written(_Answer):
    """A change of items that has been written to disk."""

    seq: int = Field(description="number of the last change", json_schema_extra={"format": "int64"})


class Added(_Answer):
    """Events or impressions that have been written to disk."""

    added: int = Field(description="number of new ones; an id counts once")


class Reloaded(_Answer):
    """The bundles in use after a reload."""

    active: str = Field(description="the bundle that answers")
    canary: str | None = Field(description="the bundle that answers a share of the users")
    refused: dict[str, str] = Field(description="bundles that should be in use but are not, and why")


class Status(_Answer):
    """The answer of the probes."""

    status: str


class Ready(Status):
    """The answer of `/readyz`; the last two keys are there only if a bundle was refused."""

    active: str = Field("", description="the bundle that answers")
    refused: list[str] = Field(default_factory=list, description="bundles that should answer and do not")


class ErrorDetail(_Answer):
    """What went wrong."""

    code: str = Field(description="machine-readable")
    message: str = Field(description="for a person")
    field: str | None = Field(description="the request field at fault, null where no single field is")


class ErrorResponse(_Answer):
    """The body of every error."""

    error: ErrorDetail


def answer_bytes(recalled: Recalled, columns: Sequence[str] = ()) -> bytes:
    """The answer as JSON, with these columns of each item, which may have to be read from disk."""
    return _plainly(recalled, columns) if columns else b"".join(_pieces([recalled]))


def answers_bytes(recalled: Sequence[Recalled], columns: Sequence[Sequence[str]] = ()) -> bytes:
    """The answers of a batch as JSON, like `answer_bytes`; `columns` holds those of each answer, or nothing."""
    pieces = [b",".join(map(_plainly, recalled, columns))] if any(columns) else _pieces(recalled)
    return b"".join([b'{"answers":[', *pieces, b"]}"])


def vectors_bytes(embedded: Sequence[Embedded], model_version: str) -> bytes:
    """Vectors as JSON."""
    content = {
        "vectors": [each.vector for each in embedded],
        "sources": [each.source for each in embedded],
        "model_version": model_version,
    }
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def _pieces(recalled: Sequence[Recalled]) -> list[bytes]:
    """Comma-separated answers, in pieces to join once: a hundred items without an object for each."""
    names = _plain_names(recalled)
    if names is None:
        return [b",".join(map(_plainly, recalled))]
    scores = orjson.dumps(_joined([each.scores for each in recalled]), option=orjson.OPT_SERIALIZE_NUMPY)
    # The numbers as orjson writes them; between two of them everything but the id.
    pieces = [b""] * (2 * len(names))
    pieces[::2] = names
    pieces[1::2] = scores[1:-1].replace(b",", NEXT + b'\n","score":').split(b"\n")
    pieces[1] = b'","score":' + pieces[1]
    first = 0
    for each in recalled:
        last = first + 2 * len(each.rows) - 1
        pieces[first] = b'{"items":[{"id":"' + pieces[first]
        pieces[last] = pieces[last].removesuffix(NEXT) + b"}]" + _tail(each.model_version, each.source) + b","
        first = last + 1
    pieces[-1] = pieces[-1][:-1]
    return pieces


def _plain_names(recalled: Sequence[Recalled]) -> list[bytes] | None:
    """The ids of all answers; None if an answer is empty, an id needs escapes, or the answers have several views."""
    if not recalled or any(each.items.view is not recalled[0].items.view or not len(each.rows) for each in recalled):
        return None
    return recalled[0].items.plain_names(_joined([each.rows for each in recalled]))


def _plainly(recalled: Recalled, columns: Sequence[str] = ()) -> bytes:
    pairs = zip(recalled.ids, recalled.scores, strict=True)
    items = [{"id": item_id, "score": score} for item_id, score in pairs]
    if names := list(dict.fromkeys(columns)):
        values = [recalled.items.values(name, recalled.rows) for name in names]
        for item, each in zip(items, zip(*values, strict=True), strict=True):
            item["attributes"] = dict(zip(names, each, strict=True))
    return (
        b'{"items":'
        + orjson.dumps(items, option=orjson.OPT_SERIALIZE_NUMPY)
        + _tail(recalled.model_version, recalled.source)
    )


@lru_cache(64)
def _tail(model_version: str, source: Source) -> bytes:
    return b',"model_version":%b,"source":"%b"}' % (orjson.dumps(model_version), source.encode())


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
