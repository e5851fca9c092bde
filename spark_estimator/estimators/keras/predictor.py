"""Predicts with a Keras model: what Spark's Python workers run for `KerasModel.transform`.

Nothing here imports Keras before the backend in the payload is known.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import numpy

from spark_estimator.data.fields import Array
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators.inference.predictor import Predictor
from spark_estimator.estimators.keras.arrays import to_arrays, to_inputs, to_outputs
from spark_estimator.estimators.keras.spec import choose_backend

_DIGEST_BYTES = 32


class KerasPredictor(Predictor):
    """A Keras model, serialized for Spark's workers."""

    @classmethod
    def of(
        cls, model: Any, custom_objects: Mapping[str, Any], encoder: RowEncoder, widths: Sequence[int], batch_size: int
    ) -> KerasPredictor:
        """Return a predictor with a copy of the model as it is now."""
        from spark_estimator.estimators.keras.objects import compute_digest, dump_model, pack
        from spark_estimator.estimators.keras.parts import get_backend_name

        content, objects = dump_model(model), pack("custom_objects", dict(custom_objects))
        payload = compute_digest(content, model) + cloudpickle.dumps((get_backend_name(model), content, objects))
        return cls(payload, encoder, tuple(widths), batch_size)

    def _compute_digest(self) -> str:
        return self.payload[:_DIGEST_BYTES].hex()  # a .keras file contains the time at which it was written

    def load(self) -> Any:
        """See `Predictor.load`. A worker whose Keras runs on another backend already predicts on that one."""
        source = self.open_payload()
        with open(source, "rb") if isinstance(source, str) else source as content:
            content.seek(_DIGEST_BYTES)
            backend, model, custom_objects = pickle.load(content)  # noqa: S301  # from the driver
        if not {"keras", "tf_keras"} & sys.modules.keys():
            choose_backend(backend)
        from spark_estimator.estimators.keras import objects as keras_objects

        return keras_objects.load_dumped(model, keras_objects.unpack(custom_objects))

    def call(self, model: Any, matrices: Sequence[Array]) -> list[Array]:
        """See `Predictor.call`."""
        from spark_estimator.keras.importing import backend

        rows = len(matrices[0])
        arrays = to_arrays(matrices, self.inputs)
        if backend(model) == "jax":  # which compiles the model for each number of rows
            arrays = [_fill_rows(array, self.batch_size) for array in arrays]
        outputs = to_outputs(model.predict_on_batch(to_inputs(model, arrays, self.inputs)))
        result = []
        for output in outputs:
            array = numpy.asarray(output)[:rows]
            wide = array.dtype.itemsize > 4 or array.dtype.kind in "iu"
            result.append(array.astype(numpy.float64 if wide else numpy.float32))
        return result


def _fill_rows(array: Array, most: int) -> Array:
    """Return an array with its last row repeated, so that its rows are a power of 2, or `most`."""
    rows = min(most, 1 << (len(array) - 1).bit_length())
    if rows <= len(array):
        return array
    return numpy.concatenate([array, numpy.repeat(array[-1:], rows - len(array), axis=0)])
