"""Objects for all ranks, with Horovod's arguments for TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool


def test_objects(two_ranks: RankPool) -> None:
    def values(rank: int) -> list[Any]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        results = [
            hvd.allgather_object({"rank": rank}, None, "all"),
            hvd.broadcast_object([rank], 1),
            hvd.broadcast_object_fn(1, name="by function")(rank),
        ]
        last = hvd.add_process_set([1])
        if rank == 1:
            results.append(hvd.allgather_object("alone", process_set=last))
        with tf.Graph().as_default():  # they run at once, also beside a graph
            results.append(hvd.broadcast_object(rank, 0))
        return results

    everyone = [[{"rank": 0}, {"rank": 1}], [1], 1]
    assert two_ranks.run(values) == [[*everyone, 0], [*everyone, ["alone"], 0]]


def test_an_object_that_cannot_be_pickled(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import threading

        import spark_estimator.tensorflow as hvd

        with pytest.raises(hvd.HorovodInternalError, match="pickle"):
            hvd.broadcast_object(threading.Lock() if rank == 0 else None, 0)

    two_ranks.run(check)
