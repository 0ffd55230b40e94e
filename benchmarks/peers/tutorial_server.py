"""The usual way to serve a two-tower model: FastAPI, a sync route, one SavedModel call and one ScaNN search a request.

In: the bundle in TOWERS_BUNDLE, `user_id` or `history` of a request. Out: the k best items without those seen.
https://www.tensorflow.org/recommenders/examples/efficient_serving (a SavedModel for queries, ScaNN for the search),
https://github.com/google-research/google-research/tree/master/scann (the builder), https://fastapi.tiangolo.com/tutorial/
(a sync route with a response model). Settings: PEER_THREADS sets anyio's threads, PEER_TF_THREADS those of TensorFlow.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
import numpy as np
import polars as pl
import scann
import tensorflow as tf
from fastapi import FastAPI
from pydantic import BaseModel

PATH, K = Path(os.environ["TOWERS_BUNDLE"]), 100
if threads := int(os.environ.get("PEER_TF_THREADS", "0")):
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
tower = tf.saved_model.load(str(PATH / "query_tower"))
embed = tower.signatures["serving_default"]
vectors = np.load(PATH / "item_vectors.npy")
items = pl.read_parquet(PATH / "item_ids.parquet")["item_id"].to_list()
offsets, seen_rows = np.load(PATH / "seen_offsets.npy"), np.load(PATH / "seen_items.npy")
users = pl.read_parquet(PATH / "query_ids.parquet")["query_id"].to_list()
seen_of = {user: [items[r] for r in seen_rows[offsets[n] : offsets[n + 1]]] for n, user in enumerate(users)}
builder = scann.scann_ops_pybind.builder(vectors, K, "dot_product").tree(200, 20, training_sample_size=len(vectors))
searcher = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(300).build()


class Query(BaseModel):
    user_id: str
    history: list[str] | None = None
    k: int = K


class Item(BaseModel):
    id: str
    score: float


class Answer(BaseModel):
    items: list[Item]


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = int(os.environ.get("PEER_THREADS", "40"))
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/recall")
def recall(query: Query) -> Answer:
    """Encodes, searches, drops what was seen."""
    seen = query.history or seen_of.get(query.user_id, [])
    vector = embed(user_id=tf.constant([query.user_id]), history=tf.constant([seen or [""]]))["embeddings"][0].numpy()
    rows, scores = searcher.search(vector, final_num_neighbors=query.k + len(seen))
    left_out = set(seen)
    found = [
        Item(id=items[row], score=score) for row, score in zip(rows, scores, strict=True) if items[row] not in left_out
    ]
    return Answer(items=found[: query.k])
