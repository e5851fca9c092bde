"""What the ops of a graph do, on arrays and on the memory of a node."""

from __future__ import annotations

from typing import Any

import pytest

from spark_estimator.collectives.process_set import global_process_set
from spark_estimator.tensorflow import works
from tests.tensorflow.rank_pool import RankPool


def test_an_exception_that_cannot_be_reported_fails_the_node(two_ranks: RankPool) -> None:
    def outcome(rank: int) -> str:
        from unittest import mock

        import tensorflow as tf

        import spark_estimator.tensorflow as hvd
        from spark_estimator.tensorflow import works

        class UnprintableError(Exception):
            def __str__(self) -> str:
                raise MemoryError

        @tf.function
        def step(value: Any) -> Any:
            return hvd.allreduce(value, op=hvd.Sum, name="never submitted")

        with mock.patch.object(works.ops, "run", side_effect=UnprintableError):
            try:
                return str(step(tf.constant([1.0])))
            except tf.errors.UnknownError as error:
                return str(error)

    for text in two_ranks.run(outcome):
        assert "never submitted: an exception that could not be reported" in text


def test_a_process_set_goes_by_its_ranks_where_they_are_registered(two_ranks: RankPool) -> None:
    def values(rank: int) -> list[Any]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        alone = hvd.ProcessSet([1])

        @tf.function
        def total(value: Any) -> Any:
            return hvd.allreduce(value, op=hvd.Sum, name="total", process_set=alone)

        hvd.add_process_set(alone)
        actual = [alone.process_set_id]
        if rank == 1:
            actual.append(float(total(tf.constant(5.0))))
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        hvd.add_process_set(hvd.ProcessSet([0]))  # has the id that the other one had
        hvd.add_process_set(alone)
        actual.append(alone.process_set_id)
        if rank == 1:
            actual.append(float(total(tf.constant(7.0))))
        return actual

    assert two_ranks.run(values) == [[1, 2], [1, 5.0, 2, 7.0]]


def test_a_process_set_of_a_node() -> None:
    assert works.make_process_set(0, "0,1") is global_process_set
    assert works.format_ranks(global_process_set) == ""
    stand_in = works.make_process_set(4, "2,5")
    assert (stand_in.process_set_id, stand_in.ranks, works.format_ranks(stand_in)) == (4, [2, 5], "2,5")
    assert works.format_ranks(works.make_process_set(4)) == ""


def test_every_op_on_arrays(two_ranks: RankPool) -> None:
    def values(rank: int) -> list[Any]:
        import numpy

        from spark_estimator._native import ReduceOp
        from spark_estimator.tensorflow import works

        def run(op: str, *arrays: Any, **options: Any) -> list[Any]:
            return works.run_on_arrays(works.GraphCollective(op, **options), op, arrays)

        x = numpy.array([1.0, 2.0]) * (rank + 1)
        results = [
            *run(works.ALLREDUCE, x, reduce_op=ReduceOp.MAX, postscale=2.0),
            *run(works.REDUCESCATTER, x),
            *run(works.ALLGATHER, x, x[:1]),
            *run(works.BROADCAST, x, root_rank=1),
            *run(works.BROADCAST_VARIABLES, x, x.astype("complex64"), root_rank=1),
            *run(works.ALLTOALL, x, numpy.array([], numpy.int32)),
            *run(works.QUESTION, text="rank in set"),
        ]
        text = works.make_agreement(["a line"], "the subject")
        assert run(works.AGREE, text=text) == run(works.AGREE, text=text) == []
        with pytest.raises(ValueError, match="Unknown is not an op"):
            run("Unknown")
        return [result.tolist() for result in results]

    for rank, results in enumerate(two_ranks.run(values)):
        assert results[:2] == [[4.0, 8.0], [[3.0], [6.0]][rank]]
        assert results[2:4] == [[1.0, 2.0, 2.0, 4.0], [1.0, 2.0]]
        assert results[4:7] == [[2.0, 4.0]] * 3
        assert results[7:] == [[[1.0, 2.0], [2.0, 4.0]][rank], [1, 1], rank]


def test_an_agreement_that_fails_names_its_subject(two_ranks: RankPool) -> None:
    def message(rank: int) -> str:
        from spark_estimator.errors import MismatchError
        from spark_estimator.tensorflow import works

        text = works.make_agreement([f"line of rank {rank}"], "the subject")
        with pytest.raises(MismatchError) as caught:
            works.run_on_arrays(works.GraphCollective(works.AGREE, text=text), "compared", [])
        return str(caught.value)

    for text in two_ranks.run(message):
        assert "the subject" in text and "Rank 1 has: line of rank 1" in text
