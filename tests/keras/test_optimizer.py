"""``DistributedOptimizer`` on each backend of Keras: what two ranks train is what one trains with twice the batch."""

from __future__ import annotations

from pathlib import Path
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


def test_what_is_clipped_is_the_joint_gradient(two_ranks: RankPool) -> None:
    """The ranks' own gradients are ten times the limit, and their means at it, or twice as large."""

    def check(rank: int) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd

        def apply(passes: int, *gradients: list[float], **limit: float) -> list[float]:
            more = {"gradient_accumulation_steps": passes} if passes > 1 else {}
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, **limit, **more))
            variables = [keras.Variable(numpy.zeros(2, "float32")) for _ in range(2)]
            optimizer.build(variables)
            for _ in range(passes):
                arrays = [numpy.array(gradients[rank], "float32") for _ in variables]
                optimizer.apply([keras.ops.convert_to_tensor(array) for array in arrays], variables)
            moved: list[float] = (-keras.ops.convert_to_numpy(variables[1])).tolist()
            return moved

        for passes in (1, 2):
            small, large = ([10.0, 0.0], [-10.0, 2.0]), ([6.0, 0.0], [-2.0, 0.0])  # means [0, 1] and [2, 0]
            for limit in ({"clipnorm": 1.0}, {"clipvalue": 1.0}):
                assert apply(passes, *small, **limit) == pytest.approx([0, 1])
                assert apply(passes, *large, **limit) == pytest.approx([1, 0])
            # Of both variables: the norm of the joint gradient is the square root of 2, and of 8.
            assert apply(passes, *small, global_clipnorm=2**0.5) == pytest.approx([0, 1])
            assert apply(passes, *large, global_clipnorm=2**0.5) == pytest.approx([1, 0])

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
            arguments = numpy.array([0.1, 1.0, 1 / 3], "float32") * (rank + 1)
            optimizer.apply([keras.ops.convert_to_tensor(arguments)], [variable])
            error = numpy.abs(keras.ops.convert_to_numpy(variable) + numpy.array([0.3, 3.0, 1.0])).max()
            assert (error < 1e-6) == exact, (compression, error)
            assert error < 0.02

    two_ranks.run(check)


def test_over_some_of_the_ranks(two_ranks: RankPool) -> None:
    def check(rank: int) -> list[float]:
        import keras
        import numpy

        import spark_estimator.keras as hvd

        hvd.shutdown()
        single, both = hvd.ProcessSet([1]), hvd.ProcessSet([1, 0])
        hvd.init(process_sets=[single])
        actual = []
        for over in (single, hvd.global_process_set):
            variable = keras.Variable(numpy.zeros(1, "float32"))
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=over)
            for _ in range(2):
                optimizer.apply([keras.ops.convert_to_tensor(numpy.array([rank + 1.0], "float32"))], [variable])
            actual.append(float(keras.ops.convert_to_numpy(variable)[0]))
        with pytest.raises(ValueError, match="add_process_set"):
            hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=both).apply(
                [keras.ops.convert_to_tensor(numpy.ones(1, "float32"))], [keras.Variable(numpy.zeros(1, "float32"))]
            )
        return actual

    assert two_ranks.run(check) == [[-2.0, -3.0], [-4.0, -3.0]]


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
        shared, local = weights(together)[:2], weights(together)[2:]
        of_ranks = hvd.allgather_object((shared, local))
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
        with pytest.raises(ValueError, match="is already a DistributedOptimizer"):
            hvd.DistributedOptimizer(optimizer)
        with pytest.raises(ValueError, match="is already a DistributedOptimizer"):
            hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))
        plain = type(optimizer).from_config(optimizer.get_config())
        assert hvd.DistributedOptimizer(plain) is plain
        copied = pickle.loads(pickle.dumps(optimizer))
        assert type(copied) is type(keras.optimizers.Adam()) and hvd.DistributedOptimizer(copied) is copied
        with pytest.raises(TypeError, match="an optimizer of Keras 3 or Keras 2, not the text 'adam'"):
            hvd.DistributedOptimizer("adam")
        refused: list[tuple[str, dict[str, Any]]] = [
            ("must be hvd.Average or hvd.Sum in Keras", {"op": hvd.Min}),
            ("backward_passes_per_step=0 must be", {"backward_passes_per_step": 0}),
            ("requires op=hvd.Average", {"op": hvd.Sum, "gradient_predivide_factor": 2.0}),
            ("compression='fp16' must be one of", {"compression": "fp16"}),
            ("groups='a' must be", {"groups": "a"}),
        ]
        for text, arguments in refused:
            with pytest.raises(ValueError, match=text):
                hvd.DistributedOptimizer(keras.optimizers.SGD(), **arguments)
        built = keras.optimizers.SGD()
        built.build([keras.Variable([1.0])])
        with pytest.raises(ValueError, match="is already built"):
            hvd.DistributedOptimizer(built, backward_passes_per_step=2)

    two_ranks.run(check)


def test_before_init_an_optimizer_is_wrapped_and_a_model_loaded(tmp_path: Path) -> None:
    """As with Horovod: services that only predict do not call ``init()``."""
    import keras
    import numpy

    import spark_estimator.keras as hvd

    rows = numpy.ones((2, 3), numpy.float32)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse", jit_compile=False)
    model.save(tmp_path / "model.keras")
    loaded = hvd.load_model(tmp_path / "model.keras")
    assert numpy.array_equal(loaded.predict(rows, verbose=0), model.predict(rows, verbose=0))
    with pytest.raises(Exception, match=r"hvd\.init\(\)"):
        loaded.fit(rows, rows[:, :1], verbose=0)
