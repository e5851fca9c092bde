"""The specification of a training without Spark, for tests of what runs on ranks."""

from __future__ import annotations

from typing import Any

from spark_estimator.data.fields import Field
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators.train_spec import TrainSpec

X = Field(("x",), ("c0",), (3,), "float32", (3,))
Y = Field(("y",), ("c1",), (1,), "float32", ())
#: Of a model of x.
ENCODER = RowEncoder(("c0",), (X,))


def spec_of(**changed: Any) -> TrainSpec:
    """[3] features x and the label y, two epochs; no rows, no store, no framework."""
    absent = ("weight", "train_steps", "validation_steps", "patience", "store", "checkpoint_steps", "source")
    values = {
        "inputs": (X,),
        "labels": (Y,),
        **dict.fromkeys((*absent, "held_source", "framework")),
        "held_share": 0.0,
        "seed": 5,
        "batch_size": 8,
        "val_batch_size": 8,
        "epochs": 2,
        "shuffle": True,
        "verbose": 0,
        "backward_passes_per_step": 1,
        "use_gpu": False,
        "restore_best": False,
        "run_id": "run",
        "large": 1 << 40,
    }
    return TrainSpec(**{**values, **changed})
