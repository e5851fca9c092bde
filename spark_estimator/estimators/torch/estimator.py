"""`TorchEstimator`: trains a PyTorch model on a DataFrame, on several processes of the Spark session."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from spark_estimator.estimators import checks, estimator, params
from spark_estimator.estimators.inference.prediction_columns import Meaning, meaning_of
from spark_estimator.estimators.params import Row, with_params
from spark_estimator.estimators.rows.shapes import Trial
from spark_estimator.estimators.torch.check import TorchTrial
from spark_estimator.estimators.torch.estimator_files import TorchFiles
from spark_estimator.estimators.torch.losses import TorchParts
from spark_estimator.estimators.torch.model import TorchModel
from spark_estimator.estimators.torch.parts import parts_of
from spark_estimator.estimators.torch.training import train
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec

_ROWS = (
    *params.SHARED,
    *params.PREDICTING,
    Row(
        "learning_rate",
        None,
        checks.positive,
        "takes the place of the optimizer's own, for a ParamGridBuilder; None: that is kept",
    ),
    Row("lr_scheduler", None, checks.anything, "a scheduler of the optimizer, moved after each epoch; None: none"),
    Row("loss_constructors", None, checks.listed, "functions that make the losses, in place of loss"),
    Row("callbacks", [], checks.listed, "objects with methods of torch_callbacks.Callback, called on every rank"),
    Row(
        "train_minibatch_fn",
        None,
        checks.anything,
        "a step of one's own: (model, optimizer, transform_outputs, loss_fn, inputs, labels, sample_weights) -> "
        "(outputs, loss); None: ours",
    ),
    Row("mixed_precision", None, checks.precision, "'bf16': forward passes run under autocast; None: they do not"),
)


@with_params(_ROWS)
class TorchEstimator(TorchFiles, estimator.TableEstimator[TorchModel]):
    """Trains a PyTorch model on the rows of a DataFrame: ``model = TorchEstimator(...).fit(df)``.

    The rows are spread evenly over `num_proc` processes, which Spark starts together; each keeps its share on its
    host's disk while training runs, and reads it from there in another order in each epoch. Gradients are averaged over
    all rows of a step, however they are spread: loss and metrics are means over rows.

    The model is called with one tensor for each feature column; when it takes a single input, with all columns side by
    side. Columns may be numbers, booleans, dates, arrays, vectors and, with a decoder, bytes (`data.columns` has the
    table).

    All parameters are keywords; ``explainParams()`` tells them.

    Raises:
        TypeError, ValueError: a parameter that is unknown or cannot be used.
    """

    _prefix = "torch"
    _model_kind = TorchModel
    _objects = (
        *("model", "optimizer", "loss", "loss_constructors", "metrics", "lr_scheduler", "gradient_compression"),
        *("callbacks", "train_minibatch_fn", "decoders", "transformation_fn"),
    )

    def _training(self) -> _TorchTraining:
        return _TorchTraining(*parts_of(self._value))


class _TorchTraining:
    """See `estimator.Training`."""

    def __init__(self, parts: TorchParts, labels: list[str]) -> None:
        self.framework: Any = parts
        self.labels = labels
        self.state_bytes = sum(one.nbytes for one in parts.model.state_dict().values() if isinstance(one, torch.Tensor))
        self.meanings: Sequence[Meaning] = [meaning_of(loss) for loss in parts.losses]
        self.trial: Trial = TorchTrial(parts)
        self.train: Callable[[TrainSpec], TrainResult | None] = train

    def trained(self, state: bytes) -> nn.Module:
        """See `estimator.Training.trained`: on the CPU, ready to predict."""
        trained: nn.Module = copy.deepcopy(self.framework.model).cpu()
        trained.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
        return trained.eval()
