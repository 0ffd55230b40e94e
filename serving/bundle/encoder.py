"""Encodes features with a bundle's SavedModels; the only file of `serving` that imports TensorFlow."""

import os
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.bundle.arrays import CANDIDATE_TOWER, QUERY_TOWER
from serving.bundle.manifest import FeatureSpec
from serving.bundle.reader import Bundle
from serving.bundle.request_features import check_features, to_columns
from serving.errors import BundleError
from serving.search.index import Floats

# Set before the import: TensorFlow's start-up messages drown the service's own log.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# TensorFlow's last act is to import Keras, 2 or 3 as the environment says, and with it scikit-learn and Matplotlib: two
# fifths of the time and a quarter of the memory, for which a SavedModel has no use. None stands for "not installed";
# `tf.keras` still loads it. A program that says `from tensorflow.keras import …` imports TensorFlow before this file.
_UNUSED = [name for name in ("keras", "tf_keras") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_UNUSED))  # type: ignore[arg-type]
import tensorflow as tf  # noqa: E402

for _name in _UNUSED:
    del sys.modules[_name]

OUTPUT = "embeddings"
INFORMED = "informed"


class Encoder:
    """A tower of a bundle; `of_queries` and `of_items` load one.

    Attributes:
        tables: handles of its vocabularies.

    Args:
        path: the SavedModel.
        features: its inputs.
        dimension: D.

    Raises:
        BundleError: the SavedModel cannot be loaded, or its signature differs from the manifest.
    """

    def __init__(self, path: Path, features: Sequence[FeatureSpec], dimension: int) -> None:
        self.path, self.features, self.dimension = path, features, dimension
        try:
            # The model owns the signature's variables: without this reference they would be freed.
            self._model = tf.saved_model.load(str(path))
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise BundleError(f"{path}: TensorFlow cannot load it: {error}") from None
        if "serving_default" not in self._model.signatures:
            raise BundleError(f"{path}: no signature 'serving_default'")
        self._signature = self._model.signatures["serving_default"]
        # TensorFlow never frees the vocabularies of a SavedModel, megabytes each: destroy them with this object.
        variables = {id(variable.handle) for variable in self._signature.graph.variables}
        captured = [each for each in self._signature.captured_inputs if each.dtype == tf.resource]
        self.tables = [each for each in captured if id(each) not in variables]
        weakref.finalize(self, _destroy, self.tables).atexit = False
        inputs = self._signature.structured_input_signature[1]
        wanted = {spec.name: spec.dtype for spec in self.features}
        found = {name: spec.dtype.name for name, spec in inputs.items()}
        if found != wanted:
            raise BundleError(f"{path}: takes {found}, the manifest says {wanted}")
        for spec in self.features:
            shape, rank = inputs[spec.name].shape, 1 if spec.length is None else 2
            if shape.rank is not None and (shape.rank != rank or shape[0] is not None):
                batch = "a batch of any size: [None]" if rank == 1 else "a batch of lists, of any size: [None, None]"
                raise BundleError(f"{path}: its input {spec.name} must be {batch}, is {shape.as_list()}")
        if OUTPUT not in (outputs := self._signature.structured_outputs):
            raise BundleError(f"{path}: has no output {OUTPUT!r}, but {', '.join(sorted(outputs))}")
        # A signature may fix the length of a list; the shorter lists of a batch are then padded up to it.
        self._least_lengths = {
            name: spec.shape[1] or 1
            for name, spec in inputs.items()
            if spec.shape.rank is not None and spec.shape.rank > 1
        }

    @classmethod
    def of_queries(cls, bundle: Bundle) -> "Encoder":
        """The query tower."""
        return cls(bundle.path / QUERY_TOWER, bundle.manifest.query_features, bundle.manifest.dimension)

    @classmethod
    def of_items(cls, bundle: Bundle) -> "Encoder":
        """The candidate tower."""
        return cls(bundle.path / CANDIDATE_TOWER, bundle.manifest.candidate_features, bundle.manifest.dimension)

    def encode(self, requests: Sequence[Mapping[str, Any]]) -> Floats:
        """The vectors of B requests; features left out count as missing.

        Args:
            requests: feature name -> value; see `FeatureSpec`.

        Returns:
            float32 [B, D], finite; zero for a request about which training learnt nothing.

        Raises:
            RequestError: names the feature at fault.
        """
        for request in requests:
            check_features(self.features, request)
        if not requests:
            return np.empty((0, self.dimension), np.float32)
        vectors = self._raw(requests)
        # A number far outside the training data may overflow in a tower: treat the request as unknown.
        finite: NDArray[np.bool_] = np.asarray(np.isfinite(vectors).all(axis=1))
        return vectors if finite.all() else np.where(finite[:, np.newaxis], vectors, np.float32(0))

    def _raw(self, requests: Sequence[Mapping[str, Any]]) -> Floats:
        """The tower's output, which may not be finite."""
        columns = to_columns(self.features, requests, self._least_lengths)
        inputs = {spec.name: tf.constant(columns[spec.name], dtype=spec.dtype) for spec in self.features}
        outputs = self._signature(**inputs)
        vectors: Floats = outputs[OUTPUT].numpy()
        if INFORMED in outputs:
            vectors = np.where(outputs[INFORMED].numpy()[:, np.newaxis], vectors, np.float32(0))
        return vectors

    def warm_up(self) -> None:
        """Makes one call with everything missing, so that the first request does not pay for TensorFlow's set-up.

        Raises:
            BundleError: the tower fails, or its output is not finite [1, D].
        """
        try:
            vectors = self._raw([{}])
        except (tf.errors.OpError, KeyError, ValueError, TypeError) as error:
            raise BundleError(f"{self.path}: fails on a request without features: {error}") from None
        if vectors.shape != (1, self.dimension) or not np.isfinite(vectors).all():
            raise BundleError(f"{self.path}: must give finite [1, {self.dimension}], gave {vectors}")


def _destroy(tables: list[Any]) -> None:
    # The collector may run while a function is traced, whose graph would then capture the operation; or while a plain
    # graph is built, as when a SavedModel is opened. The only way out of the latter is another thread.
    with tf.init_scope():
        if tf.executing_eagerly():
            for table in tables:
                tf.raw_ops.DestroyResourceOp(resource=table, ignore_lookup_error=True)
        else:
            threading.Thread(target=_destroy, args=(tables,)).start()
