"""`TorchEstimator`: trains a PyTorch model on a DataFrame, on several processes of the Spark session."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from spark_estimator.estimators.estimator import TableEstimator
from spark_estimator.estimators.inference.prediction_columns import OutputKind, get_output_kind
from spark_estimator.estimators.params import add_params
from spark_estimator.estimators.rows.shapes import Trial
from spark_estimator.estimators.torch import advice
from spark_estimator.estimators.torch.check import TorchTrial
from spark_estimator.estimators.torch.epoch_means import counts_rows
from spark_estimator.estimators.torch.estimator_files import TorchFiles
from spark_estimator.estimators.torch.identity import compute_digest
from spark_estimator.estimators.torch.keywords import TorchEstimatorKeywords
from spark_estimator.estimators.torch.losses import TorchParts
from spark_estimator.estimators.torch.model import TorchModel
from spark_estimator.estimators.torch.params import ESTIMATOR
from spark_estimator.estimators.torch.parts import make_parts
from spark_estimator.estimators.torch.training import train
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec


@add_params(ESTIMATOR)
class TorchEstimator(TorchEstimatorKeywords, TorchFiles, TableEstimator[TorchModel]):
    """Trains a PyTorch model on the rows of a DataFrame: ``model = TorchEstimator(...).fit(df)``.

    The rows are distributed evenly over `num_proc` processes, which Spark starts together. Each process keeps its rows
    on its host's disk during training and reads them in a different order in each epoch. Gradients, loss and metrics
    are means over all rows of a step, however they are distributed.

    The model is called with one tensor per feature column; if it takes a single input, the columns are concatenated.
    Columns may be numbers, booleans, dates, arrays, vectors and, with a decoder, bytes (`data.columns` has the table).

    All parameters are keywords; call ``explainParams()`` for the full list.

    Raises:
        TypeError, ValueError: a parameter is unknown or invalid.
    """

    _public_path = "spark_estimator.TorchEstimator"
    _prefix = "torch"
    _model_kind = TorchModel
    _objects = (
        *("model", "optimizer", "loss", "loss_constructors", "metrics", "lr_scheduler", "gradient_compression"),
        *("callbacks", "train_minibatch_fn", "decoders", "transformation_fn"),
    )

    def _make_training(self) -> _TorchTraining:
        parts, labels = make_parts(self._value)
        advice.warn_of_metrics(parts, counts_rows)
        return _TorchTraining(parts, labels, self._value("monitor"))


class _TorchTraining:
    """See `estimator.FrameworkTraining`."""

    def __init__(self, parts: TorchParts, labels: list[str], monitor: str | None) -> None:
        self.framework: Any = parts
        self.labels = labels
        # A user's function has no point at which all ranks have finished a step.
        self.recovers, self.saves_within = parts.minibatch is None, True
        self.state_bytes = sum(
            tensor.nbytes for tensor in parts.model.state_dict().values() if isinstance(tensor, torch.Tensor)
        )
        self.output_kinds: Sequence[OutputKind] = [get_output_kind(loss) for loss in parts.losses]
        schedule = parts.recipe.schedule
        self.trial: Trial = TorchTrial(parts, (monitor, schedule.monitor if schedule else None))
        self.train: Callable[[TrainSpec], TrainResult | None] = train

    def compute_digest(self) -> str:
        """See `estimator.FrameworkTraining.compute_digest`."""
        return compute_digest(self.framework.model)

    def load_trained(self, state: bytes) -> tuple[nn.Module, torch.optim.Optimizer | None]:
        """See `estimator.FrameworkTraining.load_trained`: on the CPU, ready to predict."""
        content = torch.load(io.BytesIO(state), weights_only=True)
        module: nn.Module
        module, optimizer = copy.deepcopy((self.framework.model, self.framework.optimizer))  # of the copy's parameters
        module.cpu().load_state_dict(content["model"])
        if "optimizer" not in content:
            return module.eval(), None
        optimizer.load_state_dict(content["optimizer"])
        return module.eval(), optimizer
