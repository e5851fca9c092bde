"""Collectives of pytrees by the engine."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")

from spark_estimator.errors import MismatchError
from tests.ranks import run_ranks

TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}


def test_leaves_of_every_kind_on_two_ranks() -> None:
    def exchange(rank: int) -> dict[str, Any]:
        import jax
        import jax.numpy as jnp
        import ml_dtypes
        import numpy
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        import spark_estimator.jax as hvd

        hvd.init()
        spread = NamedSharding(Mesh(numpy.array(jax.devices()), ("x",)), PartitionSpec("x"))
        numbers = {
            "bf16": jnp.full(5, rank + 1, jnp.bfloat16),
            "empty": jnp.zeros((0, 3)),
            "spread": jax.device_put(jnp.arange(4.0) * (rank + 1), spread),
            "numpy": [numpy.float64(rank), numpy.full((2, 1), rank, ml_dtypes.bfloat16), None],
        }
        mean, total = hvd.allreduce(numbers), hvd.allreduce(numbers, hvd.Sum, "total")
        assert jax.tree.structure(mean) == jax.tree.structure(numbers)
        assert (mean["bf16"].dtype, mean["bf16"].tolist()) == (jnp.bfloat16, [1.5] * 5)
        assert mean["spread"].sharding == spread and total["spread"].tolist() == [0.0, 3.0, 6.0, 9.0]
        assert mean["empty"].shape == (0, 3) and mean["numpy"][0] == 0.5
        assert type(mean["numpy"][1]) is numpy.ndarray and mean["numpy"][1].dtype == ml_dtypes.bfloat16

        anything = {
            "key": jax.random.key(rank),
            "old key": jax.random.PRNGKey(rank),
            "small": jnp.full(2, rank, jnp.float8_e4m3fn),
            "complex": jnp.asarray(1j * rank),
            "count": 7 + rank,
        }
        got = hvd.broadcast(anything, 1, "anything")
        assert jax.random.bits(got["key"]) == jax.random.bits(jax.random.key(1))
        assert got["old key"].tolist() == [0, 1] and got["old key"].dtype == jnp.uint32
        assert got["small"].tolist() == [1, 1] and got["complex"] == 1j and got["count"] == 8
        joined = hvd.allgather(anything)
        assert joined["key"].shape == (2,) and jax.random.bits(joined["key"][1]) == jax.random.bits(jax.random.key(1))
        assert joined["small"].dtype == jnp.float8_e4m3fn and joined["count"].tolist() == [7, 8]
        rows = hvd.allgather({"rows": jnp.full((rank + 1, 2), rank), "spread": numbers["spread"]})
        assert rows["rows"].tolist() == [[0, 0], [1, 1], [1, 1]] and rows["spread"].shape == (8,)
        assert hvd.allreduce({}) == {} and hvd.broadcast([]) == []
        return {"rank": hvd.rank(), "size": hvd.size()}

    assert run_ranks(2, exchange, environ=TWO_DEVICES) == [{"rank": rank, "size": 2} for rank in (0, 1)]


def test_what_cannot_be_reduced_is_named_and_what_differs_is_refused() -> None:
    def exchange(rank: int) -> list[str]:
        import jax.numpy as jnp

        import spark_estimator.jax as hvd

        hvd.init()
        texts = []
        for tree in ({"layer": [jnp.ones(2), jnp.ones(2, jnp.uint32)]}, {"layer": jnp.ones(2 + rank)}):
            try:
                hvd.allreduce(tree)
            except (ValueError, MismatchError) as error:
                texts.append(f"{type(error).__name__}: {error}")
        return texts

    for rank, texts in enumerate(run_ranks(2, exchange)):
        assert texts[0].startswith(f"ValueError: allreduce on rank {rank}: tree['layer'][1]: arrays of uint32 aren't")
        assert texts[1].startswith("MismatchError: ")


def test_importing_the_package_does_not_import_jax() -> None:
    import subprocess
    import sys

    program = "import sys, spark_estimator, spark_estimator.jax; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n"
