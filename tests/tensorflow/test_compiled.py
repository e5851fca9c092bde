"""The compiled node: the same bits as without it, kept where only its user can write, left out where it cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ here")


def test_the_same_bits_and_ranks_that_differ(two_ranks: RankPool) -> None:
    def differences(rank: int) -> list[str]:
        import os

        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        types = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool")
        given = [tf.cast(tf.random.stateless_uniform([0 if n == "int8" else 1001, 3], [rank, 7]) * 5, n) for n in types]

        def results() -> Any:
            hvd.shutdown()
            hvd.init(process_sets="dynamic")

            @tf.function
            def step(*tensors: Any) -> Any:
                single = [hvd.allreduce(each, op=hvd.Max) for each in tensors]
                sums = hvd.grouped_allreduce(tensors[:-1], op=hvd.Sum, prescale_factor=0.5)
                return [*single, *sums, hvd.allreduce(tensors[7])]

            nodes = [node.type for node in step.get_concrete_function(*given).graph.get_operations()]
            return [each.numpy() for each in step(*given)], nodes.count("SparkEstimatorAllreduce")

        made = {}
        # The last: each rank by another kind of node.
        for number, op in enumerate(("python", "native", ("python", "native")[rank])):
            os.environ["SPARK_ESTIMATOR_TENSORFLOW_OP"] = op
            made[number], compiled = results()
            assert compiled == (12 if op == "native" else 0)
        os.environ["SPARK_ESTIMATOR_TENSORFLOW_OP"] = "python"
        forms = [str(each.dtype) for each in made[0]]
        pairs = [zip(forms, made[0], made[number], strict=True) for number in (1, 2)]
        return [form for pair in pairs for form, one, other in pair if one.tobytes() != other.tobytes()]

    assert two_ranks.run(differences, timeout=110) == [[], []]


def test_a_tape_s_gradients_go_as_one_on_one_host_and_in_buckets_between_hosts(two_ranks: RankPool) -> None:
    def nodes(rank: int) -> list[int]:
        import os
        from unittest import mock

        import tensorflow as tf

        import spark_estimator.tensorflow as hvd
        from spark_estimator.collectives import context

        os.environ.update(SPARK_ESTIMATOR_BUCKET_BYTES="800", SPARK_ESTIMATOR_TENSORFLOW_OP="native")
        hvd.shutdown()
        hvd.init()
        os.environ["SPARK_ESTIMATOR_TENSORFLOW_OP"] = "python"
        del os.environ["SPARK_ESTIMATOR_BUCKET_BYTES"]
        variables = [tf.Variable(tf.ones(100)) for _ in range(6)]
        found = []
        for hosts in (1, 2):  # the ranks are on one host; the graph is made as if they were not

            @tf.function
            def step() -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.add_n([tf.reduce_sum(each * (rank + 1.0)) for each in variables])
                return hvd.DistributedGradientTape(tape).gradient(loss, variables)

            with mock.patch.object(context, "cross_size", lambda hosts=hosts: hosts):
                operations = step.get_concrete_function().graph.get_operations()
            assert all((gradient.numpy() == 1.5).all() for gradient in step())
            found.append([node.type for node in operations].count("SparkEstimatorAllreduce"))
        return found

    assert two_ranks.run(nodes) == [[1, 3], [1, 3]]


def test_what_others_could_write_is_not_loaded(two_ranks: RankPool, tmp_path: Path) -> None:
    def told(rank: int, folder: str) -> list[str]:
        import os
        from pathlib import Path

        import tensorflow as tf

        import spark_estimator.tensorflow as hvd
        from spark_estimator.errors import NativeLibraryError
        from spark_estimator.tensorflow import compiled

        kept = compiled._library, compiled._refused, os.environ.get("XDG_CACHE_HOME"), os.environ["PATH"]
        texts = []
        own = Path(folder, str(rank))
        try:
            os.environ["XDG_CACHE_HOME"] = str(own)
            (own / "spark_estimator").mkdir(parents=True)
            for mode, path in ((0o777, kept[3]), (0o700, "/nowhere")):
                (own / "spark_estimator").chmod(mode)
                os.environ["PATH"] = path
                compiled._library = compiled._refused = None
                with pytest.raises(NativeLibraryError) as caught:
                    compiled.loaded()
                texts.append(str(caught.value))
            own.chmod(0o777)
            compiled._library = compiled._refused = None
            with pytest.raises(NativeLibraryError, match="everybody can write to"):
                compiled.loaded()
            own.chmod(0o700)
            # Where it cannot be had, graphs do without.
            hvd.shutdown()
            os.environ["SPARK_ESTIMATOR_TENSORFLOW_OP"] = "auto"
            hvd.init()
            reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
            texts.append(str(float(reduce(tf.constant(1.0)))))
            hvd.shutdown()
            os.environ["SPARK_ESTIMATOR_TENSORFLOW_OP"] = "native"
            hvd.init()
            with pytest.raises(NativeLibraryError):
                tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))(tf.constant(1.0))
        finally:
            os.environ["PATH"], os.environ["SPARK_ESTIMATOR_TENSORFLOW_OP"] = kept[3], "python"
            compiled._library, compiled._refused = kept[:2]
            if kept[2] is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = kept[2]
        return texts

    for writable, nothing, value in two_ranks.run(told, str(tmp_path)):
        assert "another user could write to it" in writable
        assert "there is no C++ compiler" in nothing
        assert value == "2.0"
