"""Horovod's names for Keras, with their arguments in their order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.conftest import RankPool

# Of horovod.tensorflow.keras: the names of arguments, in their order.
SURFACE = """
DistributedOptimizer(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, \
gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients, num_groups, groups, \
process_set, scale_local_gradients)
PartialDistributedOptimizer(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, \
gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients, groups, process_set, \
local_layers, scale_local_gradients)
allreduce(value, name, average, prescale_factor, postscale_factor, op, compression)
allgather(value, name)
broadcast(value, root_rank, name)
reducescatter(value, name, op)
broadcast_global_variables(root_rank)
load_model(filepath, custom_optimizers, custom_objects, compression, legacy_opts)
callbacks.BroadcastGlobalVariablesCallback(root_rank, device, local_variables)
callbacks.MetricAverageCallback(device)
callbacks.LearningRateScheduleCallback(initial_lr, multiplier, start_epoch, end_epoch, staircase, momentum_correction, \
steps_per_epoch)
callbacks.LearningRateWarmupCallback(initial_lr, warmup_epochs, momentum_correction, steps_per_epoch, verbose)
callbacks.BestModelCheckpoint(monitor, verbose, save_weights_only, mode, save_freq)
elastic.KerasState(model, optimizer)
elastic.CommitStateCallback(state, batches_per_commit)
elastic.UpdateBatchStateCallback(state)
elastic.UpdateEpochStateCallback(state)
elastic.run(func)
"""

# Of horovod.keras, where they differ.
STANDALONE = """
DistributedOptimizer(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, \
gradient_predivide_factor, op, num_groups, groups)
PartialDistributedOptimizer(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, \
gradient_predivide_factor, op, groups, process_set, local_layers, scale_local_gradients)
callbacks.BestModelCheckpoint(monitor, verbose, mode, save_freq)
"""


def test_the_surface(two_ranks: RankPool) -> None:
    if two_ranks.backend != "torch":
        pytest.skip("the same on every backend")

    def check(rank: int, surface: str, standalone: str) -> None:
        import functools
        import inspect

        import spark_estimator.keras
        import spark_estimator.tensorflow.keras

        def lines(text: str) -> dict[str, str]:
            return dict(line.rstrip(")").split("(") for line in text.split("\n")[1:-1])

        for hvd, expected in (
            (spark_estimator.tensorflow.keras, lines(surface)),
            (spark_estimator.keras, lines(surface) | lines(standalone)),
        ):
            for name, arguments in expected.items():
                served: Any = functools.reduce(getattr, name.split("."), hvd)
                positional = [
                    parameter.name
                    for parameter in inspect.signature(served).parameters.values()
                    if parameter.kind is not parameter.KEYWORD_ONLY
                ]
                names = arguments.split(", ")
                assert positional[: len(names)] == names, (hvd.__name__, name, positional)
            assert not [name for name in hvd.__all__ if not hasattr(hvd, name)]
        assert set(spark_estimator.keras.__all__) <= set(dir(spark_estimator.keras))

    two_ranks.run(check, SURFACE, STANDALONE)
