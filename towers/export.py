"""A tower as a SavedModel over raw features: what any process with only TensorFlow in it can load and run.

In: a trained `Tower`. Out: a directory whose `serving_default` takes the raw features by name and gives
`embeddings` and `informed`.
"""

from pathlib import Path

import tensorflow as tf

from towers.model import Tower


class RawTower(tf.Module):
    """Raw features by name in; out ``embeddings`` float32 [B, D] and ``informed`` bool [B].

    Where nothing that came was learnt in training, `informed` is False and the vector means nothing.
    """

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower
        self.signature = tf.function(self._embed, autograph=False).get_concrete_function(
            **{each.name: each for encoder in tower.encoders for each in encoder.spec.signatures()}
        )

    def _embed(self, **raw: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = self.tower.lookup(raw)
        return {"embeddings": self.tower.serve(rows), "informed": self.tower.informed(rows)}


def save_tower(tower: Tower, directory: Path) -> None:
    """Writes `tower` with its vocabularies as a SavedModel: no absolute path, no ops but TensorFlow's own."""
    raw = RawTower(tower)
    tf.saved_model.save(raw, str(directory), signatures={"serving_default": raw.signature})
