"""``DistributedOptimizer`` on each backend of Keras: what two ranks train is what one trains with twice the batch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.conftest import RankPool


def test_two_ranks_are_one_with_twice_the_batch(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras

        import spark_estimator.keras as hvd
        from tests.keras.training import close, data, model, share, weights

        optimizers: list[Any] = [
            lambda: keras.optimizers.SGD(0.05, momentum=0.9),
            lambda: keras.optimizers.Adam(
                keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.5), global_clipnorm=0.5
            ),
            lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
        ]
        ways: list[dict[str, Any]] = [{}, {"gradient_predivide_factor": 2.0, "groups": 2}, {}]
        for make, way in zip(optimizers, ways, strict=True):
            alone = model()
            alone.compile(make(), "mse")
            rows, targets = data()
            alone.fit(rows, targets, batch_size=8, epochs=2, shuffle=False, verbose=0)
            together = model()
            optimizer = hvd.DistributedOptimizer(make(), **way)
            together.compile(optimizer, "mse")
            rows, targets = share(rank, 2, 4)
            together.fit(rows, targets, batch_size=4, epochs=2, shuffle=False, verbose=0)
            assert together.optimizer is optimizer
            assert int(optimizer.iterations) == int(alone.optimizer.iterations)
            assert close(weights(together), weights(alone)), (weights(together), weights(alone))

    two_ranks.run(check)


def test_passes_of_one_step_are_added_up_or_averaged(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras

        import spark_estimator.keras as hvd
        from spark_estimator.keras.exchange import KerasExchange
        from tests.keras.training import close, data, model, share, weights

        # The ranks ask for their agreement before each exchange: in TensorFlow's graphs by a node.
        place: Any = KerasExchange
        name, reductions = "agree", 0
        if keras.backend.backend() == "tensorflow":
            from spark_estimator.tensorflow import works as place

            name = "_agree_once"
        agreed = getattr(place, name)

        def counting(*args: Any) -> None:
            nonlocal reductions
            reductions += 1
            agreed(*args)

        for average, rate in ((True, 0.05), (False, 0.025)):
            alone = model()
            alone.compile(keras.optimizers.SGD(0.05), "mse")
            rows, targets = data()
            alone.fit(rows, targets, batch_size=16, shuffle=False, verbose=0)
            together = model()
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(rate), backward_passes_per_step=2, average_aggregated_gradients=average
            )
            together.compile(optimizer, "mse")
            rows, targets = share(rank, 2, 4)
            reductions = 0
            setattr(place, name, counting)
            try:
                together.fit(rows, targets, batch_size=4, shuffle=False, verbose=0)
            finally:
                setattr(place, name, agreed)
            assert reductions == 2, reductions
            assert close(weights(together), weights(alone))

    two_ranks.run(check)


@pytest.mark.parametrize("passes", [1, 2])
def test_ranks_agree_whether_scaled_gradients_are_finite(two_ranks: RankPool, passes: int) -> None:
    def check(rank: int) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd
        from tests.keras.training import close, model, share, weights

        keras.config.set_dtype_policy("mixed_float16")
        try:
            together = model(policy="mixed_float16")
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(0.01), backward_passes_per_step=passes, average_aggregated_gradients=True
            )
            together.compile(optimizer, "mse")
        finally:
            keras.config.set_dtype_policy("float32")
        # Keras has put a scaler around it, whose scale is too large here
        scaler = together.optimizer
        assert isinstance(scaler, keras.optimizers.LossScaleOptimizer)
        rows, targets = share(rank, 2, 4)
        start = weights(together)
        poisoned = rows.copy()
        poisoned[:4] *= numpy.float32("inf") if rank == 1 else 1
        together.fit(poisoned[:4], targets[:4], batch_size=4, shuffle=False, verbose=0)
        assert close(start, weights(together)), "a rank has stepped although another's gradients are not finite"
        scale = float(scaler.dynamic_scale)
        assert scale == scaler.initial_scale / 2
        assert hvd.allgather_object(scale) == [scale] * 2
        together.fit(rows, targets, batch_size=4, epochs=8, shuffle=False, verbose=0)
        ended = weights(together)
        assert not close(start, ended)
        assert all(numpy.isfinite(weight).all() for weight in ended)
        assert all(close(ended, theirs) for theirs in hvd.allgather_object(ended))

    two_ranks.run(check)


def test_gradients_travel_in_half_precision(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd

        for compression, exact in (
            (hvd.Compression.none, True),
            (hvd.Compression.fp16, False),
            (hvd.Compression.bf16, False),
        ):
            variable = keras.Variable(numpy.zeros(3, "float32"))
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=compression, op=hvd.Sum)
            given = numpy.array([0.1, 1.0, 1 / 3], "float32") * (rank + 1)
            optimizer.apply([keras.ops.convert_to_tensor(given)], [variable])
            error = numpy.abs(keras.ops.convert_to_numpy(variable) + numpy.array([0.3, 3.0, 1.0])).max()
            assert (error < 1e-6) == exact, (compression, error)
            assert error < 0.02

    two_ranks.run(check)


def test_gradients_of_a_graph_of_tensorflow(two_ranks: RankPool) -> None:
    """In compiled steps, with rows, groups and shares of the mean."""
    if two_ranks.backend != "tensorflow":
        pytest.skip("what TensorFlow's graphs are made of")

    def check(rank: int) -> list[list[float]]:
        import keras
        import numpy
        import tensorflow as tf

        import spark_estimator.keras as hvd
        from spark_estimator.keras.wrapping import exchange_of

        def results(groups: Any, predivide: float, factor: float | None) -> list[float]:
            start = [numpy.zeros((4, 2), "float32"), numpy.zeros(2000, "float32"), numpy.zeros(3, "float32")]
            variables = [keras.Variable(each) for each in start]
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(1.0), groups=groups, gradient_predivide_factor=predivide
            )
            if factor is not None:
                exchange = exchange_of(optimizer)
                assert exchange is not None
                exchange.weighs, exchange.factor = True, factor

            @tf.function
            def step(scale: Any) -> None:
                rows = tf.IndexedSlices(tf.ones((2, 2)) * scale, tf.constant([rank, 3]), tf.constant([4, 2]))
                optimizer.apply([rows, tf.fill([2000], scale), tf.fill([3], 3.0 * scale)], variables)

            for number in (1.0, 2.0):
                step(tf.constant((1.0 + rank) * number))
            kinds = {node.type for node in step.get_concrete_function(tf.constant(1.0)).graph.get_operations()}
            assert "SparkEstimatorAllreduce" in kinds, kinds
            assert not kinds & {"PyFunc", "EagerPyFunc"}, kinds
            first, second, third = (keras.ops.convert_to_numpy(variable) for variable in variables)
            assert (second == second[0]).all()
            return [*first.flatten().tolist(), float(second[0]), *third.tolist()]

        return [results(*arguments) for arguments in ((None, 1.0, None), (2, 2.0, None), (None, 1.0, 2.0 * (1 - rank)))]

    first, second = two_ranks.run(check)
    assert first == second
    # Ranks give 1 and 2, then twice that: their averages' sum is 4.5. The rows 0 and 1 are one rank's each.
    assert first[0] == first[1] == [-1.5, -1.5, -3.0, -3.0, 0.0, 0.0, -4.5, -4.5, -4.5, *[-13.5] * 3]
    assert first[2] == [-3.0, -3.0, 0.0, 0.0, 0.0, 0.0, -3.0, -3.0, -3.0, *[-9.0] * 3]


def test_two_optimizers_of_like_variables_in_one_graph(two_ranks: RankPool) -> None:
    """As of twin critics: what they exchange looks alike, and is in flight at the same time."""
    if two_ranks.backend != "tensorflow":
        pytest.skip("what TensorFlow's graphs are made of")

    def check(rank: int) -> list[float]:
        import keras
        import numpy
        import tensorflow as tf

        import spark_estimator.keras as hvd

        variables = [keras.Variable(numpy.zeros(3, "float32"), name="w") for _ in range(4)]
        optimizers = [hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)) for _ in variables]

        @tf.function
        def step(scale: Any) -> None:
            for number, (optimizer, variable) in enumerate(zip(optimizers, variables, strict=True)):
                optimizer.apply([tf.fill([3], scale * (10.0**number))], [variable])

        for _ in range(20):
            step(tf.constant(rank + 1.0))
        return [float(variable.numpy()[0]) for variable in variables]

    assert two_ranks.run(check) == [[-30.0, -300.0, -3000.0, -30000.0]] * 2


def test_over_some_of_the_ranks(two_ranks: RankPool) -> None:
    def check(rank: int) -> list[float]:
        import keras
        import numpy

        import spark_estimator.keras as hvd

        hvd.shutdown()
        one, both = hvd.ProcessSet([1]), hvd.ProcessSet([1, 0])
        hvd.init(process_sets=[one])
        found = []
        for over in (one, hvd.global_process_set):
            variable = keras.Variable(numpy.zeros(1, "float32"))
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=over)
            for _ in range(2):
                optimizer.apply([keras.ops.convert_to_tensor(numpy.array([rank + 1.0], "float32"))], [variable])
            found.append(float(keras.ops.convert_to_numpy(variable)[0]))
        with pytest.raises(ValueError, match="add_process_set"):
            hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=both).apply(
                [keras.ops.convert_to_tensor(numpy.ones(1, "float32"))], [keras.Variable(numpy.zeros(1, "float32"))]
            )
        return found

    assert two_ranks.run(check) == [[-2.0, -3.0], [-4.0, -3.0]]


def test_variables_that_differ_are_named(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd
        from spark_estimator.errors import MismatchError

        def step(names: list[str], rows: int = 2) -> str:
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
            variables = [keras.Variable(numpy.zeros(rows, "float32"), name=name) for name in names]
            try:
                optimizer.apply([keras.ops.ones((rows,)) for _ in variables], variables)
            except MismatchError as error:
                return str(error)
            except Exception as error:  # as TensorFlow and JAX hand it on
                return str(error)
            return ""

        assert step(["a", "b"] if rank else ["a_7", "b_9"]) == ""
        assert "Only rank 1 has: b float32 (2,)" in step(["a", "b"] if rank else ["a"])
        told = step(["a"], rows=2 + rank)
        assert "Rank 0 has: a float32 (2,). Rank 1 has: a float32 (3,)." in told, told
        assert step(["a"]) == ""

    two_ranks.run(check)


def test_layers_of_one_rank(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd
        from tests.keras.training import close, model, share, weights

        together = model()
        optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.05), local_layers=together.layers[-1])
        together.compile(optimizer, "mse")
        rows, targets = share(rank, 2, 4)
        together.fit(rows, targets, batch_size=4, shuffle=False, verbose=0)
        shared, own = weights(together)[:2], weights(together)[2:]
        of_ranks = hvd.allgather_object((shared, own))
        assert close(of_ranks[0][0], of_ranks[1][0])
        assert not numpy.allclose(of_ranks[0][1][0], of_ranks[1][1][0])

    two_ranks.run(check)


def test_what_is_refused(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import pickle

        import keras

        import spark_estimator.keras as hvd

        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam())
        assert (type(optimizer).__name__, isinstance(optimizer, keras.optimizers.Adam)) == ("Adam", True)
        with pytest.raises(ValueError, match="already: twice would average"):
            hvd.DistributedOptimizer(optimizer)
        with pytest.raises(ValueError, match="already: twice would average"):
            hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))
        plain = type(optimizer).from_config(optimizer.get_config())
        assert hvd.DistributedOptimizer(plain) is plain
        copied = pickle.loads(pickle.dumps(optimizer))
        assert type(copied) is type(keras.optimizers.Adam()) and hvd.DistributedOptimizer(copied) is copied
        with pytest.raises(TypeError, match="an optimizer of Keras 3, not the text 'adam'"):
            hvd.DistributedOptimizer("adam")
        refused: list[tuple[str, dict[str, Any]]] = [
            ("in Keras, gradients are reduced by", {"op": hvd.Min}),
            ("backward_passes_per_step=0 must be", {"backward_passes_per_step": 0}),
            ("splits an average", {"op": hvd.Sum, "gradient_predivide_factor": 2.0}),
            ("compression='fp16' must be one of", {"compression": "fp16"}),
            ("groups='a' must be", {"groups": "a"}),
        ]
        for text, arguments in refused:
            with pytest.raises(ValueError, match=text):
                hvd.DistributedOptimizer(keras.optimizers.SGD(), **arguments)
        built = keras.optimizers.SGD()
        built.build([keras.Variable([1.0])])
        with pytest.raises(ValueError, match="is built already"):
            hvd.DistributedOptimizer(built, backward_passes_per_step=2)

    two_ranks.run(check)
