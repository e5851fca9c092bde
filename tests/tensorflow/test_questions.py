"""Questions about the job that a graph asks when it runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool


@pytest.mark.parametrize("kind", ["eager", "function"])
def test_answers(two_ranks: RankPool, kind: str) -> None:
    def values(rank: int, kind: str) -> list[int]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        number = hvd.add_process_set([0]).process_set_id

        def asked() -> Any:
            return (
                hvd.rank_op(),
                hvd.local_rank_op(),
                hvd.size_op(),
                hvd.local_size_op(),
                hvd.process_set_included_op(number),
                hvd.size_op(number),
            )

        answers = (tf.function(asked) if kind == "function" else asked)()
        assert {answer.dtype for answer in answers} == {tf.int32}
        return [int(answer) for answer in answers]

    assert two_ranks.run(values, kind) == [[0, 0, 2, 2, 1, 1], [1, 1, 2, 2, 0, 1]]


def test_a_graph_asks_again_in_another_job(two_ranks: RankPool) -> None:
    def values(rank: int) -> list[Any]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd
        from spark_estimator.tensorflow.questions import ask_rank, ask_size

        last = hvd.add_process_set([1])

        @tf.function
        def asked() -> Any:
            return ask_size(last, tf.float64), hvd.size_op(last.process_set_id)

        answers: list[Any] = [(answer.dtype.name, float(answer)) for answer in asked()]
        if rank == 1:
            answers.append(int(ask_rank(last)))
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        with pytest.raises(tf.errors.InvalidArgumentError, match="process_set_id=1 is not registered"):
            asked()
        hvd.add_process_set([0])
        return [*answers, int(hvd.size_op(1))]

    sizes = [("float64", 1.0), ("int32", 1.0)]
    assert two_ranks.run(values) == [[*sizes, 1], [*sizes, 0, 1]]


def test_a_rank_joins_in_a_function_after_what_that_did_before(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd
        from spark_estimator.tensorflow.mpi_ops import _allreduce

        steps = tf.Variable(0.0)

        def step(number: Any) -> list[Any]:
            steps.assign_add(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="step"))
            return [number + 1]

        @tf.function
        def train(count: Any) -> Any:
            tf.while_loop(lambda number: number < count, step, [tf.constant(0)])
            return hvd.join()

        last = train(tf.constant(2 - rank))
        assert last.dtype == tf.int32
        assert hvd.join().dtype == tf.int32  # eagerly, too
        assert float(_allreduce(tf.constant(1.0))) == 2.0  # a sum, as in Horovod
        return steps.numpy().item(), int(last)

    assert two_ranks.run(values) == [(3.0, 0), (2.0, 0)]  # rank 1 adds zero to the second step
