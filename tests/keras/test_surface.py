"""Horovod's names for Keras, with their arguments in their order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.conftest import RankPool

# Of horovod.keras and horovod.tensorflow.keras: the names of arguments, in their order.
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


def test_the_surface(two_ranks: RankPool) -> None:
    if two_ranks.backend != "torch":
        pytest.skip("the same on every backend")

    def check(rank: int, surface: str) -> None:
        import functools
        import inspect

        import spark_estimator.keras as hvd

        for line in surface.split("\n")[1:-1]:
            name, _, arguments = line.rstrip(")").partition("(")
            served: Any = functools.reduce(getattr, name.split("."), hvd)
            parameters = list(inspect.signature(served).parameters)
            expected = arguments.split(", ")
            assert parameters[: len(expected)] == expected, (name, parameters)
        assert not [name for name in hvd.__all__ if not hasattr(hvd, name)]
        assert set(hvd.__all__) <= set(dir(hvd))

    two_ranks.run(check, SURFACE)
