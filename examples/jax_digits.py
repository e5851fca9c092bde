"""Trains a network on handwritten digits with JAX: one program over the devices of all ranks.

``horovodrun -np 2 python -m examples.jax_digits --epochs 10``
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

BATCH = 64  # rows of all ranks together


def compute_loss(weights: dict[str, Any], images: Any, digits: Any) -> Any:
    """Return the mean cross entropy of a batch."""
    hidden = jax.nn.relu(images @ weights["inner"] + weights["shift"])
    logits = jax.nn.log_softmax(hidden @ weights["outer"])
    return -logits[jnp.arange(len(digits)), digits].mean()


@jax.jit
def step(weights: dict[str, Any], images: Any, digits: Any) -> tuple[dict[str, Any], Any]:
    """Return the weights after a step, and the loss before it. JAX adds the gradients of all ranks."""
    loss, gradients = jax.value_and_grad(compute_loss)(weights, images, digits)
    return jax.tree.map(lambda weight, gradient: weight - 0.5 * gradient, weights, gradients), loss


def main(argv: Sequence[str] | None = None) -> float:
    """Trains on every rank; rank 0 prints. Returns the last loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args(argv)
    jax.distributed.initialize()
    mesh = Mesh(numpy.array(jax.devices()), ("ranks",))
    by_rows, whole = NamedSharding(mesh, PartitionSpec("ranks")), NamedSharding(mesh, PartitionSpec())
    loaded = load_digits()
    images, digits = (loaded.data / 16).astype("float32"), loaded.target.astype("int32")
    generator = numpy.random.default_rng(0)  # the same on all ranks: all begin with equal weights and orders
    start = {
        "inner": generator.normal(0, 0.1, (64, 32)),
        "shift": numpy.zeros(32),
        "outer": generator.normal(0, 0.1, (32, 10)),
    }
    weights = jax.device_put(jax.tree.map(numpy.float32, start), whole)
    share, loss = BATCH // jax.process_count(), jnp.zeros(())
    for epoch in range(options.epochs):
        order = generator.permutation(len(images))
        for first in range(0, len(images) - BATCH + 1, BATCH):
            mine = order[first + jax.process_index() * share :][:share]
            batch = [jax.make_array_from_process_local_data(by_rows, each[mine]) for each in (images, digits)]
            weights, loss = step(weights, *batch)
        if jax.process_index() == 0:
            print(f"epoch {epoch}: loss {float(loss):.6f}", flush=True)
    return float(loss)


if __name__ == "__main__":
    main()
