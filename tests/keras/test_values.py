"""Collectives on single values, the names that Horovod has, and what each backend needs for itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.conftest import RankPool


def test_numbers_arrays_and_tensors(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd

        assert (hvd.size(), hvd.rank()) == (2, rank)
        assert hvd.allreduce(1.0 + rank) == 1.5
        assert hvd.allreduce(numpy.full(2, rank, "float32"), op=hvd.Sum).tolist() == [1.0, 1.0]
        assert hvd.allgather([rank, 5]).tolist() == [0, 5, 1, 5]
        assert hvd.broadcast(numpy.array([rank]), 1).tolist() == [1]
        assert hvd.reducescatter(numpy.arange(2.0) + rank, op=hvd.Sum).tolist() == [1.0 + 2 * rank]
        tensor = keras.ops.convert_to_tensor(numpy.array([1.0, 3.0], "float32") + rank)
        for compression in (hvd.Compression.none, hvd.Compression.bf16):
            reduced = hvd.allreduce(tensor, compression=compression)
            assert keras.ops.is_tensor(reduced)
            assert keras.backend.standardize_dtype(reduced.dtype) == "float32"
            assert keras.ops.convert_to_numpy(reduced).tolist() == [1.5, 3.5]
        ones, twos = hvd.grouped_allreduce([tensor, numpy.array([2.0])], op=hvd.Max)
        assert keras.ops.convert_to_numpy(ones).tolist() == [2.0, 4.0] and twos.tolist() == [2.0]
        with pytest.raises(ValueError, match="not both"):
            hvd.allreduce(1.0, average=True, op=hvd.Sum)
        with pytest.raises(RuntimeError, match=r"BroadcastGlobalVariablesCallback\(0\)"):
            hvd.broadcast_global_variables(0)
        count = keras.Variable(rank, dtype="int32", trainable=False)
        variables = [keras.Variable(numpy.full((2, 2), float(rank))), count]
        hvd.broadcast_variables(variables, root_rank=1)
        assert [keras.ops.convert_to_numpy(v).max() for v in variables] == [1, 1]

    two_ranks.run(check)


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
            given = list(inspect.signature(served).parameters)
            wanted = arguments.split(", ")
            assert given[: len(wanted)] == wanted, (name, given)
        assert not [name for name in hvd.__all__ if not hasattr(hvd, name)]
        assert set(hvd.__all__) <= set(dir(hvd))

    two_ranks.run(check, SURFACE)


def test_tensorflow_gathers_rows_and_keeps_xla_off(two_ranks: RankPool) -> None:
    if two_ranks.backend != "tensorflow":
        pytest.skip("of TensorFlow alone")

    def check(rank: int) -> None:
        import keras
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow as tensorflow_binding
        import spark_estimator.tensorflow.keras as hvd
        from tests.keras.training import model, share

        def with_rows(as_dense: bool) -> None:
            table, bias = keras.Variable(numpy.zeros((4, 2), "float32")), keras.Variable(numpy.zeros(1, "float32"))
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=as_dense)
            optimizer.build([table, bias])

            @tf.function
            def step() -> None:
                rows = tf.IndexedSlices(tf.ones((1 + rank, 2)), tf.range(1 + rank), tf.constant([4, 2]))
                optimizer.apply([rows, tf.constant([4.0 * rank])], [table, bias])

            step()
            assert table.numpy()[:, 0].tolist() == [-1.0, -0.5, 0.0, 0.0]
            assert bias.numpy().tolist() == [-2.0]

        of_tensorflow = tensorflow_binding.DistributedOptimizer(keras.optimizers.SGD(1.0))
        with pytest.raises(ValueError, match="already"):
            hvd.DistributedOptimizer(of_tensorflow)
        with_rows(False)
        with_rows(True)
        rows, targets = share(rank, 2, 4)
        compiled = model()
        compiled.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=True)
        with pytest.raises(ValueError, match="jit_compile=False"):
            compiled.fit(rows, targets, batch_size=4, verbose=0)
        devices = tf.config.list_physical_devices
        fake = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
        tf.config.list_physical_devices = lambda *kind: [*devices(), fake]  # Keras looks before it chooses XLA
        try:
            plain, wrapped = model(), model()
            plain.compile(keras.optimizers.SGD(0.01), "mse")
            wrapped.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
        finally:
            tf.config.list_physical_devices = devices
        assert (plain.jit_compile, wrapped.jit_compile) == (True, False)

    two_ranks.run(check)
