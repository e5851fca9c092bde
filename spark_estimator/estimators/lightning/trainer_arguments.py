"""The arguments of the Trainer that a rank makes: the estimator's parameters, overridden by the user's."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import warnings
from typing import Any

import torch

from spark_estimator.estimators.lightning.parts import LightningParts
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.store import FilesystemStore


def make_trainer_arguments(spec: TrainSpec, parts: LightningParts) -> dict[str, Any]:
    """Return all arguments of the Trainer except callbacks and strategy."""
    package = importlib.import_module(parts.flavour)
    callbacks = package.callbacks
    on_gpu = spec.use_gpu and torch.cuda.is_available()
    folder = _find_folder(spec)
    arguments: dict[str, Any] = {
        "accelerator": "gpu" if on_gpu else "cpu",
        "max_epochs": spec.epochs,
        "accumulate_grad_batches": spec.backward_passes_per_step,
        "logger": parts.logger if parts.logger is not None else _make_logger(package, folder),
        "log_every_n_steps": parts.log_every_n_steps,
        "profiler": parts.profiler,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "enable_progress_bar": any(isinstance(callback, callbacks.ProgressBar) for callback in parts.callbacks),
        "enable_model_summary": any(isinstance(callback, callbacks.ModelSummary) for callback in parts.callbacks),
        "enable_checkpointing": any(isinstance(callback, callbacks.Checkpoint) for callback in parts.callbacks),
        "default_root_dir": folder,
    }
    arguments.update(parts.trainer_args or {})
    return arguments


def _find_folder(spec: TrainSpec) -> str | None:
    """Return the run's folder for logs in the store, if it is on this host's file system."""
    if not isinstance(spec.store, FilesystemStore):
        return None
    folder = spec.store.get_logs_path(spec.run_id)
    return folder if folder is not None and os.path.isabs(folder) else None


def _make_logger(package: Any, folder: str | None) -> Any:
    """Return TensorBoard's logger in the folder, if both are available; else False."""
    installed = any(importlib.util.find_spec(name) is not None for name in ("tensorboard", "tensorboardX"))
    return package.loggers.TensorBoardLogger(folder, name="") if folder is not None and installed else False


def silence_lightning(flavour: str, verbose: int) -> None:
    """Hide Lightning's banners from those who do not ask for more than a line for each epoch."""
    if verbose >= 2:
        return
    fabric = "lightning.fabric" if flavour.startswith("lightning.") else "lightning_fabric"
    for name in (flavour, fabric):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message="You defined a `validation_step` but have no `val_dataloader`")
    # PyTorch's warnings about Lightning's own code.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(pytorch_)?lightning")
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(pytorch_)?lightning")
