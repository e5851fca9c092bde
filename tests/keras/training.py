"""A small model and its data, for ranks that train and for the one process that they are compared with."""

from __future__ import annotations

from typing import Any

import numpy

ROWS = 32


def data() -> tuple[Any, Any]:
    chance = numpy.random.default_rng(0)
    rows = chance.normal(size=(ROWS, 4)).astype("float32")
    return rows, (rows @ numpy.array([[1.0], [-2.0], [0.5], [3.0]]) + 0.1).astype("float32")


def model(seed: int = 1, policy: str = "float32", name: str | None = None) -> Any:
    import keras

    kernel = keras.initializers.GlorotUniform(seed=seed)
    return keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(5, activation="tanh", kernel_initializer=kernel, dtype=policy),
            keras.layers.Dense(1, kernel_initializer=kernel, dtype=policy),
        ],
        name=name,
    )


def share(rank: int, size: int, batch: int) -> tuple[Any, Any]:
    """This rank's rows, so that `size` batches of the ranks are one of all rows in order."""
    rows, targets = data()
    indices = numpy.arange(ROWS).reshape(-1, size, batch)[:, rank].reshape(-1)
    return rows[indices], targets[indices]


def weights(trained: Any) -> list[Any]:
    return [numpy.array(weight) for weight in trained.get_weights()]


def close(ones: Any, others: Any, tolerance: float = 1e-5) -> bool:
    return all(
        numpy.allclose(first, second, atol=tolerance, rtol=1e-4) for first, second in zip(ones, others, strict=True)
    )
