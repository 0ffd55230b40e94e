"""The usual way to serve a two-tower model: FastAPI, a sync route, one SavedModel call and one ScaNN search a request.

In: the bundle in TOWERS_BUNDLE; `user_id`, `history` of a request. Out: the k best items without those seen. After
tensorflow.org/recommenders/examples/efficient_serving, ScaNN's README, FastAPI's tutorial. PEER_THREADS: its threads.
"""

import os
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
embed = (tower := tf.saved_model.load(str(PATH / "query_tower"))).signatures["serving_default"]
vectors = np.load(PATH / "item_vectors.npy")
items = pl.read_parquet(PATH / "item_ids.parquet")["item_id"].to_list()
users = pl.read_parquet(PATH / "query_ids.parquet")["query_id"].to_list()
offsets, seen_rows = np.load(PATH / "seen_offsets.npy"), np.load(PATH / "seen_items.npy")
seen_of = {user: [items[r] for r in seen_rows[offsets[n] : offsets[n + 1]]] for n, user in enumerate(users)}
tree = scann.scann_ops_pybind.builder(vectors, K, "dot_product").tree(200, 20, training_sample_size=len(vectors))
searcher = tree.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(300).build()


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
async def lifespan(_: FastAPI):
    anyio.to_thread.current_default_thread_limiter().total_tokens = int(os.environ.get("PEER_THREADS", "40"))
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/recall")
def recall(query: Query) -> Answer:
    seen = query.history or seen_of.get(query.user_id, [])
    vector = embed(user_id=tf.constant([query.user_id]), history=tf.constant([seen or [""]]))["embeddings"][0].numpy()
    rows, scores = searcher.search(vector, final_num_neighbors=query.k + len(seen))
    found = [(items[row], float(score)) for row, score in zip(rows, scores, strict=True)]
    return Answer(items=[Item(id=name, score=score) for name, score in found if name not in seen][: query.k])
