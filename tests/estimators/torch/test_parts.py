"""The parameters of `TorchEstimator` that are PyTorch's: what is missing or does not fit."""

from __future__ import annotations

import pytest
import torch

import spark_estimator.torch as hvd
from spark_estimator import TorchEstimator
from spark_estimator.estimators.torch.callbacks import Callback
from spark_estimator.estimators.torch.parts import _set_rate, check_numbers
from spark_estimator.spark import SparkBackend
from spark_estimator.store import Store

NET = torch.nn.Linear(2, 1)
SPARSE = torch.nn.Embedding(3, 2, sparse=True)


def test_a_complex_buffer_that_does_not_travel_is_none_of_our_business() -> None:
    model = torch.nn.Linear(2, 1)
    model.register_buffer("turns", torch.ones(2, dtype=torch.complex64), persistent=False)
    check_numbers(model)
    model.register_buffer("kept", torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"the model's kept has type torch\.complex64"):
        check_numbers(model)


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"model": None}, TypeError, "model must be a torch.nn.Module; got None"),
        ({"model": torch.nn.Linear}, TypeError, r"got the class Linear; pass an instance: Linear\(\.\.\.\)"),
        ({"model": "net " * 99}, TypeError, r"got 'net net .{60,100}net '\."),
        (
            {"optimizer": torch.optim.SGD},
            TypeError,
            r"got the class SGD; pass an instance: SGD\(model\.parameters\(\)\)",
        ),
        (
            {"callbacks": [print]},
            TypeError,
            "callbacks must contain objects with .* on_batch_begin, on_batch_end, on_epoch_end, .*"
            "; got <built-in function print>",
        ),
        ({"callbacks": [Callback]}, TypeError, r"got the class Callback; pass an instance: Callback\("),
        ({"optimizer": torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)}, ValueError, "not the model's"),
        ({"label_cols": None}, ValueError, "label_cols is required"),
        (
            {"label_cols": ["a", "b", "c"], "loss": [torch.nn.MSELoss()] * 2},
            ValueError,
            "got 2 losses for 3 label columns",
        ),
        ({"loss": None}, ValueError, "loss is required"),
        ({"loss": torch.nn.MSELoss}, TypeError, r"loss contains the class MSELoss; pass an instance: MSELoss\(\)"),
        ({"metrics": ["accuracy"]}, TypeError, "metrics must contain functions of .*; got 'accuracy'"),
        ({"sync": "ddp"}, ValueError, r"sync must be one of \('allreduce', 'local_sgd', 'diloco'\); got 'ddp'"),
        (
            {"gradient_compression": "fp16"},
            ValueError,
            "gradient_compression: compression='fp16' must be one of hvd.Compression.* Pass the object",
        ),
        (
            {"sync": "diloco", "gradient_compression": hvd.Compression.fp16},
            ValueError,
            "and sync='diloco' were both given: no gradients are sent",
        ),
        ({"loss_weights": [1, 2]}, ValueError, "got 2 loss_weights for 1 losses"),
        (
            {"model": torch.nn.LazyLinear(1)},
            ValueError,
            "model's weight is uninitialized.*Call the model",
        ),
        ({"model": torch.nn.Linear(2, 1, dtype=torch.complex64)}, ValueError, "weight has type torch.complex64"),
        (
            {"store": Store.create("/tmp"), "run_id": "../other"},
            ValueError,
            "run_id must name a folder; got '../other'",
        ),
        ({"metrics": [[], []]}, ValueError, r"metrics\[0\] has 0 functions for 1 label columns"),
        (
            {"gradient_clip_norm": 1, "gradient_clip_value": 0.5},
            ValueError,
            "gradient_clip_norm=1.0 and gradient_clip_value=0.5 exclude each other: set one to 0",
        ),
        (
            {"gradient_clip_norm": 1, "train_minibatch_fn": lambda a, b, c, d, e, f, g: None},
            ValueError,
            r"train_minibatch_fn does the whole step itself: leave out what changes it \(clip_norm=1.0\)",
        ),
        ({"compile": {"mood": "fast"}}, ValueError, "torch.compile has no argument 'mood'"),
        (
            {"lr_scheduler": "cosin"},
            ValueError,
            "must be one of 'linear', 'cosine', 'constant'; .*; got 'cosin'",
        ),
        (
            {"lr_scheduler": {"scheduler": "linear", "every": 2}},
            ValueError,
            "must be one of .*; got {'every",
        ),
        (
            {"lr_scheduler": torch.optim.lr_scheduler.StepLR},
            TypeError,
            "got the class StepLR; pass an instance: StepLR",
        ),
        ({"lr_scheduler": lambda _: None}, TypeError, "must return a scheduler of torch.optim; it returned None"),
        (
            {"lr_scheduler": lambda optimizer, steps: torch.optim.lr_scheduler.StepLR(optimizer, steps, mood=1)},
            ValueError,
            "<lambda> raised TypeError for 1000 steps: .*'mood'",
        ),
        (
            {"lr_scheduler": {"scheduler": lambda optimizer, epochs: 1 / 0, "interval": "epoch"}, "epochs": 7},
            ValueError,
            "<lambda> raised ZeroDivisionError for 7 epochs: division by zero",
        ),
        (
            {"lr_scheduler": lambda optimizer, warm, steps: None},
            TypeError,
            "<lambda> needs optimizer, warm, steps. Set the others with functools.partial",
        ),
        (
            {"lr_scheduler": {"scheduler": "linear", "interval": "epoch"}, "warmup_steps": 5},
            ValueError,
            "warmup_steps=5 counts steps, and lr_scheduler moves by epoch: .* set warmup_ratio",
        ),
        ({"warmup_steps": 5}, ValueError, "warmup_steps=5 needs one of the schedules by name"),
        (
            {"lr_scheduler": "linear", "warmup_steps": 5, "warmup_ratio": 0.1},
            ValueError,
            "warmup_steps=5 and warmup_ratio=0.1 exclude each other: set one",
        ),
        (
            {"lr_scheduler": {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau, "interval": "step"}},
            TypeError,
            "got the class ReduceLROnPlateau",
        ),
        (
            {"lr_scheduler": {"scheduler": "linear", "monitor": "train.loss"}},
            ValueError,
            "a LambdaLR does not move linear, warmup_ratio=0.0 by step, of train.loss: ReduceLROnPlateau moves",
        ),
        (
            {"lr_scheduler": {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau, "monitor": "validation.auc"}},
            TypeError,
            "got the class ReduceLROnPlateau",
        ),
        (
            {
                "metrics": {"mae": torch.nn.L1Loss()},
                "lr_scheduler": {
                    "scheduler": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
                    "monitor": "validation.mae",
                },
            },
            ValueError,
            "'monitor' must be one of train.loss, train.mae; got 'validation.mae'",
        ),
        ({"backend": SparkBackend(), "num_proc": 2}, ValueError, "num_proc and backend can't be combined"),
        ({"validate_every_steps": 5}, ValueError, "validate_every_steps=5 needs validation"),
        ({"restore_best": True, "monitor": "train.mae"}, ValueError, "needs mode='max' or mode='min'"),
        (
            {"restore_best": True, "mode": "max"},
            ValueError,
            "mode='max' needs monitor: without it, the loss is watched",
        ),
        (
            {"model": SPARSE, "optimizer": torch.optim.SGD(SPARSE.parameters(), 0.1), "gradient_clip_norm": 1.0},
            ValueError,
            "the model's '' has sparse=True, and PyTorch neither clips nor checks sparse gradients",
        ),
        (
            {"restore_best": True, "monitor": "validation.mae", "mode": "min", "metrics": {"mae": torch.nn.L1Loss()}},
            ValueError,
            "monitor must be one of train.loss, train.mae; got 'validation.mae'",
        ),
        (
            {"restore_best": True, "monitor": "train.loss", "validate_every_steps": 5, "validation": 0.5},
            ValueError,
            "monitor must be one of validation.loss; got 'train.loss'",
        ),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(
    changed: dict[str, object], error: type[Exception], words: str
) -> None:
    parameters = {
        "model": NET,
        "optimizer": torch.optim.SGD(NET.parameters(), 0.1),
        "loss": torch.nn.MSELoss(),
        "label_cols": ["y"],
        **changed,
    }
    with pytest.raises(error, match=words):
        TorchEstimator(**parameters)._fit(None)  # type: ignore[arg-type]  # it is not looked at


def test_a_learning_rate_counts_where_the_optimizer_has_had_a_schedule() -> None:
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5)
    (group,) = _set_rate(optimizer, 0.001).param_groups
    assert group["lr"] == 0.001 and "initial_lr" not in group
    assert optimizer.param_groups[0]["initial_lr"] == 0.1
