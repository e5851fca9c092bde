"""Variables that all ranks take over from one: eagerly, in a graph, and by a hook of a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool


def test_starting_state(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        types = ("float32", "int64", "uint32", "complex64", "bool", "bfloat16")
        variables = [tf.Variable(tf.cast(tf.fill([2, 1], rank), name)) for name in types]
        variables.append(tf.Variable(tf.zeros([0, 3])))
        hvd.broadcast_variables(variables, root_rank=1)
        assert all(numpy.all(numpy.asarray(each) == 1) for each in variables[:-1])
        layer = tf.keras.layers.Dense(2, bias_initializer="random_normal")
        layer.build((None, 3))
        layer.bias.assign([rank, rank])
        hvd.broadcast_variables(layer.variables, root_rank=0)
        back = hvd.broadcast_([variables[0]], 0)
        assert isinstance(back[0], tf.Tensor) and back[0].numpy().tolist() == variables[0].numpy().tolist()
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.broadcast_variables([tf.Variable(tf.zeros([2 + rank]))], 0)
        with pytest.raises(ValueError, match="a variable is needed, not "):
            hvd.broadcast_variables([1], 0)
        return layer.bias.numpy().tolist(), str(caught.value)

    for bias, text in two_ranks.run(values):
        assert bias == [0.0, 0.0]
        assert "Rank 0 has: variable 0: shape (2,), float32. Rank 1 has: variable 0: shape (3,), float32." in text


SCRIPT = (Path(__file__).parent / "classic_script.py").read_text()


def test_the_classic_script(two_ranks: RankPool, tmp_path: Path) -> None:
    def trained(rank: int, script: str, folder: str) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        names: dict[str, Any] = {"hvd": hvd}
        with tf.Graph().as_default():
            exec(compile(script.replace("import spark_estimator.tensorflow as hvd", ""), "script", "exec"), names)
            return names["main"](folder)

    (weights, step), (_, other_step) = two_ranks.run(trained, SCRIPT, str(tmp_path))
    assert step == other_step
    assert 200 // 2 - 1 <= step <= 200 // 2
    assert [round(weight, 1) for weight in weights] == [2.0, -1.0]
    assert list(tmp_path.glob("model.ckpt-*.index")), "rank 0 writes checkpoints"
    # Resumed where it stopped, which only rank 0 knows.
    (weights, step), again = two_ranks.run(trained, SCRIPT, str(tmp_path))
    assert again == (weights, step) and step == 200 // 2


def test_there_are_no_global_variables_without_a_graph() -> None:
    import spark_estimator.tensorflow as hvd

    with pytest.raises(RuntimeError, match=r"hvd\.broadcast_variables"):
        hvd.broadcast_global_variables(0)
