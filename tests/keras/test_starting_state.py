"""Variables that all ranks take over from one."""

from __future__ import annotations

import pytest

from tests.keras.conftest import RankPool


def test_the_values_of_the_root(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd
        from spark_estimator.errors import MismatchError

        count = keras.Variable(rank, dtype="int32", trainable=False)
        variables = [keras.Variable(numpy.full((2, 2), float(rank))), count, keras.Variable(numpy.zeros((0, 3)))]
        hvd.broadcast_variables(variables, root_rank=1)
        assert [keras.ops.convert_to_numpy(v).tolist() for v in variables] == [[[1.0, 1.0], [1.0, 1.0]], 1, []]
        hvd.broadcast_variables([], root_rank=0)
        kept = keras.Variable(numpy.full(2 + rank, 7.0 + rank, "float32"), name="kept")
        with pytest.raises(MismatchError, match=r"Rank 0 has: kept float32 \(2,\)\. Rank 1 has: kept float32 \(3,\)"):
            hvd.broadcast_variables([kept], root_rank=0)
        with pytest.raises(MismatchError, match="Rank 0 has: root rank 0"):
            hvd.broadcast_variables([count], root_rank=rank)
        assert keras.ops.convert_to_numpy(kept).tolist() == [7.0 + rank] * (2 + rank)

    two_ranks.run(check)


def test_what_belongs_to_the_state_of_a_training(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras

        from spark_estimator.keras.starting_state import list_training_variables

        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        assert list_training_variables(model) == model.weights
        model.compile(keras.optimizers.SGD(momentum=0.9), "mse", metrics=["mae"])
        model.optimizer.build(model.trainable_variables)
        assert list_training_variables(model) == [*model.weights, *model.optimizer.variables]
        other = keras.optimizers.SGD()
        other.build(model.trainable_variables)
        assert list_training_variables(model, other) == [*model.weights, *other.variables]
        seeds = {id(variable) for layer in model.layers for variable in layer.non_trainable_variables}
        assert not seeds & {id(variable) for variable in list_training_variables(model)}

    two_ranks.run(check)


def test_there_is_no_list_of_all_variables(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import spark_estimator.keras as hvd

        with pytest.raises(RuntimeError, match=r"BroadcastGlobalVariablesCallback\(0\)"):
            hvd.broadcast_global_variables(0)

    two_ranks.run(check)
