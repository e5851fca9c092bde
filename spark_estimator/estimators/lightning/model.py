"""`TorchModel` of Lightning: a trained LightningModule, or plain module, that predicts on DataFrames and arrays."""

from __future__ import annotations

from spark_estimator.estimators.torch import model as torch_model


class TorchModel(torch_model.TorchModel):
    """What Lightning's `TorchEstimator.fit` returns: see `model.TableModel`.

    Its model is the LightningModule, without a Trainer, or the plain module, as it was passed to the estimator.
    """

    _public_path = "spark_estimator.lightning.TorchModel"
