"""What distinguishes one Lightning training from another, as `run_identity` records it."""

from __future__ import annotations

from dataclasses import replace

from spark_estimator.estimators.lightning.parts import LightningParts
from spark_estimator.estimators.persistence.run_identity import Identity, get_name, make_base_identity
from spark_estimator.estimators.torch import identity as torch_identity
from spark_estimator.estimators.train_spec import TrainSpec

#: Arguments of a Trainer on which no number depends, or that a run may be resumed with.
_FREE = ("max_epochs", "max_steps", "max_time", "logger", "log_every_n_steps", "profiler", "default_root_dir")


def make_identity(spec: TrainSpec, checksums: list[int]) -> Identity:
    """Return the identity of a training: its rows, its module with its hyperparameters, and the parameters that
    steer it.

    Args:
        checksums: [fields] of all ranks' rows.
    """
    parts: LightningParts = spec.framework
    arguments = parts.trainer_args or {}
    steering = [
        f"{name}={value!r}" if isinstance(value, (bool, int, float, str)) else f"{name}={get_name(value)}"
        for name, value in sorted(arguments.items())
        if name not in _FREE and not name.startswith("enable_")
    ]
    if parts.plain is not None:
        of_torch = torch_identity.make_identity(replace(spec, framework=parts.plain), checksums)
        # A line only where checkpoints of earlier releases are of another training.
        plain_rate = [] if parts.scale_lr or parts.steps_locally else ["scale_lr=False"]
        return {**of_torch, "trainer_args": steering + plain_rate}
    chosen = dict(getattr(parts.model, "hparams", {}))
    return {
        **make_base_identity(spec, checksums),
        **torch_identity.describe_module(parts.model),
        "model's hyperparameters": [
            f"{name}={value!r}"
            for name, value in sorted(chosen.items())
            if isinstance(value, (bool, int, float, str, type(None)))
        ],
        "steps": [
            f"gradient_compression={get_name(parts.compression)}",
            *([f"sync={parts.sync}, inner_steps={parts.inner_steps}"] if parts.steps_locally else []),
        ],
        "trainer_args": steering + ["scale_lr=True"] * parts.scale_lr,
    }
