"""`TorchModel` of Lightning: a trained LightningModule, or plain module, that predicts on DataFrames and arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from torch import nn

from spark_estimator.estimators.torch import model as torch_model
from spark_estimator.estimators.torch.predictor import TorchPredictor


class TorchModel(torch_model.TorchModel):
    """What Lightning's `TorchEstimator.fit` returns: see `model.TableModel`.

    Its model is the LightningModule, without a Trainer, or the plain module: as it was given to the estimator.
    """

    _public_path = "spark_estimator.lightning.TorchModel"

    def get_prediction_fn(self) -> Callable[[nn.Module, Any], Any]:  # Horovod's name
        """A function of (module, row): the module's outputs for one row, a Row or a mapping with the feature columns.

        It returns an array of a row's values, or a list of such arrays where the module has several outputs. For many
        rows at a time there are `transform` and `predict`.
        """
        inputs, widths, decoders = self._renamed_inputs(), self._outputs, self._decoders()

        def predict(module: nn.Module, row: Any) -> Any:
            from spark_estimator.estimators.inference.predictor import matrices_of

            columns = {name: [row[name]] for field in inputs for name in field.names}
            predictor = TorchPredictor(b"", inputs, widths, 1, decoders)
            matrices = [numpy.require(matrix, requirements="W") for matrix in matrices_of(columns, inputs, decoders)]
            outputs = [output.reshape(-1) for output in predictor.called(module.eval(), matrices)]
            return outputs[0] if len(outputs) == 1 else outputs

        return predict
