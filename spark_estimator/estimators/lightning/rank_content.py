"""What one rank alone has in the middle of a Trainer's epoch, and gives to the process that replaces it.

These are what steps have logged so far, the states of metrics, the estimator's sums, and the plain attributes of the
module and of callbacks. Schedules and the options of optimizers are among it, too: a rank that discards a step returns
to them.
"""

from __future__ import annotations

import importlib
import operator
import pickle
from typing import Any

import torch

from spark_estimator.estimators.lightning.callbacks import EpochSums
from spark_estimator.estimators.lightning.plain_values import PlainValues, dumped
from spark_estimator.lightning.metrics import metrics_in

#: Attributes of what holds a logged value (Lightning's `_ResultMetric`) besides the value.
_OF_RESULT = ("_forward_cache", "_computed", "_update_count", "has_reset")
_VALUES = ("value", "cumulated_batch_size")
_OF_CONNECTOR = (
    "_callback_metrics",
    "_logged_metrics",
    "_progress_bar_metrics",
    "_first_loop_iter",
    "_current_fx",
)


class TrainerContent:
    """See `torch.elastic.steps.RankContent`.

    Attributes:
        takes_schedules: `take` restores schedules and options of optimizers. False where another rank's are here.

    Args:
        trainer: in its ``fit``, with optimizers and schedules.
        module: its LightningModule.
        flavour: the package of both.
        watch: the estimator's sums.
    """

    def __init__(self, trainer: Any, module: Any, flavour: str, watch: EpochSums) -> None:
        package: Any = importlib.import_module(flavour)
        self.takes_schedules = True
        self._trainer = trainer
        self._module = module
        self._watch = watch
        # Lightning's and torch's own attributes are not the user's.
        self._not_users = frozenset(vars(package.LightningModule())) | {"_trainer", "_hparams", "_hparams_initial"}
        self._result_module: Any = importlib.import_module(f"{flavour}.trainer.connectors.logger_connector.result")
        # A module has all of its metrics when training begins, also those that hooks make.
        self._metrics = list(metrics_in(module))
        self._metas: dict[str, bytes] = {}
        self._values = PlainValues(f"the module {type(module).__name__} and its callbacks")

    def packed(self) -> bytes:
        """See `RankContent.packed`."""
        trainer = self._trainer
        connector = trainer._logger_connector
        values: dict[str, Any] = {f"connector {name}": getattr(connector, name) for name in _OF_CONNECTOR}
        values["sums"] = self._watch.state()
        for number, config in enumerate(trainer.lr_scheduler_configs):
            values[f"schedule {number}"] = config.scheduler.state_dict()
        for number, optimizer in enumerate(trainer.optimizers):
            groups = [{key: item for key, item in group.items() if key != "params"} for group in optimizer.param_groups]
            values[f"groups {number}"] = groups
        for number, metric in enumerate(self._metrics):
            values[f"metric {number}"] = (
                {name: getattr(metric, name) for name in metric._defaults},
                metric._update_count,
                metric._forward_cache,
            )
        for key, result in self._results().items():
            values[f"result {key}"] = self._result_state(key, result)
        for number, holder in enumerate(self._holders()):
            skipped = self._not_users if holder is self._module else ()
            for name, value in vars(holder).items():
                if name not in skipped:
                    values[f"attribute {number} {type(holder).__name__} {name}"] = value
        return self._values.packed(values)

    def take(self, content: bytes) -> None:
        """See `RankContent.take`."""
        values: dict[str, Any] = pickle.loads(content)  # noqa: S301  # from a rank of this job
        connector = self._trainer._logger_connector
        for name in _OF_CONNECTOR:
            if f"connector {name}" in values:
                setattr(connector, name, values[f"connector {name}"])
        if "sums" in values:
            self._watch.take(values["sums"])
        if self.takes_schedules:
            self._take_schedules(values)
        for number, metric in enumerate(self._metrics):
            if f"metric {number}" in values:
                _restore_metric(metric, *values[f"metric {number}"])
        self._take_results({key[7:]: state for key, state in values.items() if key.startswith("result ")})
        for number, holder in enumerate(self._holders()):
            prefix = f"attribute {number} {type(holder).__name__} "
            for key, value in values.items():
                if key.startswith(prefix):
                    _set_if_changed(holder, key[len(prefix) :], value)

    def _take_schedules(self, values: dict[str, Any]) -> None:
        for number, config in enumerate(self._trainer.lr_scheduler_configs):
            if f"schedule {number}" in values:
                config.scheduler.load_state_dict(values[f"schedule {number}"])
        for number, optimizer in enumerate(self._trainer.optimizers):
            for group, options in zip(optimizer.param_groups, values.get(f"groups {number}", ()), strict=False):
                group.update(options)

    def _holders(self) -> list[Any]:
        """The objects whose attributes are kept."""
        return [self._module, *self._trainer.callbacks, self._trainer.strategy.epoch_outputs]

    def _results(self) -> dict[str, Any]:
        results: dict[str, Any] = self._trainer.fit_loop.epoch_loop._results
        return results

    def _result_state(self, key: str, result: Any) -> tuple[bytes, bool, dict[str, Any]]:
        """How it was logged, whether as a tensor, and its values."""
        names = (*_OF_RESULT, *_VALUES) if result.is_tensor else _OF_RESULT
        state = {name: getattr(result, name) for name in names if hasattr(result, name)}
        if key not in self._metas:
            self._metas[key] = _packed_meta(result.meta)
        return self._metas[key], result.is_tensor, state

    def _take_results(self, states: dict[str, Any]) -> None:
        results = self._results()
        for key in [key for key in results if key not in states]:
            del results[key]
        for key, (meta, is_tensor, state) in states.items():
            if key not in results:
                results[key] = self._result_of(meta, is_tensor)
            for name, value in state.items():
                setattr(results[key], name, value)

    def _result_of(self, meta: bytes, is_tensor: bool) -> Any:
        fields, sync = pickle.loads(meta)  # noqa: S301  # from a rank of this job
        made = self._result_module._Metadata(**fields)
        made.sync = self._result_module._Sync(fn=self._trainer.strategy.reduce, **sync)
        result = self._result_module._ResultMetric(made, is_tensor)
        if not is_tensor and made.metric_attribute:
            result.value = operator.attrgetter(made.metric_attribute)(self._module)
        return result.to(self._trainer.strategy.root_device)


def _packed_meta(meta: Any) -> bytes:
    fields = {name: value for name, value in vars(meta).items() if name not in ("_sync", "reduce_fx")}
    sync = {"_should": meta.sync.should, "rank_zero_only": meta.sync.rank_zero_only}
    return dumped(({**fields, "reduce_fx": meta.reduce_fx.__name__}, sync))


def _restore_metric(metric: Any, state: dict[str, Any], updates: int, last: Any) -> None:
    for name, value in state.items():
        setattr(metric, name, value)
    # A failure may have interrupted the exchange of its states.
    metric._update_count, metric._forward_cache, metric._computed = updates, last, None
    metric._is_synced, metric._cache, metric._to_sync = False, None, metric.sync_on_compute


def _set_if_changed(holder: Any, name: str, value: Any) -> None:
    """Sets a plain attribute; one that is the same stays the object that others may refer to."""
    try:
        same = name in vars(holder) and dumped(vars(holder)[name]) == dumped(value)
    except Exception:  # the present value is not plain
        same = False
    if not same:
        vars(holder)[name] = value


def undo_step(trainer: Any) -> None:
    """Forgets what an interrupted step or validation has left in a Trainer."""
    trainer.training = True
    trainer.lightning_module._current_fx_name = None
    torch.set_grad_enabled(True)
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is not None:  # it may have unscaled the gradients of the step
        scaler._per_optimizer_states.clear()
    for results in (trainer.fit_loop.epoch_loop._results, trainer.fit_loop.epoch_loop.val_loop._results):
        results.batch = results.batch_size = results.dataloader_idx = None
    trainer.fit_loop.epoch_loop.val_loop._results.reset()
