"""What a rank has logged in the middle of a Trainer's epoch, which Lightning's own checkpoint does not have."""

from __future__ import annotations

import operator
from typing import Any


def get_logged_values(trainer: Any) -> dict[str, dict[str, Any]]:
    """Return what this epoch has logged with ``on_epoch``, by Lightning's keys: sums, and how they were logged."""
    values = {}
    for key, result in _get_results(trainer).items():
        meta = result.meta
        if not meta.on_epoch or result.has_reset:
            continue
        names = [meta.name, f"{meta.name}_epoch"] if meta.on_step else [meta.name]
        values[key] = {"names": names, "logger": meta.logger, "prog_bar": meta.prog_bar}
        if not result.is_tensor:
            values[key]["metric"] = meta.metric_attribute  # whose states are in `get_metric_states`
            continue
        values[key] |= {"value": result.value, "sync_dist": meta.sync.should, "reduce_fx": "mean"}
        if meta.is_mean_reduction:
            values[key]["cumulated_batch_size"] = result.cumulated_batch_size
        else:
            extreme = "max" if meta.is_max_reduction else "min" if meta.is_min_reduction else "sum"
            values[key]["reduce_fx"] = extreme
    return values


def add_logged_values(trainer: Any, earlier: dict[str, dict[str, Any]]) -> None:
    """Add what `get_logged_values` returned to the same values, if steps have logged them once since: the sum is
    that of all steps in their order. Remove these from `earlier`.

    Lightning clears its sums in the first batch of a ``fit``, so that they cannot be restored before it.
    """
    results = _get_results(trainer)
    for key in [key for key in earlier if key in results and not results[key].has_reset]:
        result, sums = results[key], earlier.pop(key)
        if "metric" in sums:
            continue
        value = sums["value"].to(result.value.device)
        is_extreme = result.meta.is_max_reduction or result.meta.is_min_reduction
        result.value = result.meta.reduce_fx(value, result.value) if is_extreme else value + result.value
        if "cumulated_batch_size" in sums:
            rows = sums["cumulated_batch_size"].to(result.value.device)
            result.cumulated_batch_size = rows + result.cumulated_batch_size


def log_earlier_values(module: Any, earlier: dict[str, dict[str, Any]]) -> None:
    """Log what `get_logged_values` returned and no step has logged since: in the hook ``on_train_epoch_end``."""
    for values in earlier.values():
        metric = values.get("metric")
        how: dict[str, Any] = {"on_step": False, "on_epoch": True}
        if metric is not None:
            value, how["metric_attribute"] = operator.attrgetter(metric)(module), metric
        else:
            value = values["value"].to(module.device)
            how |= {"sync_dist": values["sync_dist"], "reduce_fx": values["reduce_fx"]}
            if "cumulated_batch_size" in values:
                rows = int(values["cumulated_batch_size"])
                value, how["batch_size"] = value / max(rows, 1), rows
        for name in values["names"]:
            module.log(name, value, logger=values["logger"], prog_bar=values["prog_bar"], **how)


def _get_results(trainer: Any) -> dict[str, Any]:
    results: dict[str, Any] = trainer.fit_loop.epoch_loop._results
    return results
