"""Collectives in any order: eagerly, in a function and in a session, each with one thread for all nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool

COUNT = 50


def right(results: list[Any]) -> bool:
    return all(list(result) == [3.0 * number] * 3 for number, result in enumerate(results))


def test_a_session_whose_ranks_run_in_opposite_order(two_ranks: RankPool) -> None:
    def sums(rank: int) -> bool:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        v1 = tf.compat.v1
        with tf.Graph().as_default():
            variables: dict[int, Any] = {}
            before = []
            for number in range(COUNT) if rank == 0 else reversed(range(COUNT)):
                # One after another in what comes before, so that the order in which they become ready is fixed.
                with tf.control_dependencies(before[-1:]):
                    ready = v1.placeholder_with_default([number * (rank + 1.0)] * 3, [3]) + 0.0
                    before.append(ready)
                variables[number] = hvd.allreduce(ready, op=hvd.Sum, name=f"of {number}")
            config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
            with v1.Session(config=config) as session:
                for _ in range(3):
                    assert right(session.run([variables[number] for number in range(COUNT)]))
        return True

    assert two_ranks.run(sums) == [True, True]


def test_a_function_whose_ranks_trace_in_opposite_order(two_ranks: RankPool) -> None:
    def sums(rank: int) -> bool:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        @tf.function
        def step(scale: Any) -> Any:
            variables = {}
            for number in range(COUNT) if rank == 0 else reversed(range(COUNT)):
                variables[number] = hvd.allreduce(scale * ([float(number)] * 3), op=hvd.Sum, name=f"of {number}")
            return [variables[number] for number in range(COUNT)]

        for _ in range(3):
            assert right([result.numpy() for result in step(tf.constant(rank + 1.0))])
        return True

    assert two_ranks.run(sums) == [True, True]


def test_threads_that_call_eagerly_in_opposite_order(two_ranks: RankPool) -> None:
    def sums(rank: int) -> bool:
        import threading

        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        variables: dict[int, Any] = {}

        def reduce(number: int) -> None:
            value = tf.constant([number * (rank + 1.0)] * 3)
            variables[number] = hvd.allreduce(value, op=hvd.Sum, name=f"of {number}").numpy()

        order = list(range(COUNT))[:: 1 if rank == 0 else -1]
        threads = [threading.Thread(target=reduce, args=(number,)) for number in order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return right([variables[number] for number in range(COUNT)])

    assert two_ranks.run(sums) == [True, True]


def test_branches_loops_and_functions_in_functions(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        inner = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))

        @tf.function
        def step(x: Any, steps: Any) -> Any:
            total = hvd.allreduce(x, op=hvd.Sum)
            # Written out: what turns Python's own loops into these needs the test's source.
            _, total = tf.while_loop(
                lambda number, _: number < steps,
                lambda number, total: (number + 1, hvd.allreduce(total, op=hvd.Sum)),
                (0, total),
            )
            total += tf.cond(steps > 2, lambda: hvd.allreduce(x, op=hvd.Max), lambda: hvd.allreduce(x, op=hvd.Min))
            return total, inner(x), inner(2 * x)

        return [[float(y) for y in step(tf.constant(rank + 1.0), tf.constant(n))] for n in (2, 3)]

    assert two_ranks.run(values) == [[[13.0, 3.0, 6.0], [26.0, 3.0, 6.0]]] * 2


@pytest.mark.parametrize("name", [None, "given"])
def test_ranks_build_unequal_operations_around_a_branch_with_a_collective(
    two_ranks: RankPool, name: str | None
) -> None:
    """As where rank 0 alone writes summaries, each of which is a tf.cond, or has created another optimizer."""

    def values(rank: int, name: str | None) -> list[float]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        @tf.function
        def step(x: Any, steps: Any) -> Any:
            for _ in range(0 if rank else 3):
                tf.cond(steps < 0, lambda: tf.print("a summary"), tf.no_op)
            with tf.name_scope("same" if name else f"sgd_{rank}"):
                y = tf.cond(steps > 0, lambda: hvd.allreduce(x, op=hvd.Sum, name=name), lambda: x)
                _, z = tf.while_loop(
                    lambda number, _: number < steps,
                    lambda number, z: (
                        number + 1,
                        tf.cond(z > 0, lambda: hvd.allreduce(10 * z, op=hvd.Sum, name=name), lambda: z),
                    ),
                    (0, x),
                )
            return y, z

        def gradient(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y, z = step(x, tf.constant(1))
            return tape.gradient([y, z], x)

        x = tf.constant(rank + 1.0)
        results = [*step(x, tf.constant(2)), gradient(x), tf.function(gradient)(x)]
        return [float(result) for result in results]

    assert two_ranks.run(values, name) == [[3.0, 600.0, 22.0, 22.0]] * 2


def test_collectives_without_a_name_beside_those_of_a_function_that_is_called(two_ranks: RankPool) -> None:
    """Both run at once. The function was traced before on one rank alone, and again for another shape."""

    def values(rank: int) -> Any:
        import logging

        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        inner = tf.function(lambda value: hvd.allreduce(value, op=hvd.Sum))
        first = inner.get_concrete_function(tf.TensorSpec([])) if rank == 0 else None
        warnings: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
        tf.get_logger().addHandler(handler)

        @tf.function
        def outer(first: Any, second: Any) -> Any:
            before = hvd.allreduce(second, op=hvd.Sum)
            called, again = inner(first), inner(tf.stack([first, first]))
            return before, called, again[1], hvd.allreduce(second + 1, op=hvd.Sum)

        results = [[float(value) for value in outer(tf.constant(1.0), tf.constant(100.0))] for _ in range(30)]
        tf.get_logger().removeHandler(handler)
        assert first is None or first.graph is not None
        wrong = [values for values in results if values != [200, 2, 2, 202]]
        return wrong, [text for text in warnings if "values.<locals>" not in text]

    assert two_ranks.run(values) == [([], [])] * 2


def test_a_constant_is_reduced_each_time(two_ranks: RankPool) -> None:
    """It is neither computed when the graph is optimised, nor merged with another's result."""

    def sizes(rank: int) -> list[int]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        @tf.function
        def counted() -> Any:
            return hvd.allreduce(tf.constant(1), op=hvd.Sum) + hvd.allreduce(tf.constant(1), op=hvd.Sum)

        got = [int(counted())]
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        return [*got, int(counted())]

    assert two_ranks.run(sizes) == [[4, 4], [4, 4]]


def test_what_a_collective_raises_in_a_graph(two_ranks: RankPool) -> None:
    def raised(rank: int) -> list[str]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd
        from spark_estimator.tensorflow.elastic import find_failure

        with pytest.raises(hvd.HorovodInternalError):
            hvd.allreduce(tf.zeros([2 + rank]), name="eager")
        reduce = tf.function(lambda x: hvd.allreduce(x, name="graph"))
        with pytest.raises(tf.errors.FailedPreconditionError) as caught:
            reduce(tf.zeros([2 + rank]))
        failure = find_failure(caught.value)
        assert float(tf.reduce_sum(reduce(tf.ones([2])))) == 2.0
        return [type(failure).__name__, str(failure)]

    for name, text in two_ranks.run(raised):
        assert name == "MismatchError"
        assert "allreduce.graph" in text and "Traceback" not in text


def test_xla_is_refused_in_words(two_ranks: RankPool) -> None:
    def texts(rank: int) -> list[str]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        messages = []
        inner = tf.function(lambda x: hvd.allreduce(x))
        for body in (lambda x: hvd.allreduce(x), inner):
            with pytest.raises(ValueError, match="jit_compile=False") as caught:
                tf.function(body, jit_compile=True)(tf.ones([2]))
            messages.append(str(caught.value))
        return messages

    assert all("allreduce on rank" in text for messages in two_ranks.run(texts) for text in messages)


def test_nothing_of_torch_is_loaded(two_ranks: RankPool) -> None:
    def loaded(rank: int) -> list[str]:
        import sys

        return sorted(name for name in ("torch", "pyspark", "lightning") if name in sys.modules)

    assert two_ranks.run(loaded) == [[], []]


def test_the_same_bits_in_a_graph_as_eagerly(two_ranks: RankPool) -> None:
    """Of all types, with factors that 32 bits do not hold, and without elements."""

    def differences(rank: int) -> list[str]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        types = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool")
        inputs = [
            tf.cast(tf.random.stateless_uniform([0 if n == "int8" else 1001, 3], [rank, 7]) * 5, n) for n in types
        ]

        def results(*tensors: Any) -> Any:
            single = [hvd.allreduce(each, op=hvd.Max) for each in tensors]
            sums = hvd.grouped_allreduce(tensors[:-1], op=hvd.Sum, prescale_factor=1 / 3)
            shares = hvd.grouped_reducescatter(tensors[:-1], op=hvd.Sum, postscale_factor=1 / 3)
            return [*single, *sums, *shares, *hvd.grouped_allgather(tensors), hvd.broadcast(tensors[7], 1)]

        pairs = zip(results(*inputs), tf.function(results)(*inputs), strict=True)
        return [first.dtype.name for first, second in pairs if first.numpy().tobytes() != second.numpy().tobytes()]

    assert two_ranks.run(differences, timeout=110) == [[], []]


def test_variables_of_types_that_the_engine_cannot_compute_with(two_ranks: RankPool) -> None:
    def values(rank: int) -> list[Any]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            variables = [
                tf.compat.v1.get_variable(f"of_{name}", initializer=tf.cast([rank + 1, 2], name), use_resource=True)
                for name in ("complex64", "uint32", "uint16", "bfloat16", "bool")
            ]
            empty = tf.compat.v1.get_variable("empty", initializer=tf.zeros([0, 3]), use_resource=True)
            copied = hvd.broadcast_variables([*variables, empty], 1)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(copied)
            assert session.run(empty.read_value()).shape == (0, 3)
            return [session.run(tf.cast(each.read_value(), tf.int32)).tolist() for each in variables]

    assert two_ranks.run(values) == [[[2, 2]] * 4 + [[1, 1]]] * 2


def test_copies_from_gpus_are_told_once(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        from unittest import mock

        import tensorflow as tf

        from spark_estimator.tensorflow import nodes

        warnings: list[str] = []
        constant = tf.constant(1.0)
        with (
            mock.patch.object(nodes._log, "warning", warnings.append),
            mock.patch.object(nodes, "_warned_of_copies", False),
        ):
            nodes._warn_about_copies([constant])  # no GPU here in any case
            assert nodes._warned_of_copies and not warnings
            nodes._warned_of_copies = False
            with mock.patch.object(tf.config, "get_visible_devices", lambda _: ["GPU:0"]):
                nodes._warn_about_copies([constant])  # which is on the CPU
                assert not nodes._warned_of_copies and not warnings
                with tf.Graph().as_default():  # its device is not known yet
                    for _ in range(2):
                        nodes._warn_about_copies([tf.constant(1.0)])
        assert len(warnings) == 1 and "copied through host memory" in warnings[0]

    two_ranks.run(check)


def test_references_of_tensorflow_1_are_sent_by_value() -> None:
    """NVIDIA's BERT for TensorFlow 1 averages what ``assign_add`` returns."""
    tf = pytest.importorskip("tensorflow")
    from spark_estimator.tensorflow.nodes import check_tensor

    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("sums", initializer=[1.0, 2.0], use_resource=False)
        reference = variable.assign_add([1.0, 1.0])
        assert reference.dtype != tf.float32
        tensor = check_tensor(reference, "allreduce")
        assert tensor.dtype == tf.float32
        with tf.compat.v1.Session() as session:
            session.run(variable.initializer)
            assert session.run(tensor).tolist() == [2.0, 3.0]
