"""Lightning's `TorchEstimator`: trains a LightningModule, or a plain one, by a Trainer on each of several processes."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spark_estimator.estimators import checks, estimator, params
from spark_estimator.estimators.inference.prediction_columns import Meaning, meaning_of
from spark_estimator.estimators.lightning.check import LightningTrial
from spark_estimator.estimators.lightning.model import TorchModel
from spark_estimator.estimators.lightning.parts import LightningParts, parts_of
from spark_estimator.estimators.lightning.training import train
from spark_estimator.estimators.params import Row, with_params
from spark_estimator.estimators.rows.shapes import Trial
from spark_estimator.estimators.torch.check import TorchTrial
from spark_estimator.estimators.torch.estimator_files import TorchFiles
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = (
    *params.SHARED,
    *params.PREDICTING,
    Row("loss_constructors", None, checks.listed, "functions that make a plain module's losses, in place of loss"),
    Row("callbacks", [], checks.listed, "Lightning's callbacks, each a copy of its own on every rank"),
    Row("logger", None, checks.anything, "Lightning's logger; None: TensorBoard's in the store, where both are there"),
    Row("log_every_n_steps", 50, checks.whole(1), "how often the logger is told"),
    Row("num_gpus", None, checks.whole(0), "GPUs of each process: 0 is use_gpu=False, more than 1 is refused"),
    Row(
        "data_module",
        None,
        checks.anything,
        "a LightningDataModule, or its class, which is made without arguments on each rank: its loaders take the place "
        "of the DataFrame, whose first rows then only tell the columns' types",
    ),
    Row("trainer_args", None, checks.anything, "a dict of arguments of the Trainer, which take the place of ours"),
    Row(
        "scale_lr",
        True,
        checks.truth,
        "the learning rate is multiplied by the number of processes, as in Horovod; False: it stays as it is",
    ),
    Row("terminate_on_nan", False, checks.truth, "a batch without a finite loss ends the training; else an epoch does"),
    Row("profiler", None, checks.anything, "Lightning's profiler, or its name"),
)

#: As `params.WITHOUT_EFFECT`.
_WITHOUT_EFFECT = {
    "loader_num_epochs": "an epoch is all rows of a process",
    "debug_data_loader": "rows are mapped from disk; there is no reader to be debugged",
    "train_async_data_loader_queue_size": "a thread makes the next batches anyway",
    "val_async_data_loader_queue_size": "a thread makes the next batches anyway",
}


@with_params(_ROWS)
class TorchEstimator(TorchFiles, estimator.TableEstimator[TorchModel]):
    """Trains a LightningModule on the rows of a DataFrame: ``model = TorchEstimator(model=..., ...).fit(df)``.

    Each of `num_proc` processes has a Trainer with the strategy "horovod". The module's ``training_step`` and
    ``validation_step`` get batches as dicts from the names of the feature, label and weight columns to tensors; its
    ``forward`` is called with a tensor for each feature column, to predict. A loss that is a mean over the rows of its
    batch is, over the ranks, the mean over all rows of the step, however they are spread; so is the loss in the history
    (of steps that return it). What the module logs is there as ``logged``, for each epoch: averaged over ranks, where
    Lightning has not done so. A rank that has no row left for the last step takes part in it with one that does not
    count for gradients and losses, but does for what the module logs.

    The learning rate is that of one process. As in Horovod, it is multiplied by the number of ranks; a log line of rank
    0 has both. `HorovodStrategy(scale_lr=True)` does it, which says how schedules follow. A run that goes on from its
    checkpoint on another number of ranks has the learning rate of that number. `scale_lr=False` is for a
    ``configure_optimizers`` that multiplies by ``self.trainer.world_size`` itself. A plain module with `optimizer` and
    `loss` is trained as `spark_estimator.TorchEstimator` does it: its learning rate is multiplied in its steps alone. A
    callback that ends the training on one rank ends it on all.

    All parameters are keywords; ``explainParams()`` tells them.

    Raises:
        TypeError, ValueError: a parameter that is unknown or cannot be used.
    """

    _prefix = "lightning"
    _model_kind = TorchModel
    _objects = (
        *("model", "optimizer", "loss", "loss_constructors", "metrics", "gradient_compression", "callbacks", "logger"),
        *("profiler", "data_module", "trainer_args", "decoders", "transformation_fn"),
    )

    def _take(self, given: dict[str, Any]) -> None:
        for name in _WITHOUT_EFFECT.keys() & given.keys():
            warnings.warn(f"{name} has no effect: {_WITHOUT_EFFECT[name]}.", stacklevel=3)
        super()._take({name: value for name, value in given.items() if name not in _WITHOUT_EFFECT})

    def _value(self, name: str) -> Any:
        if name == "use_gpu" and super()._value("num_gpus") == 0:
            return False
        return super()._value(name)

    def _training(self) -> _LightningTraining:
        return _LightningTraining(*parts_of(self._value))

    def _fit(self, dataset: DataFrame) -> TorchModel:
        # With loaders of the user's the rows only tell their types.
        return super()._fit(dataset if self._value("data_module") is None else dataset.limit(100))


class _LightningTraining:
    """See `estimator.Training`."""

    def __init__(self, parts: LightningParts, labels: list[str]) -> None:
        self.framework: Any = parts
        self.labels = labels
        self.state_bytes = sum(one.nbytes for one in parts.model.state_dict().values() if isinstance(one, torch.Tensor))
        self.meanings: Sequence[Meaning] = [None] * len(labels)
        self.trial: Trial = LightningTrial(parts)
        if parts.plain is not None:
            self.meanings = [meaning_of(loss) for loss in parts.plain.losses]
            self.trial = TorchTrial(parts.plain)
        self.train: Callable[[TrainSpec], TrainResult | None] = train

    def trained(self, state: bytes) -> nn.Module:
        """See `estimator.Training.trained`: on the CPU, ready to predict."""
        trained: Any = copy.deepcopy(self.framework.model).cpu()
        if self.framework.plain is None:
            trained.configure_model()
        trained.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
        module: nn.Module = trained.eval()
        return module
