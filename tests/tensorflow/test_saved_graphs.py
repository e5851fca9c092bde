"""Graphs that are written by one job and loaded by another: the numbers of the job that runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.compat.interpreter import fresh
from tests.tensorflow.rank_pool import RankPool


def write(rank: int, folder: str) -> None:
    """Rank 0 writes one graph in every form in which TensorFlow keeps graphs."""
    from pathlib import Path

    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    import spark_estimator.tensorflow as hvd

    v1 = tf.compat.v1

    def results(x: Any) -> dict[str, Any]:
        pair = hvd.grouped_allreduce([x, 10 * x], op=hvd.Max)
        return {
            "total": hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=6.0),
            "average": hvd.allreduce(x, name="by name"),
            "largest": pair[0] + pair[1],
            "gathered": hvd.allgather(x),
            "copied": hvd.broadcast(x, 0),
            "exchanged": hvd.alltoall(x),
            "scattered": hvd.reducescatter(x, op=hvd.Sum),
            "size": hvd.size_op(),
            "rank": hvd.rank_op(),
        }

    def write_graphs() -> None:
        with tf.Graph().as_default() as graph, v1.Session() as session:
            x = v1.placeholder(tf.float32, [6], name="x")
            weight = v1.get_variable("weight", initializer=2.0, use_resource=True)
            for name, result in results(x).items():
                tf.identity(result, name=name)
            tf.multiply(hvd.allreduce(x, op=hvd.Sum), weight, name="weighted")
            session.run(v1.global_variables_initializer())
            v1.train.Saver().save(session, f"{folder}/v1/model")
            frozen = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["weighted", "total"])
            Path(folder, "frozen_v1.pb").write_bytes(frozen.SerializeToString())

    class Model(tf.Module):
        def __init__(self) -> None:
            self.weight = tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec([6], tf.float32)])
        def __call__(self, x: Any) -> Any:
            return results(x) | {"weighted": self.weight * hvd.allreduce(x, op=hvd.Sum)}

    if rank == 0:
        write_graphs()
        model = Model()
        tf.saved_model.save(model, f"{folder}/saved_model")
        tf.train.Checkpoint(model=model).write(f"{folder}/checkpoint")
        frozen = convert_variables_to_constants_v2(model.__call__.get_concrete_function())
        Path(folder, "frozen_v2.pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())
        names = [frozen.inputs[0].name, frozen.outputs[-1].name]  # the last by the alphabet: weighted
        Path(folder, "frozen_v2.txt").write_text("\n".join(names))


@pytest.fixture(scope="session")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture
def folder(two_ranks: RankPool, _folder: Path) -> str:
    """Where two ranks have written their graphs."""
    if not (_folder / "frozen_v2.txt").exists():
        two_ranks.run(write, str(_folder), timeout=110)
    return str(_folder)


def check(rank: int, folder: str) -> None:
    """Loads every form beside other collectives, and compares with what this job's ranks have to get."""
    from pathlib import Path

    import numpy
    import tensorflow as tf

    import spark_estimator.tensorflow as hvd

    v1 = tf.compat.v1
    size = hvd.size()
    base = numpy.arange(6, dtype="float32")
    x = base * (rank + 1)
    share = 6 // size
    ranks = size * (size + 1) // 2  # the sum of all ranks' factors
    expected = {
        "total": 3 * base * ranks,
        "average": base * ranks / size,
        "largest": 11 * base * size,
        "gathered": numpy.concatenate([base * (each + 1) for each in range(size)]),
        "copied": base,
        "exchanged": numpy.concatenate([base[rank * share : (rank + 1) * share] * (each + 1) for each in range(size)]),
        "scattered": base[rank * share : (rank + 1) * share] * ranks,
        "size": numpy.int32(size),
        "rank": numpy.int32(rank),
        "weighted": 2 * base * ranks,
    }
    # What rank r weighs a result by is r + 1; see the table of tensorflow/differentiable.py.
    gradients = {
        "total": numpy.full(6, 3.0 * ranks),
        "average": numpy.full(6, ranks / size),
        "gathered": numpy.full(6, ranks / size),
        "copied": numpy.full(6, ranks / size if rank == 0 else 0.0),
        "exchanged": numpy.repeat(numpy.arange(1.0, size + 1), share),
        "scattered": numpy.repeat(numpy.arange(1.0, size + 1), share) * size,
    }

    def compare(actual: dict[str, Any], expected: dict[str, Any], form: str) -> None:
        assert set(actual) == set(expected)
        for name, value in actual.items():
            numpy.testing.assert_array_equal(numpy.asarray(value), expected[name], f"{form}: {name}")

    # Another one, before and after, in the same graph: none may be confused with it.
    with tf.Graph().as_default(), v1.Session() as session:
        before = hvd.allreduce(tf.constant(5.0), op=hvd.Sum)
        saver = v1.train.import_meta_graph(f"{folder}/v1/model.meta")
        after = hvd.allreduce(tf.constant(7.0), op=hvd.Max)
        saver.restore(session, f"{folder}/v1/model")
        names = {name: f"{name}:0" for name in expected}
        others, fetched = session.run([(before, after), names], {"x:0": x})
        assert others == (5.0 * size, 7.0)
        compare(fetched, expected, "MetaGraph")
        graph = v1.get_default_graph()
        losses = {name: tf.reduce_sum(graph.get_tensor_by_name(f"{name}:0")) * (rank + 1.0) for name in gradients}
        slopes = {name: tf.gradients(loss, graph.get_tensor_by_name("x:0"))[0] for name, loss in losses.items()}
        compare(session.run(slopes, {"x:0": x}), gradients, "gradients of a MetaGraph")
    with tf.Graph().as_default(), v1.Session() as session:
        definition = v1.GraphDef.FromString(Path(folder, "frozen_v1.pb").read_bytes())
        twice = []
        for scope in ("one", "two"):  # the second one gets other numbers
            fed = x if scope == "one" else 100 * x
            twice += tf.import_graph_def(definition, {"x": fed}, ["weighted:0", "total:0"], name=scope)
        fetched = session.run(twice)
        for factor, pair in ((1, fetched[:2]), (100, fetched[2:])):
            wanted = {name: factor * expected[name] for name in ("weighted", "total")}
            compare(dict(zip(("weighted", "total"), pair, strict=True)), wanted, "frozen graph of TensorFlow 1")
    loaded = tf.saved_model.load(f"{folder}/saved_model")
    compare({name: value.numpy() for name, value in loaded(tf.constant(x)).items()}, expected, "SavedModel")
    with tf.GradientTape(persistent=True) as tape:
        start = tf.constant(x)
        tape.watch(start)
        results = loaded(start)
        losses = {name: tf.reduce_sum(results[name]) * (rank + 1.0) for name in gradients}
    slopes = {name: tape.gradient(loss, start).numpy() for name, loss in losses.items()}
    compare(slopes, gradients, "gradients of a SavedModel")
    loaded.weight.assign(9.0)
    tf.train.Checkpoint(model=loaded).read(f"{folder}/checkpoint").assert_consumed()
    assert float(loaded.weight) == 2.0
    definition = v1.GraphDef.FromString(Path(folder, "frozen_v2.pb").read_bytes())
    names = Path(folder, "frozen_v2.txt").read_text().split("\n")
    frozen = v1.wrap_function(lambda: tf.import_graph_def(definition, name=""), []).prune(*names)
    compare({"weighted": frozen(tf.constant(x))}, {"weighted": expected["weighted"]}, "frozen graph")


def test_on_the_ranks_that_wrote_them(two_ranks: RankPool, folder: str) -> None:
    two_ranks.run(check, folder, timeout=110)


@pytest.mark.slow
def test_on_more_ranks(three_ranks: RankPool, folder: str) -> None:
    three_ranks.run(check, folder, timeout=110)


@pytest.mark.parametrize("package", ["spark_estimator", pytest.param("horovod", marks=pytest.mark.slow)])
def test_in_a_process_that_has_built_nothing(folder: str, package: str) -> None:
    program = f"""
        import os
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        from spark_estimator import compat
        compat.install()
        import {package}.tensorflow as hvd
        import tensorflow as tf
        from tests.tensorflow.test_saved_graphs import check
        v1 = tf.compat.v1
        with tf.Graph().as_default(), v1.Session() as session:
            v1.train.import_meta_graph("{folder}/v1/model.meta")
            try:
                session.run("total:0", {{"x:0": [1.0] * 6}})
            except tf.errors.FailedPreconditionError as error:
                assert "has not been initialized" in str(error), error
            else:
                raise AssertionError("it ran before init()")
        hvd.init()
        check(0, "{folder}")
        print("right")
        """
    assert fresh(program).splitlines()[-1] == "right"


def test_a_meta_graph_that_is_imported_after_another_allreduce_was_built(two_ranks: RankPool) -> None:
    def values(rank: int) -> list[float]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        v1 = tf.compat.v1
        with tf.Graph().as_default():
            tf.identity(hvd.allreduce(v1.placeholder(tf.float32, [], name="x"), op=hvd.Sum, prescale_factor=6.0), "y")
            meta = v1.train.export_meta_graph()
        actual = []
        with tf.Graph().as_default(), v1.Session() as session:
            other = hvd.allreduce(tf.constant(2.0), op=hvd.Max)
            v1.train.import_meta_graph(meta)
            actual += session.run(["y:0", other], {"x:0": 1.0})
        return [float(each) for each in actual]

    assert two_ranks.run(values) == [[12.0, 2.0]] * 2


def test_a_process_set_goes_by_its_id(two_ranks: RankPool) -> None:
    def values(rank: int) -> list[Any]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        v1 = tf.compat.v1
        even, odd = hvd.add_process_set([0]), hvd.add_process_set([1])
        with tf.Graph().as_default():
            local = (even, odd)[rank]
            x = v1.placeholder(tf.float32, [], name="x")
            tf.identity(hvd.allreduce(x, op=hvd.Sum, process_set=local), "y")
            tf.identity(hvd.size_op(local.process_set_id), "size")
            meta = v1.train.export_meta_graph()

        def run(names: list[str]) -> Any:
            with tf.Graph().as_default(), v1.Session() as session:
                v1.train.import_meta_graph(meta)
                return session.run(names, {"x:0": 5.0})

        assert run(["y:0", "size:0"]) == [5.0, 1]
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        texts = []
        for name in ("y:0", "size:0"):
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                run([name])
            texts.append(str(caught.value))
        everyone = hvd.ProcessSet([0, 1])
        with pytest.raises(ValueError, match="is not registered"):
            tf.function(lambda x: hvd.allreduce(x, process_set=everyone))(tf.constant(1.0))
        return texts

    for rank, texts in enumerate(two_ranks.run(values)):
        for text in texts:
            assert f"process_set_id={rank + 1} is not registered in this job" in text and "have the ids [0]" in text


def test_nodes_without_a_name_keep_apart_from_those_of_a_graph_that_is_imported(two_ranks: RankPool) -> None:
    def values(rank: int) -> list[float]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        v1 = tf.compat.v1
        with tf.Graph().as_default():
            hvd.allreduce(tf.constant(10.0) * (rank + 1), op=hvd.Sum)
            definition = v1.get_default_graph().as_graph_def()
            node = next(each.name for each in definition.node if each.op == "SparkEstimatorAllreduce")
        with tf.Graph().as_default(), v1.Session() as session:
            local = hvd.allreduce(tf.constant(1.0) * (rank + 1), op=hvd.Sum)
            [imported] = tf.import_graph_def(definition, return_elements=[f"{node}:0"], name="")
            return [float(each) for each in session.run([local, imported])]

    assert two_ranks.run(values) == [[3.0, 30.0]] * 2


@pytest.mark.parametrize("name", ["by name", None])
def test_copies_of_a_graph_and_calls_of_a_function_keep_apart(two_ranks: RankPool, name: str | None) -> None:
    def values(rank: int, name: str | None) -> list[list[float]]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        v1 = tf.compat.v1
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [], name="x")
            tf.identity(hvd.allreduce(x, op=hvd.Sum, name=name), "y")
            meta = v1.train.export_meta_graph()
        local = rank + 1.0
        with tf.Graph().as_default(), v1.Session() as session:
            first: Any = None
            # The ranks reach their copies in opposite order.
            for scope, factor in (("p", 1.0), ("q", 100.0))[:: 1 if rank == 0 else -1]:
                with tf.control_dependencies([] if first is None else [first]):
                    first = tf.constant(local * factor) + 0.0
                v1.train.import_meta_graph(meta, import_scope=scope, input_map={"x:0": first})
            actual = [[float(each) for each in session.run(["p/y:0", "q/y:0"])] for _ in range(3)]

        @tf.function
        def total(value: Any) -> Any:
            return tf.cond(value > 0, lambda: hvd.allreduce(value, op=hvd.Sum, name=name), lambda: value)

        @tf.function
        def both(value: Any) -> Any:
            return total(value), total(100 * value)

        return actual + [[float(each) for each in both(tf.constant(local))] for _ in range(3)]

    assert two_ranks.run(values, name) == [[[3.0, 300.0]] * 6] * 2
