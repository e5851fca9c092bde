"""Lines that describe variables: equal on ranks that have made other layers before."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_estimator.keras.variables import describe_variables, make_plain_name
from tests.keras.conftest import RankPool


@pytest.mark.slow
def test_a_rank_may_have_made_more_layers_before(two_ranks: RankPool) -> None:
    """Keras numbers layers by process, and an optimizer's variables have the number within their names."""

    def check(rank: int) -> None:
        import keras

        import spark_estimator.keras as hvd
        from tests.keras.training import close, model, share, weights

        if rank == 1:
            model()
        trained = model(seed=rank)
        trained.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
        rows, targets = share(rank, 2, 4)
        begin = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        trained.fit(rows, targets, batch_size=4, verbose=0, callbacks=begin)
        assert all(close(weights(trained), theirs) for theirs in hvd.allgather_object(weights(trained)))

    two_ranks.run(check)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("dense_3/kernel", "dense/kernel"),
        ("adam/sequential_1_dense_3_kernel_momentum", "adam/sequential_dense_kernel_momentum"),
        ("dense_3", "dense"),
        ("conv2d_12/bias", "conv2d/bias"),
        ("block1/w_0a", "block1/w_0a"),
    ],
)
def test_names_without_the_numbers_of_keras(path: str, expected: str) -> None:
    assert make_plain_name(SimpleNamespace(path=path)) == expected
    assert make_plain_name(SimpleNamespace(name=path)) == expected


def test_lines() -> None:
    of_keras = SimpleNamespace(path="dense_1/kernel", dtype="float32", shape=(3, 4))
    of_torch = SimpleNamespace(name="bias", dtype="torch.bfloat16", shape=[])
    of_tensorflow = SimpleNamespace(name="count", dtype=SimpleNamespace(name="int64"), shape=(None, 2))
    assert describe_variables([of_keras, of_torch, of_tensorflow]) == [
        "dense/kernel float32 (3, 4)",
        "bias bfloat16 ()",
        "count int64 (None, 2)",
    ]
    assert describe_variables([SimpleNamespace(dtype="int8", shape=())]) == ["variable int8 ()"]
