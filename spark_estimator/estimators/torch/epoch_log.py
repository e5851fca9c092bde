"""TensorBoard's events of a training, in the run's folder for logs, by the names that Horovod's have."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.observe.driver_log import log_to_driver
from spark_estimator.store import FilesystemStore

#: Parts of a history's entry, and what Horovod calls them.
_STAGES = {"train": "train", "validation": "val"}


@contextlib.contextmanager
def open_log(spec: TrainSpec, rank: Callable[[], int]) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that logs an entry of the history: ``train/loss``, ``val/loss``, ``train/group_0_y:0``, ...

    It does nothing except on rank 0, with a store that keeps runs, where TensorBoard is installed. Files are in
    the store after each epoch. If they can't be written, this is reported on the driver, once, and the function
    does nothing more.

    Args:
        rank: the rank, which may change during the training.
    """
    store = spec.store
    if not isinstance(store, FilesystemStore) or not store.saving_runs():
        yield lambda entry: None
        return
    with contextlib.ExitStack() as until_closed:
        log: Callable[[Mapping[str, Any]], None] | None = None
        is_lost = False

        def log_on_first_rank(entry: Mapping[str, Any]) -> None:
            nonlocal log, is_lost
            if is_lost or rank() != 0 or importlib.util.find_spec("tensorboard") is None:
                return
            try:
                log = log or until_closed.enter_context(_open_writer(spec, store))
                log(entry)
            except Exception as error:  # each kind of store has its own
                is_lost = True
                log_to_driver(
                    f"TensorBoard's events of epoch {entry['epoch']} and later can't be written to "
                    f"{store.get_logs_path(spec.run_id)}: {type(error).__name__}: {error}. The training continues."
                )

        yield log_on_first_rank


@contextlib.contextmanager
def _open_writer(spec: TrainSpec, store: FilesystemStore) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    from torch.utils.tensorboard import SummaryWriter

    sync = store.sync_fn(spec.run_id)
    with store.get_local_output_dir_fn(spec.run_id)() as folder:
        writer: Any = SummaryWriter(os.path.join(folder, store.get_logs_subdir()))

        def log(entry: Mapping[str, Any]) -> None:
            for part, stage in _STAGES.items():
                results = entry.get(part) or {}
                if "loss" in results:
                    writer.add_scalar(f"{stage}/loss", results["loss"], entry["epoch"])
                for number, group in enumerate(results.get("all_metrics", [])):
                    for name, value in group.items():
                        if not isinstance(value, (int, float)):  # such as a confusion matrix
                            continue
                        writer.add_scalar(f"{stage}/{name}:{number}", value, entry["epoch"])
            writer.flush()
            sync(folder)

        try:
            yield log
        finally:
            with contextlib.suppress(Exception):  # what it has not written is lost, as `log` has raised
                writer.close()
