"""Lightning's `TorchEstimator`: trains a LightningModule, or a plain module, with a Trainer on each of several
processes.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spark_estimator.estimators import estimator
from spark_estimator.estimators.inference.prediction_columns import OutputKind, get_output_kind
from spark_estimator.estimators.lightning.check import LightningTrial
from spark_estimator.estimators.lightning.keywords import LightningEstimatorKeywords
from spark_estimator.estimators.lightning.model import TorchModel
from spark_estimator.estimators.lightning.params import ESTIMATOR, WITHOUT_EFFECT
from spark_estimator.estimators.lightning.parts import LightningParts, find_checkpoint_obstacle, make_parts
from spark_estimator.estimators.lightning.training import train
from spark_estimator.estimators.params import add_params
from spark_estimator.estimators.protocol import add_ineffective
from spark_estimator.estimators.rows.shapes import Trial
from spark_estimator.estimators.torch import advice
from spark_estimator.estimators.torch.check import TorchTrial
from spark_estimator.estimators.torch.estimator_files import TorchFiles
from spark_estimator.estimators.torch.identity import compute_digest
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec

if TYPE_CHECKING:
    from typing_extensions import Self


@add_ineffective(
    {
        "debug_data_loader": ("DebugDataLoader", False),
        "loader_num_epochs": ("LoaderNumEpochs", None),
        "train_async_data_loader_queue_size": ("TrainAsyncDataLoaderQueueSize", None),
        "train_minibatch_fn": ("TrainMinibatchFn", None),
        "val_async_data_loader_queue_size": ("ValAsyncDataLoaderQueueSize", None),
    },
    WITHOUT_EFFECT,
)
@add_params(ESTIMATOR)
class TorchEstimator(LightningEstimatorKeywords, TorchFiles, estimator.TableEstimator[TorchModel]):
    """Trains a LightningModule on the rows of a DataFrame: ``model = TorchEstimator(model=..., ...).fit(df)``.

    Each of `num_proc` processes has a Trainer with the strategy "horovod". The module's ``training_step`` and
    ``validation_step`` get batches as dicts from the names of the feature, label and weight columns to tensors; its
    ``forward`` is called with a tensor for each feature column, to predict. A loss that is a mean over the rows of its
    batch is, over the ranks, the mean over all rows of the step, however they are spread; so is the loss in the history
    (of steps that return it). What the module logs is there as ``logged``, for each epoch: averaged over ranks, where
    Lightning has not done so. A rank that has no row left for the last step takes part in it with one that does not
    count for gradients and losses, but does for what the module logs.

    The learning rate is that of one process. As in Horovod, it is multiplied by the number of ranks; a log line of rank
    0 has both. `HorovodStrategy(scale_lr=True)` does it, and describes how schedules follow. A run that resumes from
    its checkpoint on another number of ranks has the learning rate of that number. `scale_lr=False` is for a
    ``configure_optimizers`` that multiplies by ``self.trainer.world_size`` itself. A plain module with `optimizer` and
    `loss` is trained as `spark_estimator.TorchEstimator` does it. A callback that ends the training on one rank ends it
    on all.

    All parameters are keywords; call ``explainParams()`` for the full list.

    Raises:
        TypeError, ValueError: a parameter is unknown or invalid.
    """

    _public_path = "spark_estimator.lightning.TorchEstimator"
    _prefix = "lightning"
    _model_kind = TorchModel
    _objects = (
        *("model", "optimizer", "loss", "loss_constructors", "metrics", "gradient_compression", "callbacks", "logger"),
        *("profiler", "trainer_args", "decoders", "transformation_fn"),
    )

    def setNumGPUs(self, value: int | None) -> Self:  # so spelt in Horovod
        """Set as setNumGpus does."""
        return self.setNumGpus(value)

    def getNumGPUs(self) -> int | None:  # so spelt in Horovod
        """Return as getNumGpus does."""
        return self.getNumGpus()

    def _value(self, name: str) -> Any:
        if name == "use_gpu" and super()._value("num_gpus") == 0:
            return False
        return super()._value(name)

    def _make_training(self) -> _LightningTraining:
        parts, labels = make_parts(self._value)
        if parts.plain is not None:
            advice.warn_of_metrics(parts.plain)
        saves_within = not find_checkpoint_obstacle(self._value("model"), self._value)
        return _LightningTraining(parts, labels, saves_within=saves_within)


class _LightningTraining:
    """See `estimator.FrameworkTraining`."""

    def __init__(self, parts: LightningParts, labels: list[str], *, saves_within: bool) -> None:
        self.saves_within = saves_within
        self.framework: Any = parts
        self.labels = labels
        self.recovers = True
        self.state_bytes = sum(
            tensor.nbytes for tensor in parts.model.state_dict().values() if isinstance(tensor, torch.Tensor)
        )
        self.output_kinds: Sequence[OutputKind] = [None] * len(labels)
        self.trial: Trial = LightningTrial(parts)
        if parts.plain is not None:
            self.output_kinds = [get_output_kind(loss) for loss in parts.plain.losses]
            self.trial = TorchTrial(parts.plain, counts=lambda _: False)
        self.train: Callable[[TrainSpec], TrainResult | None] = train

    def compute_digest(self) -> str:
        """See `estimator.FrameworkTraining.compute_digest`."""
        return compute_digest(self.framework.model)

    def load_trained(self, state: bytes) -> tuple[nn.Module, None]:
        """See `estimator.FrameworkTraining.load_trained`: on the CPU, ready to predict."""
        trained: Any = copy.deepcopy(self.framework.model).cpu()
        if self.framework.plain is None:
            trained.configure_model()
        trained.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
        module: nn.Module = trained.eval()
        return module, None  # as in Horovod: the module configures its optimizers itself
