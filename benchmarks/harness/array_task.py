"""The product's own training step on arrays: `Retrieval` over two id tables, a sampler and a row-sparse optimizer.

In: counts of items, a loss and a sampler as a recipe names them, batches of users and items. Out: trained scores.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.config.features import IdFeature
from towers.config.recipe import parse_config
from towers.data.batch import Batch
from towers.data.item_ranks import ItemFeatures, ItemRanks
from towers.features.encoder import FeatureSpec, new_table
from towers.model.two_tower import TwoTower
from towers.ops.replicas import ALONE, Replicas
from towers.samplers.registry import build_sampler
from towers.tasks.retrieval import Retrieval
from towers.training.optimizers import build_optimizer
from towers.training.prefetch import as_tensors

Section = dict[str, Any]


class ArrayTask:
    """One model that can be trained again and again, from new weights, without being traced again.

    Scores are dot products. Items are numbered by falling count.

    Args:
        users: U.
        counts: [N] training examples of each item.
        dimension: D.
        batch_size: B.
        loss, sampler: sections of a recipe; no sampler for full_softmax. Accidental hits are kept,
            unless said otherwise: every guarantee of these losses is one with hits.
        more: further sections of the recipe.
        identity: D = N, and the items' vectors are the unit vectors and stay so: a user's vector is its N logits, free
            of one another.
        replicas: the workers that share each batch; B is that of all of them, and `batch` takes one worker's part.
    """

    def __init__(
        self,
        users: int,
        counts: NDArray[np.int64],
        dimension: int,
        batch_size: int,
        loss: Section,
        sampler: Section | None,
        *,
        more: dict[str, Section] | None = None,
        identity: bool = False,
        replicas: Replicas = ALONE,
    ) -> None:
        self.users, self.items, self.dimension = users, len(counts), dimension
        hits = {"remove_accidental_hits": False} if sampler else {}
        self.config = parse_config(
            {
                "model": {"dimension": dimension, "similarity": "dot", "temperature": 1.0},
                "loss": hits | loss,
            }
            | (more or {})
            | {"train": (more or {}).get("train", {}) | {"batch_size": batch_size}}
            | ({"sampler": sampler} if sampler else {})
        )
        self.specs = [
            FeatureSpec("user_id", IdFeature(kind="id"), size=users, table="u"),
            FeatureSpec("item_id", IdFeature(kind="id"), size=self.items, table="i"),
        ]
        towers = TwoTower(self.specs[:1], self.specs[1:], self.config)
        ranks = np.arange(self.items)
        catalogue = ItemRanks(ranks.astype(np.int32), ranks, counts)
        negatives = build_sampler(self.config.negatives, counts, batch_size, 1) if self.config.negatives else None
        features = ItemFeatures({"item_id": (ranks + 1).astype(np.int32)}, catalogue)
        self.task = Retrieval(towers, self.config, features, self.items, sampler=negatives, replicas=replicas)
        self.tables = [tower.encoders[0].table for tower in (towers.query_tower, towers.candidate_tower)]
        self.identity = identity
        self.task.create_weights(self.batch(np.zeros(batch_size, np.int64), np.zeros(batch_size, np.int64), (0, 0)))
        trained = [v for v in self.task.trainable_variables if not (identity and v is self.tables[1])]
        self.optimizer = build_optimizer(self.config.optimizer, trained, replicas=replicas)
        # A variable, so that another rate does not trace the step again.
        self._rate: Any = tf.Variable(0.0, trainable=False)
        self.optimizer.learning_rate = self._rate
        jit = self.config.train.jit_compile or None
        self.step = tf.function(replicas.step(self._step), reduce_retracing=True, autograph=False, jit_compile=jit)

    def reset(self, seed: int, learning_rate: float) -> None:
        """New weights: those of a recipe with this seed (with `identity` all logits are 0), and a new optimizer."""
        for spec, table in zip(self.specs, self.tables, strict=True):
            table.assign(new_table(spec, self.dimension, seed))
        if self.identity:
            self.tables[0].assign(tf.zeros_like(self.tables[0]))
            self.tables[1].assign(tf.eye(self.items + 1)[:, 1:])
        for variable in self.task.log_z.variables if self.task.log_z else ():
            # The kernel of a head starts at 0; its bias, or a scalar, at log N.
            variable.assign(tf.fill(variable.shape, math.log(self.items) if variable.shape.rank < 2 else 0.0))
        self.restart(learning_rate)

    def restart(self, learning_rate: float) -> None:
        """A new optimizer for the same weights."""
        self.optimizer.step.assign(0)
        self._rate.assign(learning_rate)
        for slots in self.optimizer.slots:
            for slot, start in zip(slots, self.optimizer.moments, strict=True):
                slot.assign(tf.fill(slot.shape, start))

    def batch(
        self,
        user: NDArray[np.int64],
        item: NDArray[np.int64],
        seed: tuple[int, int],
        weight: NDArray[np.float32] | None = None,
    ) -> Batch:
        """Examples [B]; `seed` is what negatives are drawn by."""
        size = len(user)
        return as_tensors(
            Batch(
                query={"user_id": (user + 1).astype(np.int32)},
                item=item[:, np.newaxis],
                present=np.ones((size, 1), np.bool_),
                label=np.ones((size, 1), np.float32),
                known=np.zeros((size, 0), np.int64),
                shown=np.zeros((size, 0), np.int64),
                user=user,
                weight=np.ones(size, np.float32) if weight is None else weight,
                seed=np.array(seed, np.int32),
            )
        )

    def scores(self) -> NDArray[np.float32]:
        """float32 [U, N]: every user against every item."""
        user, item = (table[1:] for table in self.tables)
        return np.asarray(tf.matmul(user, item, transpose_b=True).numpy())

    def _step(self, batch: Batch) -> tf.Tensor:
        """As `towers.training.trainer.Trainer` does it."""
        with tf.GradientTape() as tape:
            loss = self.task.compute_loss(batch)
        self.optimizer.apply(tape.gradient(loss, self.optimizer.variables_in_order))
        return loss
