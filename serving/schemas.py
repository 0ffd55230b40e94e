"""What goes back over the wire: the answers, as models for the document and as bytes, and the one shape of every error.

In: what recall found. Out: JSON. Ids are strings on the wire.
"""

from collections.abc import Sequence
from typing import get_args

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field

from serving.query import Embedded, Recalled, Source

GREATEST_ECHO = 500
SOURCES = list(get_args(Source))


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RecallItem(_Answer):
    """One recalled item."""

    id: str
    score: float = Field(description="dot product with the query's vector; event count where source is popular")


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

    vectors: list[list[float]] = Field(description="zeros where nothing is known of the query")
    sources: list[str] = Field(description="what each was made of", json_schema_extra={"items": {"enum": SOURCES}})
    model_version: str


class Written(_Answer):
    """A change of items that is on the disk."""

    seq: int = Field(description="number of the last change")


class Added(_Answer):
    """Events that are on the disk."""

    added: int = Field(description="how many were new; an event id counts once")


class Reloaded(_Answer):
    """What answers after a reload."""

    active: str = Field(description="the bundle that answers")
    canary: str | None = Field(description="the bundle that answers a share of the users")
    refused: dict[str, str] = Field(description="bundles that should answer and do not, and why")


class Status(_Answer):
    """The answer of the probes."""

    status: str


class ErrorDetail(_Answer):
    """What went wrong."""

    code: str = Field(description="machine-readable")
    message: str = Field(description="for a person")
    field: str | None = Field(description="the request field at fault, null where no single field is")


class ErrorResponse(_Answer):
    """The one shape of every error."""

    error: ErrorDetail


def answer_bytes(recalled: Recalled) -> bytes:
    """The answer as JSON."""
    tail = b',"model_version":%b,"source":"%b"}' % (orjson.dumps(recalled.model_version), recalled.source.encode())
    return b'{"items":' + _items(recalled) + tail


def answers_bytes(recalled: Sequence[Recalled]) -> bytes:
    """The answers of a batch as JSON."""
    return b'{"answers":[' + b",".join([answer_bytes(each) for each in recalled]) + b"]}"


def vectors_bytes(embedded: Sequence[Embedded], model_version: str) -> bytes:
    """Vectors as JSON."""
    content = {
        "vectors": [each.vector for each in embedded],
        "sources": [each.source for each in embedded],
        "model_version": model_version,
    }
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def error_bytes(code: str, message: str, field: str | None = None) -> bytes:
    """An error as JSON; a megabyte of wrong key is not sent back."""
    field = None if field is None else field[:GREATEST_ECHO]
    return orjson.dumps({"error": {"code": code, "message": message[:GREATEST_ECHO], "field": field}})


def _items(recalled: Recalled) -> bytes:
    ids = recalled.items.plain_names(recalled.rows)
    if not ids:
        pairs = zip(recalled.ids, recalled.scores.tolist(), strict=True)
        return orjson.dumps([{"id": item_id, "score": score} for item_id, score in pairs])
    scores = orjson.dumps(recalled.scores.astype(np.float64), option=orjson.OPT_SERIALIZE_NUMPY)
    # The numbers as orjson writes them, and between two of them all that stands there but the id.
    parts = [b""] * (2 * len(ids))
    parts[::2] = ids
    parts[1::2] = scores[1:-1].replace(b",", b'},{"id":"\n","score":').split(b"\n")
    parts[1] = b'","score":' + parts[1]
    return b'[{"id":"' + b"".join(parts) + b"}]"
