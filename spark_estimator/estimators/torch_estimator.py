"""`TorchEstimator`: trains a PyTorch model on a DataFrame, on several processes of the Spark session."""

from __future__ import annotations

import copy
import io
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from pyspark.ml import Estimator
from torch import nn

from spark_estimator.data.columns import selected
from spark_estimator.data.spool import SpoolFeed
from spark_estimator.env import Settings
from spark_estimator.estimators import params
from spark_estimator.estimators.params import Row, TableParams, with_params
from spark_estimator.estimators.sampling import look_at
from spark_estimator.estimators.torch_check import fitting_fields
from spark_estimator.estimators.torch_model import TorchModel
from spark_estimator.estimators.torch_training import Parts, train
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.launch.attempts import Limits
from spark_estimator.launch.feed import Rows
from spark_estimator.launch.in_session import run_in_session
from spark_estimator.launch.slots import default_size
from spark_estimator.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The trained model passes through the memory of an executor and of the driver.
_MOST_RESULT_BYTES = 1 << 30

_ROWS = (
    *params.SHARED,
    Row("lr_scheduler", None, params.anything, "a scheduler of the optimizer, moved after each epoch; None: none"),
    Row(
        "input_shapes",
        None,
        params.shapes,
        "shapes of the inputs, each beginning with -1; None: found from the columns",
    ),
)


@with_params(_ROWS)
class TorchEstimator(Estimator[TorchModel], TableParams):
    """Trains a PyTorch model on the rows of a DataFrame: ``model = TorchEstimator(...).fit(df)``.

    The rows are spread evenly over `num_proc` processes, which Spark starts together; each keeps its share on its
    host's disk while training runs, and reads it from there in another order in each epoch. Gradients are averaged over
    all rows of a step, however they are spread: loss and metrics are means over rows.

    The model is called with one tensor for each feature column; when it takes a single input, with all columns side by
    side. Columns may be numbers, booleans, dates, arrays and vectors (`data.columns` has the table).

    All parameters are keywords; ``explainParams()`` tells them.

    Raises:
        TypeError, ValueError: a parameter that is unknown or cannot be used.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._setDefault(**{row.name: row.default for row in _ROWS})
        self._take(kwargs)

    def _fit(self, dataset: DataFrame) -> TorchModel:
        parts, labels = self._parts()
        size = self._size()
        value = self._value
        validation = value("validation")
        marker = validation if isinstance(validation, str) else None
        columns = look_at(dataset, value("feature_cols"), labels, value("sample_weight_col"), marker, value("nulls"))
        fields = fitting_fields(columns, parts, value("input_shapes"))
        seed = value("random_seed")
        run_id = value("run_id") or f"torch_{int(time.time())}_{secrets.token_hex(3)}"
        spec = TrainSpec(
            inputs=fields.inputs,
            labels=fields.labels,
            weight=fields.weight,
            held_share=validation if isinstance(validation, float) else 0.0,
            seed=secrets.randbelow(1 << 31) if seed is None else seed,
            batch_size=value("batch_size"),
            val_batch_size=value("val_batch_size") or value("batch_size"),
            epochs=value("epochs"),
            shuffle=value("shuffle"),
            verbose=value("verbose"),
            backward_passes_per_step=value("backward_passes_per_step"),
            use_gpu=value("use_gpu"),
            train_steps=value("train_steps_per_epoch"),
            validation_steps=value("validation_steps_per_epoch"),
            patience=value("early_stopping_patience"),
            restore_best=value("restore_best"),
            store=value("store"),
            run_id=run_id,
            framework=parts,
        )
        dtypes = {column: field.dtype for field in fields.all for column in field.columns}
        rows = selected(
            dataset,
            columns.fed,
            [dtypes[f"c{number}"] for number in range(len(columns.fed))],
            value("nulls"),
            *([columns.marker.expression.cast("boolean").alias("marker")] if columns.marker else []),
        )
        feed = SpoolFeed(fields.all, "marker" if columns.marker else None, Settings.read().spool_folder or None)
        result = run_in_session(
            train,
            size,
            caller="TorchEstimator.fit",
            args=(spec,),
            rows=Rows(rows, feed),
            max_result_bytes=_MOST_RESULT_BYTES,
            limits=Limits.checked(value("max_restarts"), None),
        )[0]
        trained = _with_state(parts.model, result.state)
        return TorchModel(
            model=trained,
            history=result.history,
            inputs=fields.inputs,
            outputs=fields.outputs,
            label_types=[one.kind for one in columns.labels],
            thresholds=[0.0 if isinstance(loss, nn.BCEWithLogitsLoss) else None for loss in parts.losses],
            feature_columns=[one.name for one in columns.features],
            label_columns=labels,
            run_id=run_id,
        )

    def _size(self) -> Any:
        backend, size = self._value("backend"), self._value("num_proc")
        if backend is None:
            return size or default_size
        if size is not None:
            raise ValueError("num_proc and backend were both given: the backend has its own num_proc.")
        from spark_estimator.spark import SparkBackend

        if not isinstance(backend, SparkBackend):
            raise ValueError(
                f"backend={backend!r}: without a store, rows reach the ranks through Spark's tasks, so only a "
                "SparkBackend can train on them."
            )
        return backend.num_processes()

    def _parts(self) -> tuple[Parts, list[str]]:
        """Checks what is PyTorch's.

        Raises:
            TypeError, ValueError: it is missing, or of another kind.
        """
        model, optimizer = self._value("model"), self._value("optimizer")
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is a torch.nn.Module; it was {model!r}.")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"optimizer is an optimizer of torch.optim, made with the model's parameters; it was {optimizer!r}."
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError("optimizer is an LBFGS, which asks for the loss several times a step: choose another one.")
        own = {id(parameter) for parameter in model.parameters()}
        strange = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
        if strange:
            raise ValueError(
                f"the optimizer holds {len(strange)} parameters that are not the model's: make it with "
                "model.parameters()."
            )
        labels = self._value("label_cols")
        if not labels:
            raise ValueError("label_cols names the columns that the model shall predict, one for each output.")
        losses = self._value("loss") or []
        if len(losses) != len(labels):
            raise ValueError(
                f"{len(losses)} losses were given for {len(labels)} label columns: one for each is needed."
            )
        for loss in losses:
            reduction = getattr(loss, "reduction", "mean")
            if reduction not in ("mean", "batchmean"):
                raise ValueError(
                    f"{loss!r} has reduction={reduction!r}; a loss has to be a mean over the rows of a batch, as the "
                    "ranks' batches differ in size: leave reduction='mean'."
                )
        shares = self._value("loss_weights") or [1 / len(losses)] * len(losses)
        if len(shares) != len(losses):
            raise ValueError(f"{len(shares)} loss_weights were given for {len(losses)} losses.")
        shapes = self._value("label_shapes")
        if shapes is not None and len(shapes) != len(labels):
            raise ValueError(f"label_shapes has {len(shapes)} shapes for {len(labels)} label columns.")
        store = self._value("store")
        if store is not None and not isinstance(store, Store):
            raise TypeError(f"store is a Store, for example Store.create('/path'); it was {store!r}.")
        scheduler = self._value("lr_scheduler")
        if scheduler is not None and getattr(scheduler, "optimizer", None) is not optimizer:
            raise ValueError(f"lr_scheduler is a scheduler of the optimizer that is given; it was {scheduler!r}.")
        metrics = _grouped(self._value("metrics"), len(labels))
        compression = self._value("gradient_compression")
        return Parts(model, optimizer, losses, shares, metrics, scheduler, compression, shapes), labels


def _grouped(metrics: Sequence[Any], labels: int) -> list[list[Any]]:
    """A list of metrics for each label."""
    if any(isinstance(one, (list, tuple)) for one in metrics):
        groups = [list(one) if isinstance(one, (list, tuple)) else [one] for one in metrics]
        if len(groups) != labels:
            raise ValueError(f"metrics has {len(groups)} lists for {labels} label columns: one for each is needed.")
        return groups
    return [list(metrics) for _ in range(labels)]


def _with_state(model: nn.Module, state: bytes) -> nn.Module:
    """A copy of the model with the trained numbers, on the CPU, ready to predict."""
    trained = copy.deepcopy(model).cpu()
    trained.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
    return trained.eval()
