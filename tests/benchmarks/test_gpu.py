"""The proof on a GPU: what is exported is what TensorFlow computes, and JAX on this CPU computes the same from it."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.gpu import cells
from benchmarks.gpu.archive import load, save
from benchmarks.gpu.compare import MOST, Outcome, distance, near
from benchmarks.gpu.export import STEPS, batch_of, exact_products, task_of
from benchmarks.gpu.export import main as export
from benchmarks.gpu.hlo import entry_of
from tests.support.paths import ROOT

LEARNS = "sampled_softmax with learned_unigram"  # a sampler with a state of its own
BLOCKS = "full_softmax"  # a gradient by the library's own function
DISTINCT = "sampled_softmax with log_uniform, distinct"  # a loop that ends by what is drawn


class Two(NamedTuple):
    """A batch of two parts, and one that is empty."""

    more: dict[str, tf.Tensor]
    none: tf.Tensor
    rows: tf.Tensor


def test_every_loss_and_every_sampler_that_the_docs_list_has_a_cell() -> None:
    page = (ROOT / "docs" / "model" / "objectives.md").read_text(encoding="utf-8")
    losses, samplers = (re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) for table in page.split("| sampler |"))
    every = cells.cells().values()
    assert {cell.loss["name"] for cell in every} == set(losses)
    softmax = [cell for cell in every if cell.loss["name"] == "sampled_softmax"]
    assert {cell.sampler["name"] for cell in softmax if cell.sampler} == set(samplers)


def test_an_entry_has_the_arrays_of_the_batches_and_the_state_and_says_what_is_written() -> None:
    written, read = tf.Variable([1.0, 2.0, 3.0]), tf.Variable(5, dtype=tf.int64)

    @tf.function(jit_compile=True, autograph=False)
    def run(batch: Two) -> list[tf.Tensor]:
        total = tf.reduce_sum(batch.more["b"]) + tf.cast(read, tf.float32)
        written.scatter_add(tf.IndexedSlices(tf.fill(tf.shape(batch.rows), total), batch.rows))
        return [total, batch.more["a"]]

    batch = Two({"b": tf.constant([1.0, 2.0]), "a": tf.constant([True])}, tf.zeros([4, 0]), tf.constant([2, 0, 2, 1]))
    entry = entry_of(run, [batch, batch])
    for arrays in entry["batches"]:
        assert [each.tolist() for each in arrays] == [[True], [1.0, 2.0], [2, 0, 2, 1]]
    assert len(entry["batches"]) == len(entry["state"]) == 2
    (place,) = entry["written"]
    assert entry["state"][place].tolist() == [1.0, 2.0, 3.0]
    assert entry["state"][1 - place].tolist() == 5
    assert entry["results"] == [("float32", ()), ("bool", (1,)), ("float32", (3,))]


def test_a_module_that_calls_code_of_this_processor_is_refused() -> None:
    @tf.function(jit_compile=True, autograph=False)
    def run(batch: tf.Tensor) -> tf.Tensor:
        return tf.linalg.eigh(batch)[0]

    with pytest.raises(ValueError, match="the module calls Eigh, which another device may not have"):
        entry_of(run, [tf.eye(3)])


def test_an_export_holds_what_tensorflow_computes_step_by_step(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gpu.npz"
    assert export(path, [LEARNS], []) == 0
    (entry,) = load(path)["cells"].values()
    cell = cells.cells()[LEARNS]
    assert cell.sampler == {"name": "learned_unigram", "negatives": cells.NEGATIVES}
    task = task_of(cell, cells.SMALL)
    # But for the scratch of each table, whose winners are any of equal rows.
    scratch = [entry["state"][place].shape for place in entry["written"] if place not in entry["compares"]]
    assert sorted(scratch) == sorted((table.shape[0],) for table in task.tables)
    start = {number: entry["state"][place] for number, place in enumerate(entry["compares"])}
    tables = [next(n for n, each in start.items() if np.array_equal(each, table)) for table in task.tables]
    expected = entry["expected"]
    losses = []
    for number in range(STEPS):
        batch = batch_of(task, cells.SMALL, number)
        # Without a graph.
        with tf.GradientTape() as tape:
            loss = task.task.compute_loss(batch)
        slopes = tape.gradient(loss, task.optimizer.variables_in_order)
        if not number:
            dense = [tf.convert_to_tensor(each).numpy() for each in slopes if each is not None]
            for ours, theirs in zip(dense, expected["gradients"], strict=True):
                np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-7)
        task.optimizer.apply(slopes)
        losses.append(loss.numpy())
    np.testing.assert_allclose(expected["losses"], losses, rtol=1e-5)
    for number, table in zip(tables, task.tables, strict=True):
        moved = np.linalg.norm(expected["state"][number] - start[number])
        assert np.linalg.norm(expected["state"][number] - table.numpy()) < 1e-3 * moved
    # The sampler's list holds one batch: its counts start at 1, and each of the last positives adds 1.
    counts = 1 + np.bincount(batch.item.numpy()[:, 0], minlength=cells.SMALL.items)
    assert any(np.array_equal(each, counts) for each in expected["state"])


def test_cells_multiply_in_float32_where_a_gpu_would_take_less() -> None:
    @tf.function(jit_compile=True, autograph=False)
    def product(matrix: tf.Tensor) -> tf.Tensor:
        return tf.matmul(matrix, matrix)

    def exact(size: int) -> bool:
        return "operand_precision={highest,highest}" in product.experimental_get_compiler_ir(tf.eye(size))(stage="hlo")

    with exact_products():
        assert exact(3)
    assert not exact(4)


def test_equal_arrays_are_kept_once_and_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    arrays = [np.zeros(2), np.zeros(2), np.zeros((1, 2)), np.zeros(2, np.float32), np.float32(7)]
    save(path, {"arrays": arrays, "text": {"a": [1, 0.5, None]}})
    content = load(path)
    assert [(each.shape, each.dtype.name) for each in content["arrays"]] == [
        ((2,), "float64"),
        ((2,), "float64"),
        ((1, 2), "float64"),
        ((2,), "float32"),
        ((), "float32"),
    ]
    assert content["arrays"][-1] == 7
    assert content["text"] == {"a": [1, 0.5, None]}
    with np.load(path) as file:
        assert len(file.files) == 1 + 4
    path.write_text("[]")
    for other in (path, tmp_path / "absent"):
        with pytest.raises(ValueError, match=r"format None, must be 1; make it by python -m benchmarks.gpu.export"):
            load(other)


def test_distances_are_shares_of_the_loss_the_gradient_and_the_way_that_the_state_went() -> None:
    def outcome(losses: list[float], gradient: list[float], weights: list[float], count: int = 3) -> Outcome:
        return Outcome(np.array(losses), [np.array(gradient)], [np.array(weights), np.array(count)])

    start = [np.array([0.0, 0.0]), np.array(1)]
    true = outcome([2.0, 4.0], [3.0, 4.0], [0.6, 0.8])
    assert distance(true, true, start) == (0.0, 0.0, 0.0, 0)
    # 0.5 of 4; (0.3, 0.4) of (3, 4); 0.1 of a way of length 1.
    far = distance(outcome([2.0, 3.5], [3.3, 4.4], [0.6, 0.9], 4), true, start)
    np.testing.assert_allclose(far, [0.125, 0.1, 0.1, 1], rtol=1e-9)
    still = outcome([2.0, 4.0], [0.0, 0.0], [0.0, 0.0])
    assert distance(still._replace(gradients=[np.array([0.0, 1.0])]), still, start) == (0, np.inf, 0, 0)
    assert distance(true._replace(losses=np.array([2.0, np.nan])), true, start).losses == np.inf


@pytest.mark.parametrize("key", ["losses", "gradients", "state", "integers"])
def test_a_cell_is_near_up_to_the_tolerance_and_no_further(key: str) -> None:
    assert near(MOST)
    assert not near(MOST._replace(**{key: 1.01 * getattr(MOST, key) or 1}))


STABLE = """
import sys
from pathlib import Path
from benchmarks.gpu.archive import load
from benchmarks.gpu.jax_step import without_copies
from jax.extend.mlir import hlo_to_stablehlo, ir
from jax.interpreters.mlir import make_ir_context
module = hlo_to_stablehlo(next(iter(load(Path(sys.argv[1]))["cells"].values()))["module"].tobytes())
with make_ir_context():
    for each in (module, without_copies(module)):
        print("mhlo.copy" in str(ir.Module.parse(each)))
"""


@pytest.mark.long
@pytest.mark.skipif(find_spec("jax") is None, reason="needs pip install -r benchmarks/gpu/requirements.txt")
def test_no_copy_is_left_of_which_jax_would_refuse_the_module_for_a_gpu(tmp_path: Path) -> None:
    assert export(tmp_path / "gpu.npz", [BLOCKS], []) == 0
    command = [sys.executable, "-c", STABLE, str(tmp_path / "gpu.npz")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


RUN = """
import sys
from pathlib import Path
sys.modules["tensorflow"] = None  # as on a machine that has none
from benchmarks.gpu.run import main
sys.exit(main(Path(sys.argv[1]), 64, dry=True))
"""


@pytest.mark.long
@pytest.mark.skipif(find_spec("jax") is None, reason="needs pip install -r benchmarks/gpu/requirements.txt")
def test_jax_comes_to_what_tensorflow_does_and_says_where_it_does_not(tmp_path: Path) -> None:
    path = tmp_path / "gpu.npz"
    chosen = [BLOCKS, LEARNS, DISTINCT]
    assert export(path, chosen, [64, 128]) == 0

    def run() -> tuple[int, list[str]]:
        command = [sys.executable, "-c", RUN, str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout.splitlines()

    code, lines = run()
    assert code == 0
    assert [line.split(":")[0] for line in lines[1:-1]] == [*chosen, *(f"{name}, 64" for name in cells.timed())]
    assert lines[-1] == '{"3 cells: losses, gradients and state are TensorFlow\'s": true}'
    # One array of one cell, off by a hundredth of the way that the steps moved it.
    content: dict[str, Any] = load(path)
    entry = content["cells"][LEARNS]
    table = next(number for number, each in enumerate(entry["expected"]["state"]) if each.ndim == 2)
    end, start = entry["expected"]["state"][table], entry["state"][entry["compares"][table]]
    entry["expected"]["state"][table] = end + 0.01 * (end - start)
    save(path, content)
    code, lines = run()
    assert code == 1
    assert lines[-1] == f"not near: {LEARNS}"
