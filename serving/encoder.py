"""Features to vectors through a bundle's SavedModels: the only file of `serving` that knows TensorFlow.

In: features of B requests or items. Out: float32 [B, D].
"""

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.bundle import Bundle
from serving.bundle_files import CANDIDATE_TOWER, QUERY_TOWER
from serving.errors import BundleError
from serving.features import check_features, to_columns
from serving.index import Floats
from serving.manifest import FeatureSpec

# Must stand before the import: TensorFlow's start-up notes drown the service's own lines.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

OUTPUT = "embeddings"
INFORMED = "informed"


class Encoder:
    """A tower of a bundle; `of_queries` and `of_items` load one.

    Attributes:
        tables: handles of its vocabularies.

    Args:
        path: the SavedModel.
        features: what it takes.
        dimension: D.

    Raises:
        BundleError: the SavedModel cannot be loaded, or its signature is not the manifest's.
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
        # TensorFlow keeps the vocabularies of a SavedModel for good, megabytes of each: they go when this object goes.
        variables = {id(variable.handle) for variable in self._signature.graph.variables}
        captured = [each for each in self._signature.captured_inputs if each.dtype == tf.resource]
        self.tables = [each for each in captured if id(each) not in variables]
        weakref.finalize(self, _destroy, self.tables).atexit = False
        inputs = self._signature.structured_input_signature[1]
        wanted = {spec.name: spec.dtype for spec in self.features}
        found = {name: spec.dtype.name for name, spec in inputs.items()}
        if found != wanted:
            raise BundleError(f"{path}: takes {found}, the manifest says {wanted}")
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
            float32 [B, D], finite; zero for a request of which training learnt nothing.

        Raises:
            RequestError: names the feature at fault.
        """
        for request in requests:
            check_features(self.features, request)
        if not requests:
            return np.empty((0, self.dimension), np.float32)
        vectors = self._raw(requests)
        # A number far beyond all of training may overflow in a tower: of such a request nothing is known.
        finite: NDArray[np.bool_] = np.asarray(np.isfinite(vectors).all(axis=1))
        return vectors if finite.all() else np.where(finite[:, np.newaxis], vectors, np.float32(0))

    def _raw(self, requests: Sequence[Mapping[str, Any]]) -> Floats:
        """What the tower gives, whatever it is."""
        columns = to_columns(self.features, requests, self._least_lengths)
        inputs = {spec.name: tf.constant(columns[spec.name], dtype=spec.dtype) for spec in self.features}
        outputs = self._signature(**inputs)
        vectors: Floats = outputs[OUTPUT].numpy()
        if INFORMED in outputs:
            vectors = np.where(outputs[INFORMED].numpy()[:, np.newaxis], vectors, np.float32(0))
        return vectors

    def warm_up(self) -> None:
        """One call with everything missing, so that the first request does not pay for TensorFlow's set-up.

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
    # The collector may come while a function is traced, which would take the operation into its graph; or while a plain
    # graph is built, as when a SavedModel is opened. There is no way out of that one but another thread.
    with tf.init_scope():
        if tf.executing_eagerly():
            for table in tables:
                tf.raw_ops.DestroyResourceOp(resource=table, ignore_lookup_error=True)
        else:
            threading.Thread(target=_destroy, args=(tables,)).start()
