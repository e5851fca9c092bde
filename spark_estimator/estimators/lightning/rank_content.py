"""What one rank alone has in the middle of a Trainer's epoch, and gives to the process that replaces it.

These are what steps have logged so far, the states of metrics, the estimator's sums, and the plain attributes of the
module and of callbacks. Schedules and the options of optimizers are among it, too: a rank that discards a step returns
to them.
"""

from __future__ import annotations

import importlib
import operator
import pickle
from collections import deque
from typing import Any

import torch

from spark_estimator.estimators.lightning.callbacks import EpochSums
from spark_estimator.estimators.lightning.plain_values import PlainValues, dumped
from spark_estimator.lightning import rates
from spark_estimator.lightning.metrics import collections_in, metrics_in

#: Attributes of their modules are constants.
_NOT_USERS = ("torch.", "torchmetrics.", "torchvision.", "transformers.", "timm.")
_OF_COLLECTION = ("_groups", "_groups_checked", "_state_is_copy")
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
    """See `torch.elastic.steps.HeritableContent`.

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
        # A module has all of its parts when training begins, also those that hooks make.
        self._metrics = list(metrics_in(module))
        self._collections = list(collections_in(module))
        metrics = set(map(id, self._metrics))
        parts = [part for part in module.modules() if id(part) not in metrics]
        self._parts = [part for part in parts if not type(part).__module__.startswith(_NOT_USERS)]
        self._progress_bar: type = package.callbacks.ProgressBar
        self._metas: dict[str, bytes] = {}
        self._values = PlainValues(f"the module {type(module).__name__} and its callbacks")

    def packed(self) -> bytes:
        """See `RankContent.packed`."""
        trainer = self._trainer
        connector = trainer._logger_connector
        values: dict[str, Any] = {f"connector {name}": getattr(connector, name) for name in _OF_CONNECTOR}
        values["sums"] = self._watch.state()
        values["factor"] = rates.factor_of(trainer.optimizers)
        for number, config in enumerate(trainer.lr_scheduler_configs):
            values[f"schedule {number}"] = config.scheduler.state_dict()
        for number, optimizer in enumerate(trainer.optimizers):
            groups = [{key: item for key, item in group.items() if key != "params"} for group in optimizer.param_groups]
            values[f"groups {number}"] = groups
        for number, metric in enumerate(self._metrics):
            name = f"metric {number} {type(metric).__name__}"
            values[name] = (
                {name: getattr(metric, name) for name in metric._defaults},
                metric._update_count,
                metric._forward_cache,
            )
            for more, value in vars(metric).items():  # such as the extremes of a MinMaxMetric
                if not more.startswith("_") and more not in metric._defaults:
                    values[f"{name}.{more}"] = value
        for number, collection in enumerate(self._collections):
            values[f"collection {number}"] = {name: getattr(collection, name) for name in _OF_COLLECTION}
        for key, result in self._results().items():
            values[f"result {key}"] = self._result_state(key, result)
        for prefix, holder in self._holders():
            for name in self._attributes(holder):
                values[prefix + name] = vars(holder)[name]
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
        for number, collection in enumerate(self._collections):
            vars(collection).update(values.get(f"collection {number}", {}))
        for number, metric in enumerate(self._metrics):
            name = f"metric {number} {type(metric).__name__}"
            if name in values:
                _restore_metric(metric, *values[name])
            for key, value in values.items():
                if key.startswith(f"{name}."):
                    _set_if_changed(metric, key[len(name) + 1 :], value)
        self._join_groups()
        self._take_results(_results_in(values))
        for prefix, holder in self._holders():
            for key, value in values.items():
                if key.startswith(prefix):
                    _set_if_changed(holder, key[len(prefix) :], value)
            if self.takes_schedules:  # a step that is discarded has made these
                for name in self._attributes(holder):
                    if prefix + name not in values and not self._values.leaves_out(prefix + name):
                        del vars(holder)[name]

    def inherit(self, content: bytes) -> None:
        """See `HeritableContent.inherit`: sums, metrics of torchmetrics, and what was logged."""
        values: dict[str, Any] = pickle.loads(content)  # noqa: S301  # from a rank of this job
        if "sums" in values:
            self._watch.inherit(values["sums"])
        for number, metric in enumerate(self._metrics):
            name = f"metric {number} {type(metric).__name__}"
            if name in values:
                state, updates, _ = values[name]
                _add_to_metric(metric, state, updates)
        self._join_groups()
        for key, state in _results_in(values).items():
            self._add_to_result(key, *state)

    def enter(self, content: bytes) -> None:
        """Takes what `packed` has returned on a rank that stays in the training, less what that has counted."""
        self.take(content)
        self._watch.forget()
        for metric in self._metrics:
            metric.reset()
        self._join_groups()
        results = self._results()
        for key in list(results):
            result = results[key]
            # Ranks compute what is synced together, so that each must have it.
            if result.is_tensor and not result.meta.sync.should:
                del results[key]
            elif result.is_tensor and not result.has_reset:
                updates = result._update_count
                result.reset()
                result._update_count, result.has_reset = updates, False
        self._watch.seed(self._trainer)

    def _join_groups(self) -> None:
        """Metrics of a group of a collection have one state again."""
        for collection in self._collections:
            collection._state_is_copy = False
            if collection._groups_checked:
                collection._compute_groups_create_state_ref()

    def _add_to_result(self, key: str, meta: bytes, is_tensor: bool, state: dict[str, Any]) -> None:
        results = self._results()
        if key not in results:
            self._take_result(key, meta, is_tensor, state)
            return
        result = results[key]
        if not is_tensor or state["has_reset"] or not result.meta.on_epoch:
            return  # a metric adds up its own states
        value = state["value"].to(result.value.device)
        if result.meta.is_max_reduction or result.meta.is_min_reduction:
            result.value = result.meta.reduce_fx(torch.stack([result.value, value]))
        else:
            result.value = result.value + value
        if result.meta.is_mean_reduction:
            result.cumulated_batch_size = result.cumulated_batch_size + state["cumulated_batch_size"]
        result._update_count, result._computed = result._update_count + state["_update_count"], None

    def _take_schedules(self, values: dict[str, Any]) -> None:
        for number, config in enumerate(self._trainer.lr_scheduler_configs):
            if f"schedule {number}" in values:
                config.scheduler.load_state_dict(values[f"schedule {number}"])
        for number, optimizer in enumerate(self._trainer.optimizers):
            if f"groups {number}" not in values:
                continue
            groups = values[f"groups {number}"]
            del optimizer.param_groups[len(groups) :]  # which a callback has added since
            for group, options in zip(optimizer.param_groups, groups, strict=False):
                group.update(options)
        schedules = [config.scheduler for config in self._trainer.lr_scheduler_configs]
        rates.remember(self._trainer.optimizers, schedules, values.get("factor", 1))

    def _holders(self) -> list[tuple[str, Any]]:
        """The objects whose attributes are kept: the user's parts of the module, and callbacks."""
        callbacks = [each for each in self._trainer.callbacks if not isinstance(each, self._progress_bar)]
        holders = [*self._parts, *callbacks, self._trainer.strategy.epoch_outputs]
        return [(f"attribute {number} {type(holder).__name__}.", holder) for number, holder in enumerate(holders)]

    def _attributes(self, holder: Any) -> list[str]:
        skipped = self._not_users if isinstance(holder, torch.nn.Module) else ()
        return [name for name in vars(holder) if name not in skipped]

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
        for key, state in states.items():
            self._take_result(key, *state)

    def _take_result(self, key: str, meta: bytes, is_tensor: bool, state: dict[str, Any]) -> None:
        results = self._results()
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


def _results_in(values: dict[str, Any]) -> dict[str, Any]:
    """What `TrainerContent._result_state` has returned, by the results' keys."""
    return {key[7:]: state for key, state in values.items() if key.startswith("result ")}


def _add_to_metric(metric: Any, state: dict[str, Any], updates: int) -> None:
    """Adds a lost rank's state to a metric, as its own reductions join the states of ranks."""
    before = metric._update_count
    for name, other in state.items():
        mine, reduction = getattr(metric, name), getattr(metric._reductions.get(name), "__name__", "")
        if isinstance(mine, list):
            setattr(metric, name, [*mine, *(value.to(metric.device) for value in other)])
            continue
        value = other.to(mine.device)
        if reduction == "dim_zero_cat":
            setattr(metric, name, torch.cat([torch.atleast_1d(mine), torch.atleast_1d(value)]))
        elif reduction in ("dim_zero_max", "dim_zero_min"):
            setattr(metric, name, (torch.maximum if reduction.endswith("max") else torch.minimum)(mine, value))
        elif reduction == "dim_zero_mean" and before + updates:
            setattr(metric, name, (mine * before + value * updates) / (before + updates))
        elif reduction == "dim_zero_sum":
            setattr(metric, name, mine + value)
    metric._update_count, metric._computed = before + updates, None


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
    if same:
        return
    present = vars(holder).get(name)
    if type(present) is type(value) and isinstance(present, (list, dict, set, deque)):
        present.clear()  # others may refer to it
        if isinstance(present, (list, deque)):
            present.extend(value)
        else:
            present.update(value)
    else:
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
