"""What ranks do with JAX. They import it themselves: nothing else in a rank does."""

from __future__ import annotations

from typing import Any


def train(steps: int = 5, dies: int | None = None) -> dict[str, Any]:
    """A linear regression by gradient descent over a mesh of all ranks' devices; each rank has its rows.

    Args:
        dies: the rank that kills itself in the middle.
    """
    import os
    import signal

    import jax
    import jax.numpy as jnp
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.distributed.initialize()
    mesh = Mesh(numpy.array(jax.devices()), ("ranks",))
    rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("ranks",), ()))
    generator = numpy.random.default_rng(1)
    inputs = generator.standard_normal((24, 3), numpy.float32)
    share = slice(
        jax.process_index() * 24 // jax.process_count(), (jax.process_index() + 1) * 24 // jax.process_count()
    )
    x = jax.make_array_from_process_local_data(rows, inputs[share])
    y = jax.make_array_from_process_local_data(rows, inputs[share] @ numpy.float32([1, 2, 3]))
    weights = jax.device_put(jnp.zeros(3), whole)

    @jax.jit
    def step(weights: Any, x: Any, y: Any) -> Any:
        return weights - 0.1 * jax.grad(lambda weights: ((x @ weights - y) ** 2).mean())(weights)

    for number in range(steps):
        if number == 3 and dies == jax.process_index():
            os.kill(os.getpid(), signal.SIGKILL)
        weights = jax.block_until_ready(step(weights, x, y))
    return {
        "weights": numpy.asarray(weights).tolist(),
        "process": (jax.process_index(), jax.process_count()),
        "devices": (len(jax.local_devices()), len(jax.devices())),
        "gpus": jax._src.xla_bridge.CUDA_VISIBLE_DEVICES.value,
        "bound": os.environ.get("JAX_COORDINATOR_BIND_ADDRESS"),
        "coordinator": jax._src.distributed.global_state.coordinator_address,
    }


def train_alone() -> list[float]:
    """The same in one process, in NumPy."""
    import numpy

    inputs = numpy.random.default_rng(1).standard_normal((24, 3), numpy.float32)
    wanted, weights = inputs @ numpy.float32([1, 2, 3]), numpy.zeros(3, numpy.float32)
    for _ in range(5):
        weights -= numpy.float32(0.1) * 2 * inputs.T @ (inputs @ weights - wanted) / 24
    return [float(weight) for weight in weights]
