"""Removes a user from an exported tower: the line of its vocabulary, and the rows that training learnt for it."""

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from serving.files.staging import remove


def forget_in_tower(tower: Path, asset: str, line: int, encoders: Sequence[int]) -> None:
    """Rewrites a SavedModel that is not published yet.

    Args:
        tower: the directory, written by `towers.model.two_tower.save_tower`.
        asset: the file of the vocabulary that holds the user.
        line: the user's line in it, from 0.
        encoders: positions of the features that read this vocabulary.
    """
    vocabulary = tower / "assets" / asset
    lines = vocabulary.read_bytes().split(b"\n")
    # Every other line keeps its number, which is a row of the tables; no value may stand on two lines. Not at random:
    # all bundles of a model get the same line, by which a gate and `towers daily` know them as one model's.
    lines[line] = b"forgotten %d" % line
    while lines.count(lines[line]) > 1:
        lines[line] += b"."
    vocabulary.write_bytes(b"\n".join(lines))
    model = tf.saved_model.load(str(tower))
    for place in encoders:
        encoder = model.tower.encoders[place]
        # `neighbours` has a weight for each row beside the table.
        for variable in (encoder.table, getattr(encoder, "weight", None)):
            if variable is not None:
                row = tf.zeros_like(variable[line + 1])  # row 0 is for missing values
                variable.assign(tf.tensor_scatter_nd_update(variable, [[line + 1]], row[tf.newaxis]))
    saved = tower.with_name(f"{tower.name}.saved")
    tf.saved_model.save(model, str(saved), signatures=model.signatures)
    remove(tower)
    saved.rename(tower)
