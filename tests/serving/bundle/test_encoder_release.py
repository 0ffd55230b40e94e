"""A tower that answers no more gives its vocabularies back; TensorFlow itself keeps them while the process lives."""

import gc
import threading
from pathlib import Path

import pytest

from serving.bundle.reader import Bundle
from tests.support.worlds.serving import FEATURES, write_whole_world


@pytest.mark.slow
def test_the_vocabularies_of_a_tower_go_with_it_and_those_of_others_stay(tmp_path: Path) -> None:
    import tensorflow as tf

    from serving.bundle.encoder import Encoder

    bundle = Bundle.open(write_whole_world(tmp_path))
    going, staying = Encoder.of_queries(bundle), Encoder.of_queries(bundle)
    request = {spec.name: None for spec in FEATURES} | {"user": "u5"}
    before = staying.encode([request])
    handles = list(going.tables)
    assert len(handles) == 3  # users, items, countries
    assert all(int(tf.raw_ops.LookupTableSizeV2(table_handle=handle)) > 0 for handle in handles)
    del going
    gc.collect()
    for handle in handles:
        with pytest.raises(tf.errors.NotFoundError):
            tf.raw_ops.LookupTableSizeV2(table_handle=handle)
    assert (staying.encode([request]) == before).all()


@pytest.mark.slow
def test_a_tower_that_goes_while_a_function_is_traced_leaves_nothing_in_its_graph(tmp_path: Path) -> None:
    """The collector comes when it likes."""
    import tensorflow as tf

    from serving.bundle.encoder import Encoder

    held = [Encoder.of_queries(Bundle.open(write_whole_world(tmp_path)))]
    handles = list(held[0].tables)

    @tf.function
    def traced() -> tf.Tensor:
        held.clear()
        gc.collect()
        return tf.constant(0)

    graph = traced.get_concrete_function().graph
    assert [operation.type for operation in graph.get_operations() if "Resource" in operation.type] == []
    for handle in handles:
        with pytest.raises(tf.errors.NotFoundError):
            tf.raw_ops.LookupTableSizeV2(table_handle=handle)


@pytest.mark.slow
def test_a_tower_that_goes_while_a_plain_graph_is_built_gives_its_vocabularies_back(tmp_path: Path) -> None:
    import tensorflow as tf

    from serving.bundle.encoder import Encoder

    held = [Encoder.of_queries(Bundle.open(write_whole_world(tmp_path)))]
    handles = list(held[0].tables)
    with tf.Graph().as_default() as graph:
        held.clear()
        gc.collect()
    for thread in threading.enumerate():
        if thread.name.endswith("(_destroy)"):
            thread.join()
    assert graph.get_operations() == []
    for handle in handles:
        with pytest.raises(tf.errors.NotFoundError):
            tf.raw_ops.LookupTableSizeV2(table_handle=handle)
