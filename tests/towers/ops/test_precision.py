"""`train.precision = "bfloat16"`: the same loss and gradients within its precision, and weights that stay float32."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import problems
from tests.support.worlds.training import group_world, recipe, task_of, trainer
from towers.training.prefetch import as_tensors

CASES: dict[str, dict[str, Any]] = {
    "blockwise": {},
    "all scores": {"loss": {"name": "sampled_softmax", "label_smoothing": 0.1}},
    "full softmax": {"loss": {"name": "full_softmax", "block": 8}},
    "layers": {"model": {"combine": "concat", "query_layers": [8], "candidate_layers": [8]}},
}


def gradients(sections: dict[str, Any], precision: str) -> list[np.ndarray]:
    events, tables, _ = group_world()
    task, examples = task_of(recipe(**sections, train={"precision": precision}), events, tables)
    batch = as_tensors(examples.batch(0, 0))
    task.compute_loss(batch)  # makes the layers
    with tf.GradientTape() as tape:
        loss = task.compute_loss(batch)
    assert loss.dtype == tf.float32
    found = tape.gradient(loss, task.trainable_variables)
    assert {v.dtype for v in task.trainable_variables} == {tf.float32}
    return [np.array(loss), *(tf.convert_to_tensor(each).numpy() for each in found if each is not None)]


@pytest.mark.parametrize("sections", CASES.values(), ids=CASES.keys())
def test_loss_and_gradients_are_those_of_float32_within_its_precision(sections: dict[str, Any]) -> None:
    plain, half = (gradients(sections, precision) for precision in ("float32", "bfloat16"))
    assert any(not np.array_equal(one, other) for one, other in zip(plain, half, strict=True))
    for one, other in zip(plain, half, strict=True):
        assert np.linalg.norm(one - other) <= 0.03 * np.linalg.norm(one)


@pytest.mark.parametrize("sections", CASES.values(), ids=CASES.keys())
def test_a_step_would_stay_on_a_gpu(sections: dict[str, Any], tmp_path: Path) -> None:
    built = trainer(tmp_path, validate=False, **sections, train={"precision": "bfloat16"})
    step = built._step.get_concrete_function(as_tensors(built.examples.batch(0, 0)))
    assert problems(step.graph) == []


def test_the_vector_itself_comes_from_a_layer_in_float32(tmp_path: Path) -> None:
    built = trainer(tmp_path, validate=False, **CASES["layers"], train={"precision": "bfloat16"})
    hidden, last = built.task.towers.query_tower.hidden
    assert (hidden.compute_dtype, hidden.variable_dtype, last.compute_dtype) == ("bfloat16", "float32", "float32")
