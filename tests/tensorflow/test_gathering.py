"""Collectives that move rows: shapes that differ by rank, splits, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool


@pytest.mark.parametrize("kind", ["eager", "function"])
def test_ranks_with_other_numbers_of_rows(two_ranks: RankPool, kind: str) -> None:
    def values(rank: int, kind: str) -> list[Any]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        def moved(rows: Any, splits: Any) -> list[Any]:
            joined = hvd.allgather(rows)
            both = hvd.grouped_allgather([rows, rows[:, 0]])
            return [joined, *both, *hvd.alltoall(rows, splits), hvd.broadcast(splits, 1)]

        rows = tf.fill([2 * rank, 1], 7.0)  # rank 0 has none
        splits = tf.constant([[0, 0], [2, 0]][rank])
        results = (tf.function(moved) if kind == "function" else moved)(rows, splits)
        assert results[-2].dtype == tf.int32
        return [result.numpy().tolist() for result in results]

    joined: list[Any] = [[[7.0], [7.0]], [[7.0], [7.0]], [7.0, 7.0]]
    first, second = two_ranks.run(values, kind)
    assert first == [*joined, [[7.0], [7.0]], [0, 2], [2, 0]]
    assert second == [*joined, [], [0, 0], [2, 0]]


def test_the_root_is_a_rank_of_the_job(two_ranks: RankPool) -> None:
    def value(rank: int) -> float | None:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        last = hvd.add_process_set([1])
        if rank == 0:
            return None
        with pytest.raises(ValueError, match=r"root_rank=0 must be one of the ranks \[1\]"):
            hvd.broadcast(tf.constant(1.0), 0, process_set=last)
        return float(hvd.broadcast(tf.constant(4.0), 1, process_set=last))

    assert two_ranks.run(value) == [None, 4.0]


def test_refusals(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        tensor = tf.ones([2])
        for text, call in (
            ("0-dimensional", lambda: hvd.allgather(tf.constant(1))),
            ("0-dimensional", lambda: hvd.alltoall(tf.constant(1))),
            (r"root_rank=2 .* \[0, 1\]", lambda: hvd.broadcast(tensor, 2)),
            ("root_rank=None", lambda: hvd.broadcast(tensor, None)),
            ("with the sum 2", lambda: hvd.alltoall(tensor, [1, 2])),
            ("one number per rank, and it is empty", lambda: hvd.alltoall(tensor, [])),
            ("list is empty", lambda: hvd.grouped_allgather([])),
        ):
            with pytest.raises(ValueError, match=text) as caught:
                call()
            assert len(str(caught.value)) < 300

    two_ranks.run(check)
